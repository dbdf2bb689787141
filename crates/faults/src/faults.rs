//! Which faults are injected, how often, and exactly when: a function of the seed.

use super::dice::Dice;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// Declares the kinds once: the enum, the names that are typed, what each does.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($(#[doc = $doc])+ $variant,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The name that is typed.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// What it does, in a sentence.
            pub fn what(self) -> &'static str {
                match self { $(Kind::$variant => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

kinds! {
    /// A batch of pages is written a while after it was submitted.
    DelayWrite = "delay-write",
    /// The pages of a batch are written one by one, in another order, with pauses.
    Reorder = "reorder",
    /// A batch is reported as failed and lands afterwards.
    Late = "late",
    /// One bit of a page is another one when it lands.
    Corrupt = "corrupt",
    /// A page of a batch never lands, and the batch is reported as landed.
    Drop = "drop",
    /// A batch that has landed lands again a while later.
    Duplicate = "duplicate",
    /// Half of a batch is written; the other half when the board says so.
    Half = "half",
    /// The data connection is cut: nothing that is submitted lands any more.
    CutWrites = "cut-writes",
    /// Prefill offers another prompt than the gateway has announced.
    WrongTokens = "wrong-tokens",
    /// A page is stated with a tag that was not granted.
    WrongTag = "wrong-tag",
    /// Two pages are stated in each other's place.
    WrongOrder = "wrong-order",
    /// A page is stated with fewer tokens than it has.
    WrongFill = "wrong-fill",
    /// A page is stated with another checksum.
    WrongChecksum = "wrong-checksum",
    /// A page is stated twice.
    PageTwice = "page-twice",
    /// A slot is stated twice.
    BadBatch = "bad-batch",
    /// The last page of the prompt is never stated, and not counted.
    MissingPage = "missing-page",
    /// The certificate counts a page less than was stated.
    ShortCount = "short-count",
    /// The first token is no token.
    FirstToken = "first-token",
    /// A batch is stated in another arena.
    WrongArena = "wrong-arena",
    /// A control connection is cut between two messages.
    Cut = "cut",
    /// A message waits; what comes behind it waits too.
    Slow = "slow",
    /// A statement is made twice, as after a reconnect.
    Repeat = "repeat",
    /// What was stated to an earlier life of decode, certificate included, is stated to this one.
    Replay = "replay",
    /// A check of a block table in decode finds what is not there.
    StepCheck = "step-check",
    /// The gateway's machine panics when it is asked whether a request fits.
    GatewayPanic = "gateway-panic",
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Kind::ALL.iter().find(|kind| kind.name() == name);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            format!("{name:?} is no fault; there are {}", names.join(", "))
        })
    }
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many in a thousand opportunities.
    PerMille(u64),
    /// At this opportunity of each life, counted from 1, and at no other.
    Nth(u64),
}

/// `corrupt=5,late@3`: five in a thousand, and the third opportunity of each life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec(BTreeMap<Kind, Rate>);

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = BTreeMap::new();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let wrong = || format!("{item:?} is neither NAME=PER-MILLE nor NAME@N");
            let (name, rate) = match (item.split_once('='), item.split_once('@')) {
                (Some((name, n)), _) => (name, n.parse().map(Rate::PerMille)),
                (_, Some((name, n))) => (name, n.parse().map(Rate::Nth)),
                _ => return Err(wrong()),
            };
            spec.insert(name.parse()?, rate.map_err(|_| wrong())?);
        }
        Ok(Self(spec))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (kind, rate)) in self.0.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match rate {
                Rate::PerMille(rate) => write!(f, "{comma}{}={rate}", kind.name())?,
                Rate::Nth(nth) => write!(f, "{comma}{}@{nth}", kind.name())?,
            }
        }
        Ok(())
    }
}

/// Decides at every opportunity of one process. What it decides at the n-th opportunity of a kind
/// depends on seed, role, kind and n alone, so that a seed is a schedule.
#[derive(Debug)]
pub(crate) struct Schedule {
    spec: Spec,
    seed: u64,
    seen: Mutex<BTreeMap<Kind, u64>>,
}

impl Schedule {
    /// For one process of this role.
    pub(crate) fn new(spec: Spec, seed: u64, role: &str) -> Self {
        let role = role
            .bytes()
            .fold(0, |sum, byte| sum * 131 + u64::from(byte));
        Self {
            spec,
            seed: seed ^ role << 32,
            seen: Mutex::default(),
        }
    }

    /// Whether the fault strikes here; then dice for its details.
    pub(crate) fn strikes(&self, kind: Kind) -> Option<Dice> {
        let rate = *self.spec.0.get(&kind)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let n = seen.entry(kind).or_default();
        *n += 1;
        let mut dice = Dice::new(self.seed ^ (kind as u64) << 24 ^ *n);
        let hit = match rate {
            Rate::PerMille(rate) => dice.below(1000) < rate,
            Rate::Nth(nth) => *n == nth,
        };
        if hit {
            eprintln!("fault {} at its opportunity {n}", kind.name());
        }
        hit.then_some(dice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_what_is_meant() {
        let spec: Spec = "corrupt=5,late@3".parse().unwrap();
        assert_eq!(spec.to_string(), "late@3,corrupt=5");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        for wrong in ["corrupt", "corrupt=", "corupt=1", "late@x"] {
            assert!(wrong.parse::<Spec>().is_err(), "{wrong}");
        }
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(*kind));
            assert!(kind.what().ends_with('.'));
        }
    }

    #[test]
    fn a_seed_is_a_schedule() {
        let spec: Spec = "corrupt=100,late@3".parse().unwrap();
        let run = |seed| {
            let schedule = Schedule::new(spec.clone(), seed, "prefill");
            let hit = |kind| (0..200).map(|_| schedule.strikes(kind).is_some()).collect();
            let both: [Vec<bool>; 2] = [hit(Kind::Corrupt), hit(Kind::Late)];
            both
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7)[0], run(8)[0]);
        let hits = |hit: &[bool]| hit.iter().filter(|hit| **hit).count();
        assert!((5..50).contains(&hits(&run(7)[0])), "{}", hits(&run(7)[0]));
        assert_eq!(run(7)[1].iter().position(|hit| *hit), Some(2));
        assert_eq!(hits(&run(7)[1]), 1);
    }
}
