//! The least time that a prefill of N tokens takes, from what was learned of shorter, equal and
//! longer ones.
//!
//! Two sources. The bucket's **own** lower tail, once it has seen enough. And the **slope**: a
//! prefill of more tokens takes no less time, and attention makes it grow at least linearly, so a
//! line through two shorter buckets lies below the truth at every longer length. The slope is what
//! speaks about lengths that were never answered rightly, which is what a prompt over the pool is.
//!
//! Requests that skipped their prefill may be among those learned from. They give themselves away
//! together: the lower tail of every length is then as fast as the shortest prompts, while the
//! bulk grows. Such a tail is not believed ([`Tail::honest`]).

use crate::bucket::Bucket;
use std::collections::BTreeMap;

/// The bulk of a long bucket is this many times the shortest one's before a flat tail is odd.
const BULK_GROWS: f64 = 4.0;
/// A tail within this factor of the shortest bucket's does not grow.
const TAIL_FLAT: f64 = 1.5;
/// Two buckets make a line if the longer is at least this many times the shorter.
const LEVER: f64 = 2.0;

/// Quantiles of the times of one bucket, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// Requests learned from.
    pub n: u64,
    /// One in twenty is faster.
    pub p05: f64,
    /// One in four is faster.
    pub p25: f64,
    /// Half are faster.
    pub p50: f64,
    /// One in twenty is slower.
    pub p95: f64,
}

impl Tail {
    /// The lower tail, without requests that cannot have been prefills of this length: `short` is
    /// the tail of the shortest prompts. With cache hits that nobody reports (`hits_known` false)
    /// fast requests are what one expects, and the tail is taken as it is.
    pub fn honest(&self, short: &Tail, hits_known: bool) -> f64 {
        let flat = |value: f64| value <= TAIL_FLAT * short.p05;
        let grows = |value: f64, base: f64| value >= BULK_GROWS * base;
        if !hits_known || !flat(self.p05) {
            return self.p05;
        }
        if grows(self.p25, short.p25) {
            return self.p25;
        }
        if grows(self.p50, short.p50) && flat(self.p25) {
            return self.p50;
        }
        self.p05
    }
}

/// What a floor rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Basis {
    /// This many requests of about the same length.
    Own(u64),
    /// A line through two shorter buckets.
    Slope {
        /// The shorter.
        from: Bucket,
        /// The longer.
        to: Bucket,
    },
}

/// The least time of a prefill, as far as it was learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// In seconds.
    pub seconds: f64,
    /// What it rests on.
    pub basis: Basis,
}

/// Buckets of one series that have learned enough.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    tails: BTreeMap<Bucket, Tail>,
    hits_known: bool,
}

impl Learned {
    /// From tails that have learned enough; `hits_known` says whether cached tokens are reported.
    pub fn new(tails: BTreeMap<Bucket, Tail>, hits_known: bool) -> Self {
        Self { tails, hits_known }
    }

    /// The tails.
    pub fn tails(&self) -> &BTreeMap<Bucket, Tail> {
        &self.tails
    }

    /// The least time of a prefill of this many tokens; `None` while there is too little to say.
    pub fn floor(&self, tokens: u64) -> Option<Floor> {
        let bucket = Bucket::of(tokens);
        let own = self.tails.get(&bucket).map(|tail| Floor {
            seconds: self.honest(tail),
            basis: Basis::Own(tail.n),
        });
        let slope = self.slope(bucket, tokens);
        let mut floor = match (own, slope) {
            // A bucket that learned nothing but skipped prefills is far below the line.
            (Some(own), Some(slope)) if own.seconds < slope.seconds * 0.25 => slope,
            (own, slope) => own.or(slope)?,
        };
        // Attention is quadratic, and nothing grows faster: what is above that has waited.
        let (shortest, short) = self.tails.first_key_value()?;
        let longer = (tokens as f64 / shortest.low()).max(1.0);
        floor.seconds = floor.seconds.min(short.p05 * longer * longer);
        Some(floor)
    }

    /// The tokens from which an answer as fast as those to the shortest prompts would be seen at
    /// this tolerance; where those that were learned are all too short, by the line through them.
    /// `None`: at no length.
    pub fn sees_from(&self, tolerance: f64) -> Option<u64> {
        let short = self.tails.values().next()?;
        let seen = |bucket: &Bucket| {
            let tokens = bucket.low().ceil() as u64;
            let floor = self.floor(tokens)?;
            (floor.seconds * tolerance > short.p95).then_some(tokens)
        };
        let learned = self.tails.keys().rev().map_while(seen).last();
        let (longest, _) = self.tails.last_key_value()?;
        learned.or_else(|| longest.longer().find_map(|it| seen(&it)))
    }

    fn honest(&self, tail: &Tail) -> f64 {
        match self.tails.values().next() {
            Some(short) => tail.honest(short, self.hits_known),
            None => tail.p05,
        }
    }

