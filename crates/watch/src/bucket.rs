//! Prompt lengths in buckets: four to each doubling, so that lengths in one bucket differ by less
//! than a fifth and 2^40 tokens are 160 buckets.

use serde::{Deserialize, Serialize};

/// Buckets to a doubling of the length.
const PER_DOUBLING: f64 = 4.0;

/// A range of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bucket(pub u16);

impl Bucket {
    /// The bucket of a length in tokens; 0 counts as 1.
    pub fn of(tokens: u64) -> Self {
        let doublings = (tokens.max(1) as f64).log2();
        // A hair added, so that exact powers of two begin a bucket in floating point too.
        Self((doublings * PER_DOUBLING + 1e-9).floor() as u16)
    }

    /// The shortest length in it, in tokens (a real number: bounds need not be whole).
    pub fn low(self) -> f64 {
        (f64::from(self.0) / PER_DOUBLING).exp2()
    }

    /// The longer ones, up to sixteen million tokens.
    pub fn longer(self) -> impl Iterator<Item = Self> {
        (self.0 + 1..=Self::of(1 << 24).0).map(Self)
    }

    /// The length at which the next begins.
    pub fn high(self) -> f64 {
        Self(self.0 + 1).low()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_length_lies_in_its_bucket(tokens in 1_u64..1 << 40) {
            let bucket = Bucket::of(tokens);
            let tokens = tokens as f64;
            prop_assert!(bucket.low() <= tokens * (1.0 + 1e-9));
            prop_assert!(tokens < bucket.high() * (1.0 + 1e-9));
            prop_assert!(bucket.high() / bucket.low() < 1.2);
        }
    }

    #[test]
    fn a_doubling_is_four_buckets() {
        assert_eq!(Bucket::of(0), Bucket(0));
        assert_eq!(Bucket::of(1024).0 - Bucket::of(512).0, 4);
        assert_eq!(Bucket::of(1 << 40), Bucket(160));
    }
}
