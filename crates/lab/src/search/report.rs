//! What a search may take, and what it says at the end.

use crate::encode::Canonical;
use crate::model::{CLAUSES, Clauses, Notes, Violation};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a search may take. Beyond it, it stops and says so: what was not explored is not claimed.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Distinct worlds.
    pub states: usize,
    /// Resident memory of the process, in bytes.
    pub resident: u64,
    /// Resident memory beyond which worlds are not kept alive but made again, which costs time and
    /// changes nothing in the result.
    pub keep: u64,
    /// Wall-clock time.
    pub time: Duration,
    /// Whether worlds are one that differ only in which page of a pool is which. See
    /// [`crate::encode::Canonical::symmetric`].
    pub symmetry: bool,
    /// Threads. They change nothing in the result.
    pub threads: usize,
}

impl Limits {
    /// With at most so much memory, if that is less.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        let resident = self.resident.min(bytes);
        Self {
            resident,
            keep: resident / 3 * 2,
            ..self
        }
    }

    /// How worlds are written in a search like this.
    pub(super) fn canonical(&self) -> Canonical {
        if self.symmetry {
            Canonical::symmetric()
        } else {
            Canonical::parted()
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            states: u32::MAX as usize / 2,
            resident: 12 << 30,
            keep: 8 << 30,
            time: Duration::from_secs(30 * 60),
            symmetry: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// How it goes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Distinct worlds.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Steps from the first world to those that are being expanded.
    pub depth: usize,
    /// Worlds that are not expanded yet.
    pub queue: usize,
    /// Since the beginning.
    pub elapsed: Duration,
    /// Resident memory, in bytes.
    pub resident: u64,
}

/// Why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Everything that can be reached was explored.
    Complete,
    /// A clause does not hold.
    Violation,
    /// As many worlds as it might visit.
    States,
    /// As much memory as it might take.
    Memory,
    /// As much time as it might take.
    Time,
}

/// What was seen on the way.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Steps taken, also to worlds that were known.
    pub steps: u64,
    /// On how many steps each interesting situation was met.
    pub seen: BTreeMap<&'static str, u64>,
    in_steps: Vec<(Clauses, u64)>,
    in_states: Vec<(Clauses, u64)>,
}

impl Tally {
    pub(super) fn step(&mut self, notes: &Notes) {
        self.steps += 1;
        for situation in &notes.seen {
            *self.seen.entry(situation).or_default() += 1;
        }
        count(&mut self.in_steps, notes.checked, 1);
    }

    /// A world that was not known was entered by a step on which these were judged.
    pub(super) fn state(&mut self, checked: Clauses) {
        count(&mut self.in_states, checked, 1);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.steps += other.steps;
        for (situation, times) in other.seen {
            *self.seen.entry(situation).or_default() += times;
        }
        for (clauses, times) in other.in_steps {
            count(&mut self.in_steps, clauses, times);
        }
        for (clauses, times) in other.in_states {
            count(&mut self.in_states, clauses, times);
        }
    }

    /// In how many distinct worlds each clause was judged, and on how many steps; in the order of
    /// the specification. H-11 is judged over all of them together.
    pub fn clauses(&self) -> Vec<(&'static str, u64, u64)> {
        let of = |counts: &[(Clauses, u64)], clause| {
            let with = counts
                .iter()
                .filter(|(all, _)| all.iter().any(|c| c == clause));
            with.map(|(_, times)| times).sum()
        };
        let line = |clause| {
            (
                clause,
                of(&self.in_states, clause),
                of(&self.in_steps, clause),
            )
        };
        CLAUSES.into_iter().map(line).collect()
    }
}

fn count(counts: &mut Vec<(Clauses, u64)>, clauses: Clauses, times: u64) {
    match counts.iter_mut().find(|(known, _)| *known == clauses) {
        Some((_, count)) => *count += times,
        None => counts.push((clauses, times)),
    }
}

/// A way to a world in which a clause does not hold. None is shorter.
#[derive(Clone, Debug)]
pub struct Counterexample<A> {
    /// What does not hold.
    pub violation: Violation,
    /// The way, from the first world.
    pub acts: Vec<A>,
    /// H-11 only: how it goes on without faults, and does not reach rest.
    pub then: Vec<A>,
}

impl<A> Counterexample<A> {
    pub(super) fn at_once(violation: Violation) -> Self {
        let (acts, then) = (Vec::new(), Vec::new());
        Self {
            violation,
            acts,
            then,
        }
    }
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Report<A> {
    /// Why it ended.
    pub stop: Stop,
    /// Distinct worlds.
    pub states: usize,
    /// Steps from the first world to the farthest.
    pub depth: usize,
    /// Worlds at rest, or where the bound ends.
    pub rests: usize,
    /// Steps, situations and clauses.
    pub tally: Tally,
    /// What does not hold.
    pub violation: Option<Counterexample<A>>,
    /// Memory for each distinct world, in bytes: itself, the way to it, what is onward.
    pub bytes_per_state: f64,
    /// Resident memory at the end, where the system says it.
    pub resident: Option<u64>,
    /// Wall-clock time.
    pub elapsed: Duration,
}

impl<A> Report<A> {
    /// Whether everything was explored and every clause holds.
    pub fn holds(&self) -> bool {
        self.stop == Stop::Complete
    }
}

/// Resident memory of this process, where the system says it.
pub(super) fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
