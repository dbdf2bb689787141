//! How likely it is that a text holds words of a canary by chance, and from when on that convicts.
//!
//! Canaries are drawn evenly and are secret, so k given words stand at a given place of a text that
//! does not depend on them with probability 2048^-k. What was looked at makes an expectation E of
//! such runs; m of them, of different requests, whose words are drawn independently, come about with
//! a probability of at most E^m / m!. They convict when that falls below their share of
//! [`CHANCE_MAX`]. The shares of all (k, m, depth, class) add up to less than it, and a run counts
//! with what had been looked at when it was seen: so whatever a run of the probe convicts of, it does
//! wrongly with a probability below [`CHANCE_MAX`].

use crate::canary::Author;
use std::collections::BTreeMap;

/// A conviction by words must be less likely by chance than this in a whole run.
pub const CHANCE_MAX: f64 = 1e-12;
/// From here on a run of words is said, though it does not convict.
const WORTH: f64 = 1e-6;
/// Fewer words in a row are not looked at.
pub const LEAST: usize = 4;
/// From so many on runs count alike.
const MOST: usize = 16;
/// Depths, classes and lengths have the same share.
const SHARES: f64 = (3 * 2 * (MOST - LEAST + 1)) as f64;

/// How a text was read when words were found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Words one after the other.
    Plain,
    /// Every second, third or fourth word, or from the end.
    Spaced,
    /// Letters one after the other, shifted or turned around: joined, hyphenated, decoded.
    Letters,
}

/// All of them.
pub const DEPTHS: [Depth; 3] = [Depth::Plain, Depth::Spaced, Depth::Letters];

impl Depth {
    /// Bits that a word in a row adds. Letters can be read as words in two ways each, at most: no
    /// two words of the list have the same first four letters, some have three.
    fn bits(self) -> f64 {
        match self {
            Depth::Plain | Depth::Spaced => 11.0,
            Depth::Letters => 10.0,
        }
    }
}

/// Whose words were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Another tenant's.
    Foreign,
    /// Those of another request of the same tenant.
    Own,
}

/// Places that were looked at: in canaries, in texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In canaries.
    pub canaries: u64,
    /// In texts.
    pub texts: u64,
}

impl Places {
    /// Runs of `k` words that chance makes, at most.
    fn expected(self, depth: Depth, k: usize) -> f64 {
        let pairs = self.canaries as f64 * self.texts as f64;
        pairs * (-depth.bits() * k as f64).exp2()
    }

    /// The smallest number of runs of `k` words that convicts, and its chance.
    pub fn convicts(self, depth: Depth, k: usize) -> (u32, f64) {
        let expected = self.expected(depth, k);
        let mut m = 1;
        loop {
            let chance = of_so_many(expected, m);
            if chance < CHANCE_MAX / SHARES * 0.5_f64.powi(m as i32) || m >= 64 {
                return (m, chance);
            }
            m += 1;
        }
    }

    /// The fewest words of which one run is enough.
    pub fn alone(self, depth: Depth) -> usize {
        let enough = |k: &usize| self.convicts(depth, *k).0 == 1;
        (LEAST..=MOST).find(enough).unwrap_or(MOST + 1)
    }

    /// The chance of any wrong conviction at this depth, with what has been looked at.
    pub fn chance(self, depth: Depth) -> f64 {
        let each = (LEAST..=MOST).map(|k| self.convicts(depth, k));
        each.map(|(m, chance)| if m >= 64 { 0.0 } else { chance })
            .sum()
    }
}

/// The chance of at least `m` independent events of which so many are expected.
fn of_so_many(expected: f64, m: u32) -> f64 {
    let logs: f64 = (1..=m).map(|n| (expected / f64::from(n)).ln()).sum();
    logs.exp().min(1.0)
}

/// The longest run of every request whose words were found where they do not belong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    longest: BTreeMap<(Class, Depth, Author), usize>,
    /// The fewest words that convict, since they first did.
    since: BTreeMap<(Class, Depth), usize>,
}

