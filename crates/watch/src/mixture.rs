//! Two machines, or two models, in one series: some requests are much faster than the floor, among
//! others that are not.
//!
//! A skipped prefill takes the time of the shortest prompts, whatever its length. A faster machine
//! takes a share of the floor: its times grow with length as the floor does, and their shares lie
//! together, since nothing is faster than it. Times that a queue makes grow with length too, but
//! their shares are spread evenly down to nothing.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Fast requests that are remembered.
const KEPT: usize = 128;
/// Fewer prove nothing.
const LEAST: usize = 64;
/// So many that were not fast must lie between each of them: otherwise it is the machine that has
/// changed, and nothing is mixed.
const BETWEEN: f64 = 0.25;
/// Longer prompts among them must be at least this much longer.
const LEVER: f64 = 1.5;
/// Their times must grow by this share of what the floor grows by, in the logarithm.
const GROWS: f64 = 0.5;
/// Their fastest shares must be this part of their middle ones.
const TOGETHER: f64 = 0.5;
/// Fewer fast ones show no growth.
const GROWING_MIN: usize = 8;
/// Ranks of lengths and times agree so well where times come from computing: a skipped prefill
/// waits in queues, which length decides much less.
const GROWING: f64 = 0.9;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Fast {
    tokens: u64,
    seconds: f64,
    floor: f64,
    /// How many requests had been judged.
    at: u64,
}

/// The newest requests that were too fast, and how many were judged.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mixture {
    judged: u64,
    fast: VecDeque<Fast>,
}

impl Mixture {
    /// Takes a judgement into account.
    pub(crate) fn note(&mut self, tokens: u64, seconds: f64, floor: f64, fast: bool) {
        self.judged += 1;
        if !fast {
            return;
        }
        let at = self.judged;
        self.fast.push_back(Fast {
            tokens,
            seconds,
            floor,
            at,
        });
        if self.fast.len() > KEPT {
            self.fast.pop_front();
        }
    }

    /// The share of the floor that nine in ten of a second machine exceed, if there is one.
    pub(crate) fn second(&self) -> Option<f64> {
        let first = self.fast.front()?;
        let between = self.judged - first.at + 1 - self.fast.len() as u64;
        if self.fast.len() < LEAST || (between as f64) < BETWEEN * self.fast.len() as f64 {
            return None;
        }
        let low = self.together()?;
        self.like_the_floor().then_some(low)
    }

    /// The share of the floor that nine in ten exceed, if it is not far from that of the middle ones.
    fn together(&self) -> Option<f64> {
        let mut shares: Vec<_> = self.fast.iter().map(|it| it.seconds / it.floor).collect();
        let (low, middle) = (quantile(&mut shares, 0.1), quantile(&mut shares, 0.5));
        // Not the least of all: a skipped prefill may be among them.
        (low >= TOGETHER * middle).then_some(low)
    }

    /// Whether the newest fast ones took longer the longer they were, and a share of the floor: computed,
    /// though there are too few for [`Mixture::second`]. Waiting makes times grow with length as well,
    /// where only what waited little is too fast; its shares do not lie together.
    pub(crate) fn grows(&self) -> bool {
        let fast: Vec<_> = self.fast.iter().map(|it| (it.tokens, it.seconds)).collect();
        grow(&fast) && self.together().is_some()
    }

    /// Whether the longer ones among them took longer, as the floor says.
    fn like_the_floor(&self) -> bool {
        let mut fast: Vec<_> = self.fast.iter().collect();
        fast.sort_by_key(|it| it.tokens);
        let third = fast.len() / 3;
        let of = |part: &[&Fast], value: fn(&Fast) -> f64| {
            let mut values: Vec<_> = part.iter().map(|it| value(it)).collect();
            quantile(&mut values, 0.2)
        };
        let (short, long) = (&fast[..third], &fast[fast.len() - third..]);
        let ratio = |value: fn(&Fast) -> f64| of(long, value) / of(short, value);
        let floor = ratio(|it| it.floor).ln();
        ratio(|it| it.tokens as f64) >= LEVER
            && floor > 0.0
            && ratio(|it| it.seconds).ln() >= GROWS * floor
    }
}