    /// A line through the longest shorter bucket and the shortest one far enough below it. Only
    /// those count that make time grow: a bucket of nothing but skipped prefills is passed over.
    fn slope(&self, bucket: Bucket, tokens: u64) -> Option<Floor> {
        let shorter: Vec<_> = self.tails.range(..bucket).collect();
        let (from, first) = *shorter.first()?;
        let from = *from;
        // The middle of the shorter one against the tail of the longer: a queue, or a tail of few
        // requests, makes the line flatter, never steeper.
        let base = first.p50;
        let lever = |it: &&(&Bucket, &Tail)| it.0.low() >= LEVER * from.low();
        let mut candidates = shorter.iter().rev().filter(lever).map(|(to, tail)| {
            let seconds = self.honest(tail);
            let slope = (seconds - base) / (to.low() - from.low());
            // From the end of the bucket on, so that its width does not count twice.
            let further = (tokens as f64 - to.high()).max(0.0);
            let seconds = seconds + slope.max(0.0) * further;
            let to = **to;
            Floor {
                seconds,
                basis: Basis::Slope { from, to },
            }
        });
        let nearest = candidates.next()?;
        // Of what the shorter ones say, the largest is still below the truth: each is a floor.
        Some(candidates.fold(nearest, |best, it| {
            if it.seconds * 0.25 > best.seconds {
                it
            } else {
                best
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(n: u64, p05: f64, p25: f64, p50: f64) -> Tail {
        let p95 = p50 * 2.0;
        Tail {
            n,
            p05,
            p25,
            p50,
            p95,
        }
    }

    /// An engine with 20 ms of overhead and 1 ms a token.
    fn engine(lengths: &[u64]) -> Learned {
        let at = |n: &u64| {
            let best = 0.02 + 0.001 * *n as f64;
            (Bucket::of(*n), tail(500, best, best * 1.2, best * 1.5))
        };
        Learned::new(lengths.iter().map(at).collect(), true)
    }

    #[test]
    fn the_own_bucket_speaks_first() {
        let floor = engine(&[16, 64, 256, 1024]).floor(1024).unwrap();
        assert_eq!(floor.basis, Basis::Own(500));
        assert!((floor.seconds - 1.044).abs() < 1e-9);
    }

    #[test]
    fn longer_prompts_than_any_have_a_floor_below_the_truth_and_near_it() {
        let floor = engine(&[16, 64, 256, 1024]).floor(8192).unwrap();
        let truth = 0.02 + 8.192;
        assert!(matches!(floor.basis, Basis::Slope { .. }));
        assert!(floor.seconds < truth, "{floor:?}");
        assert!(floor.seconds > 0.85 * truth, "{floor:?}");
    }

    #[test]
    fn a_wait_that_all_of_one_length_had_is_no_floor() {
        let mut tails = engine(&[16, 64, 256]).tails().clone();
        tails.insert(Bucket::of(24), tail(500, 3.0, 4.0, 5.0));
        let floor = Learned::new(tails, true).floor(24).unwrap();
        assert!(floor.seconds < 0.1, "{floor:?}");
    }

    #[test]
    fn one_bucket_says_nothing_about_longer_ones() {
        assert_eq!(engine(&[256]).floor(8192), None);
        assert_eq!(engine(&[]).floor(8192), None);
    }

    #[test]
    fn a_bucket_of_skipped_prefills_does_not_set_its_own_floor() {
        let mut tails = engine(&[16, 64, 256, 1024]).tails().clone();
        tails.insert(Bucket::of(4096), tail(500, 0.03, 0.031, 0.035));
        let floor = Learned::new(tails.clone(), true).floor(4096).unwrap();
        assert!(floor.seconds > 3.0, "{floor:?}");
        // Nor that of longer ones.
        let floor = Learned::new(tails, true).floor(16384).unwrap();
        assert!(floor.seconds > 10.0, "{floor:?}");
    }

    #[test]
    fn one_skipped_prefill_in_ten_at_every_length_is_not_taken_for_the_tail() {
        let mut tails = engine(&[16]).tails().clone();
        for n in [256_u64, 1024, 4096] {
            let best = 0.02 + 0.001 * n as f64;
            let bucket = Bucket::of(n);
            tails.insert(bucket, tail(500, 0.036, best * 1.1, best * 1.4));
        }
        let known = Learned::new(tails.clone(), true).floor(4096).unwrap();
        assert!(known.seconds > 4.0, "{known:?}");
        // Where hits are not reported, the same is what a prefix cache looks like.
        let unknown = Learned::new(tails, false).floor(4096).unwrap();
        assert!(unknown.seconds < 0.04, "{unknown:?}");
    }

    #[test]
    fn a_queue_that_slows_the_bulk_of_all_lengths_is_no_contamination() {
        let short = tail(500, 0.03, 0.9, 1.5);
        let long = tail(500, 0.04, 1.0, 1.6);
        assert_eq!(long.honest(&short, true), 0.04);
    }

    #[test]
    fn says_from_which_length_on_it_sees() {
        let from = engine(&[16, 64, 256, 1024, 4096]).sees_from(0.5).unwrap();
        assert!((64..=256).contains(&from), "{from}");
        assert_eq!(engine(&[16]).sees_from(0.5), None);
        // Learned are two short lengths only. Of 0.5 s twice as much is what 784 tokens take.
        let mut tails = BTreeMap::from([(Bucket::of(16), tail(500, 0.2, 0.25, 0.25))]);
        tails.insert(Bucket::of(256), tail(500, 0.5, 0.65, 0.7));
        let from = Learned::new(tails.clone(), false).sees_from(0.5).unwrap();
        assert!((784..950).contains(&from), "{from}");
        // Length makes no difference: nothing is ever seen.
        tails.insert(Bucket::of(256), tail(500, 0.25, 0.25, 0.25));
        assert_eq!(Learned::new(tails, false).sees_from(0.5), None);
    }
}
