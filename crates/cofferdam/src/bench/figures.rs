//! What was measured: samples, their median, and how sure it is.

use serde::Serialize;
use std::time::{Duration, Instant};

/// A moment, in wall time and in processor time of this process.
pub(super) struct Moment(Instant, Duration);

impl Moment {
    pub(super) fn now() -> Self {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        Self(Instant::now(), cpu)
    }

    /// What this many tokens came to since.
    pub(super) fn sample(&self, tokens: u32) -> Sample {
        let now = Self::now();
        Sample::new(tokens, now.0 - self.0, now.1 - self.1)
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Tokens a second.
    pub(super) wall: f64,
    /// Tokens a second of processor time: the fairer one where others use the machine.
    pub(super) cpu: f64,
}

impl Sample {
    pub(super) fn new(tokens: u32, wall: Duration, cpu: Duration) -> Self {
        let rate = |took: Duration| f64::from(tokens) / took.as_secs_f64().max(1e-9);
        Self {
            wall: rate(wall),
            cpu: rate(cpu),
        }
    }
}

/// A median, and between which of its samples the true one lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Median {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// How sure that is: 95 % at least from six samples on, else what their number allows.
    pub(super) confidence: f64,
}

impl Median {
    /// None of no samples. The interval is that of the sign test: it assumes nothing but that the
    /// samples are independent.
    pub(super) fn of(samples: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let (low, high) = (sorted.get((n.max(1) - 1) / 2)?, sorted.get(n / 2)?);
        // The true median is outside of all samples with 2 / 2^n; each step inwards adds its share.
        let mut outside = 2.0 * 0.5_f64.powi(n as i32);
        let (mut cut, mut share) = (0, outside);
        loop {
            share *= (n - cut) as f64 / (cut + 1) as f64;
            if outside + share > 0.05 || 2 * (cut + 1) >= n {
                break;
            }
            (outside, cut) = (outside + share, cut + 1);
        }
        Some(Self {
            median: f64::midpoint(*low, *high),
            low: sorted[cut],
            high: sorted[n - 1 - cut],
            confidence: 1.0 - outside,
        })
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    Prefill,
    Decode,
}

/// One row: what was done, by us and beside us, round by round.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) what: What,
    /// Length of the prompt, or tokens before.
    pub(super) tokens: u32,
    pub(super) sequences: u16,
    pub(super) threads: u16,
    pub(super) ours: Vec<Sample>,
    /// Of the same rounds; empty without it.
    pub(super) beside: Vec<Sample>,
    /// Of what the machine could do: the bandwidth of memory (decode) or of products (prefill).
    pub(super) of_limit: Option<f64>,
    /// Part of the time that verification of pages took.
    pub(super) verification: f64,
}

impl Row {
    pub(super) fn ours(&self, figure: impl Fn(&Sample) -> f64) -> Option<Median> {
        Median::of(self.ours.iter().map(figure))
    }

    /// Ours to theirs, of each round.
    pub(super) fn ratio(&self, figure: impl Fn(&Sample) -> f64) -> Option<Median> {
        let rounds = self.ours.iter().zip(&self.beside);
        Median::of(rounds.map(|(ours, theirs)| figure(ours) / figure(theirs)))
    }
}

/// Times of one length of prompt through the API, round by round, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Times {
    pub(super) prompt: u32,
    /// How it was served.
    pub(super) way: &'static str,
    pub(super) first_token_ms: Vec<f64>,
    pub(super) each_further_ms: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_sure_as_it_says() {
        let of = |n: u32| Median::of((1..=n).map(f64::from)).unwrap();
        assert_eq!(Median::of([].into_iter()), None);
        let one = of(1);
        assert_eq!(
            (one.median, one.low, one.high, one.confidence),
            (1.0, 1.0, 1.0, 0.0)
        );
        // 1 - 2 / 2^6; the second of six would be 1 - 14 / 64.
        let six = of(6);
        assert_eq!((six.median, six.low, six.high), (3.5, 1.0, 6.0));
        assert!((six.confidence - 0.96875).abs() < 1e-12);
        // The table of the sign test: of 9 the second, of 20 the sixth.
        let (nine, twenty) = (of(9), of(20));
        assert_eq!((nine.median, nine.low, nine.high), (5.0, 2.0, 8.0));
        assert_eq!((twenty.low, twenty.high), (6.0, 15.0));
        assert!((twenty.confidence - 0.9586).abs() < 1e-4);
    }

    #[test]
    fn a_ratio_is_of_the_same_round() {
        let sample = |wall| Sample { wall, cpu: 1.0 };
        let row = Row {
            what: What::Decode,
            tokens: 0,
            sequences: 1,
            threads: 1,
            ours: [20.0, 2.0, 200.0].map(sample).to_vec(),
            beside: [10.0, 1.0, 100.0].map(sample).to_vec(),
            of_limit: None,
            verification: 0.0,
        };
        let ratio = row.ratio(|it| it.wall).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
    }
}
