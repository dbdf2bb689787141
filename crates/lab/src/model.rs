//! What an explorer needs to know of a world, and what a step has to say.
//!
//! The explorers know nothing of pages or handoffs; the world knows nothing of queues, hashes or
//! fixpoints. This page is all that they share.

use crate::encode::Canonical;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::{Debug, Display};

/// A world that can be explored.
pub trait Model: Sync {
    /// A whole world. Not `Clone`: the ledgers in it are linear, it is forked.
    type State: Send + Sync;
    /// One thing that may happen next.
    type Act: Clone + Debug + Display + PartialEq + Serialize + DeserializeOwned + Send + Sync;

    /// The world in which exploration begins, and what was noted on the way there.
    fn initial(&self) -> (Self::State, Notes);

    /// Everything that may happen next, always in the same order.
    fn acts(&self, state: &mut Self::State, out: &mut Vec<Self::Act>);

    /// What the passing of time brings about where nothing but time can bring anything about: any
    /// deadline. Explorers do not ask, there a deadline is a fault; a run that goes on for thousands
    /// of steps has to let time pass. Empty as long as anything else may happen without a fault.
    fn overdue(&self, _: &mut Self::State, _: &mut Vec<Self::Act>) {}

    /// Whether it is a fault: progress (H-11) may not count on it.
    fn is_fault(&self, act: &Self::Act) -> bool;

    /// Lets it happen, and judges what happened. Violations and situations go to `notes`.
    fn apply(&self, state: &mut Self::State, act: &Self::Act, notes: &mut Notes);

    /// Judges where it has led: what must hold in every world, however it came about. An explorer
    /// that finds a world it knows has the verdict already.
    fn judge(&self, _: &Self::State, _: &mut Notes) {}

    /// Lets it happen, and judges both.
    fn step(&self, state: &mut Self::State, act: &Self::Act, notes: &mut Notes) {
        self.apply(state, act, notes);
        self.judge(state, notes);
    }

    /// An equal world.
    fn fork(&self, state: &mut Self::State) -> Self::State;

    /// Whether nothing is going on: every request ended, every page back (H-10, H-11).
    fn at_rest(&self, state: &mut Self::State) -> bool;

    /// The clause that a world breaks from which rest cannot be reached.
    fn progress(&self) -> &'static str {
        "H-11"
    }

    /// Canonical bytes: equal for equal worlds, up to the names of tags, ids and epochs.
    /// The world serializes itself and calls [`Canonical::value`] once.
    fn encode(&self, state: &Self::State, out: &mut Canonical);

    /// What a step did, for a reader: who did what, which page, which tag, what was in it, whose it
    /// was. A line each, `who: what` with one word for who (`A`, `gateway`, `P0`, `fabric`, `D0`),
    /// which is its lane; a line without it goes on about the one before.
    fn describe(
        &self,
        before: &mut Self::State,
        act: &Self::Act,
        after: &mut Self::State,
    ) -> Vec<String>;
}

/// What happened on a step that is no part of the state: interesting situations, the clauses that
/// were judged, and the first one that was broken.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Interesting situations, each once, by their names in [`crate::situations`].
    pub seen: Vec<&'static str>,
    /// Clauses that were evaluated, on something that they speak about.
    pub checked: Clauses,
    /// The first clause that does not hold.
    pub violation: Option<Violation>,
    /// What was done, a line each, if anybody listens ([`Notes::listening`]).
    pub told: Option<Vec<String>>,
}

/// A clause that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// `H-…`, or `DR-…` of the door, as in their specifications.
    pub clause: &'static str,
    /// What is wrong, with expected and got.
    pub what: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.clause, self.what)
    }
}

impl Notes {
    /// Notes that also keep what was done.
    pub fn listening() -> Self {
        Self {
            told: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Something was done.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(told) = &mut self.told {
            told.push(line());
        }
    }

    /// An interesting situation.
    pub fn saw(&mut self, situation: &'static str) {
        if !self.seen.contains(&situation) {
            self.seen.push(situation);
        }
    }

    /// The clause was evaluated here; `holds` is the verdict. The first violation stays.
    pub fn check(&mut self, clause: &'static str, holds: bool, what: impl FnOnce() -> String) {
        self.checked.insert(clause);
        if !holds && self.violation.is_none() {
            self.violation = Some(Violation {
                clause,
                what: what(),
            });
        }
    }

    /// The clause is broken.
    pub fn violates(&mut self, clause: &'static str, what: impl Into<String>) {
        self.check(clause, false, || what.into());
    }

    /// Forgets everything, for the next step.
    pub fn clear(&mut self) {
        self.seen.clear();
        self.checked = Clauses::default();
        self.violation = None;
        self.told = None;
    }
}

/// The clauses that there are, in the specifications' order: those of the handoff, those of the door.
pub const CLAUSES: [&str; 31] = [
    "H-1", "H-2", "H-3", "H-5", "H-6", "H-7", "H-8", "H-9", "H-10", "H-11", "H-13", "H-14", "H-15",
    "H-16", "H-17", "H-18", "H-19", "H-20", "DR-1", "DR-2", "DR-3", "DR-4", "DR-5", "DR-6", "DR-7",
    "DR-8", "DR-9", "DR-10", "DR-11", "DR-12", "DR-13",
];

/// A set of clauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clauses(u64);

impl Clauses {
    /// Adds one; an unknown name is a bug in a property.
    #[inline]
    pub fn insert(&mut self, clause: &'static str) {
        self.0 |= 1 << number(clause);
        debug_assert!(CLAUSES.contains(&clause), "no clause of the specification");
    }

    /// Those in it, in order.
    pub fn iter(self) -> impl Iterator<Item = &'static str> {
        CLAUSES
            .into_iter()
            .filter(move |clause| self.0 & (1 << number(clause)) != 0)
    }

    /// Both together.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// `H-7` is 7, `DR-7` is 39. Clauses are judged dozens of times on every step, so nothing is searched
/// for.
#[inline]
fn number(clause: &str) -> u8 {
    let (first, skipped) = match clause.as_bytes()[0] {
        b'H' => (0, 2),
        _ => (32, 3),
    };
    let digits = clause.bytes().skip(skipped);
    first + digits.fold(0, |number, digit| number * 10 + (digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clause_has_a_number_of_its_own() {
        let mut all = Clauses::default();
        CLAUSES.iter().for_each(|clause| all.insert(clause));
        assert!(all.iter().eq(CLAUSES));
        assert_eq!(all.0.count_ones() as usize, CLAUSES.len());
    }

    #[test]
    fn the_first_violation_stays_and_every_clause_is_counted() {
        let mut notes = Notes::default();
        notes.check("H-10", true, || unreachable!());
        notes.violates("H-1", "first");
        notes.violates("H-2", "second");
        let checked: Vec<_> = notes.checked.iter().collect();
        assert_eq!(checked, ["H-1", "H-2", "H-10"]);
        assert_eq!(notes.violation.unwrap().to_string(), "H-1: first");
    }
}