impl Evidence {
    /// Adds a run, seen when so much had been looked at. Says whether shorter runs convict now
    /// than before.
    pub fn add(
        &mut self,
        (class, depth): (Class, Depth),
        author: Author,
        words: usize,
        places: Places,
    ) -> bool {
        let longest = self.longest.entry((class, depth, author)).or_default();
        *longest = words.max(*longest);
        let convicts = (LEAST..=MOST).find(|k| {
            let n = self.at_least((class, depth), *k);
            n >= places.convicts(depth, *k).0
        });
        let Some(k) = convicts else { return false };
        let since = self.since.entry((class, depth)).or_insert(usize::MAX);
        let lower = k < *since;
        *since = k.min(*since);
        lower
    }

    fn at_least(&self, (class, depth): (Class, Depth), k: usize) -> u32 {
        let all = self.longest.iter();
        let those = all.filter(|((c, d, _), words)| (*c, *d) == (class, depth) && **words >= k);
        those.count() as u32
    }

    /// Whether a run of so many words convicts.
    pub fn convicts(&self, of: (Class, Depth), words: usize) -> bool {
        self.since.get(&of).is_some_and(|k| words >= *k)
    }

    /// The chance of what was found of this class and depth, where it is worth a look: of the
    /// number of runs, at the length at which it is least.
    pub fn chance(&self, of: (Class, Depth), places: Places) -> Option<f64> {
        let each = (LEAST..=MOST).filter_map(|k| match self.at_least(of, k) {
            0 => None,
            n => Some(of_so_many(places.expected(of.1, k), n)),
        });
        each.reduce(f64::min).filter(|it| *it < WORTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::Tenant;

    const RUN: Places = Places {
        canaries: 29_385,
        texts: 9_466,
    };

    fn author(request: u32) -> Author {
        let tenant = Tenant(0);
        Author { tenant, request }
    }

    #[test]
    fn seven_words_convict_in_a_small_run_and_nine_in_the_largest() {
        assert_eq!(RUN.alone(Depth::Plain), 7);
        let (m, chance) = RUN.convicts(Depth::Plain, 7);
        assert!(m == 1 && (1.5e-15..2.5e-15).contains(&chance), "{chance}");
        let largest = Places {
            canaries: 20_000_000,
            texts: 20_000_000,
        };
        assert_eq!(largest.alone(Depth::Plain), 9);
    }

    #[test]
    fn fewer_words_convict_by_number_and_those_of_one_request_count_once() {
        let of = (Class::Foreign, Depth::Plain);
        let mut evidence = Evidence::default();
        for _ in 0..100 {
            assert!(!evidence.add(of, author(0), 5, RUN));
        }
        assert!(!evidence.convicts(of, 5));
        assert!(evidence.chance(of, RUN).is_some_and(|it| it < 1e-8));
        // 8e-9 each: two of them are 3e-17.
        assert!(evidence.add(of, author(1), 5, RUN));
        assert!(evidence.convicts(of, 5) && !evidence.convicts(of, 4));
        assert!(!evidence.convicts((Class::Own, Depth::Plain), 9));
    }

    #[test]
    fn four_words_once_are_nothing() {
        let mut evidence = Evidence::default();
        let of = (Class::Foreign, Depth::Plain);
        evidence.add(of, author(0), 4, RUN);
        assert_eq!(evidence.chance(of, RUN), None);
    }

    /// By construction, however much is looked at.
    #[test]
    fn the_chance_of_a_wrong_conviction_stays_below_its_bound() {
        for n in 0..40 {
            let places = Places {
                canaries: 1 << n,
                texts: 3 << n,
            };
            let all: f64 = DEPTHS.iter().map(|it| places.chance(*it)).sum();
            assert!(2.0 * all < CHANCE_MAX, "{n}: {all}");
        }
    }
}