/// Whether times follow lengths: Spearman's correlation of both.
pub(crate) fn grow(fast: &[(u64, f64)]) -> bool {
    if fast.len() < GROWING_MIN {
        return false;
    }
    // What is equal has one rank, the middle of its places.
    let ranks = |value: &dyn Fn(&(u64, f64)) -> f64| {
        let mut sorted: Vec<_> = fast.iter().map(value).collect();
        sorted.sort_by(f64::total_cmp);
        let middle = (fast.len() - 1) as f64;
        let rank = |it: f64| {
            let below = sorted.partition_point(|other| *other < it);
            let through = sorted.partition_point(|other| *other <= it);
            (below + through - 1) as f64 - middle
        };
        fast.iter().map(|it| rank(value(it))).collect::<Vec<_>>()
    };
    let (lengths, times) = (ranks(&|it| it.0 as f64), ranks(&|it| it.1));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let spread = product(&lengths, &lengths) * product(&times, &times);
    product(&lengths, &times) > GROWING * spread.sqrt()
}

/// Of some numbers, of which there is at least one; sorts them.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of 200 to 6,400 tokens, every fourth of them `fast`; the floor is 20 ms and 1 ms a
    /// token.
    fn seen(fast: impl Fn(u64, f64) -> f64) -> Option<f64> {
        let mut mixture = Mixture::default();
        for n in 0..400_u64 {
            let tokens = 200 << (n * 7 % 11 / 2);
            let floor = 0.02 + 0.001 * tokens as f64;
            let seconds = if n % 4 == 0 {
                fast(n, floor)
            } else {
                floor * 1.1
            };
            mixture.note(tokens, seconds, floor, seconds < 0.5 * floor);
        }
        mixture.second()
    }

    #[test]
    fn a_faster_machine_takes_a_share_of_the_floor() {
        let second = seen(|n, floor| floor * (0.3 + 0.01 * (n % 5) as f64)).unwrap();
        assert!((0.29..0.31).contains(&second), "{second}");
        // Twenty times as fast, with the same overhead: length hardly shows.
        assert!(seen(|_, floor| 0.02 + (floor - 0.02) / 20.0).is_some());
    }

    #[test]
    fn skipped_prefills_are_no_machine() {
        assert_eq!(seen(|n, _| 0.021 + 0.001 * (n % 7) as f64), None);
        // With a queue: from nothing up to where they are not noticed any more.
        assert_eq!(
            seen(|n, floor| 0.02 + floor * 0.5 * (n * 37 % 97) as f64 / 97.0),
            None
        );
    }

    #[test]
    fn where_all_are_fast_nothing_is_mixed() {
        let mut mixture = Mixture::default();
        for n in 0..100_u64 {
            let floor = 0.02 + 0.001 * (200 << (n % 6)) as f64;
            mixture.note(200 << (n % 6), floor * 0.3, floor, true);
        }
        assert_eq!(mixture.second(), None);
    }

    #[test]
    fn times_grow_with_lengths_or_do_not() {
        let of = |time: fn(u64) -> f64| -> Vec<_> { (1..50).map(|n| (n * 97, time(n))).collect() };
        assert!(grow(&of(|n| 0.02 + 0.001 * n as f64)));
        assert!(!grow(&of(|_| 0.02)), "all alike");
        assert!(!grow(&of(|n| 0.02 + 0.01 * (n * 37 % 11) as f64)));
        assert!(!grow(&of(|n| 1.0 / n as f64)));
        let one_length: Vec<_> = (1..50).map(|n| (6_000, f64::from(n))).collect();
        assert!(!grow(&one_length));
        assert!(!grow(&of(|n| n as f64)[..7]), "too few");
    }
}
