//! Defects that let text through or make an answer wrong on the engine as it runs, and the suites
//! that are run against each.

use crate::defects::admission::{ClientId, LengthFromPrefill, NobodyYields, Truncates};
use crate::defects::arrival::{NotCompared, NotLookedAt, Overtakes, SubmittedIsLanded};
use crate::defects::release::PinsDoNotCount;
use crate::defects::safeguards::{
    NoExpect, NoFill, NoNewNumber, NoSealGuard, NoStepCheck, NoTicketCount,
};
use crate::defects::swap::Swap;
use handoff::{Capacity, Limit, Rejection, Role, Sound, Spec};
use probe::Kind;
use probe::suites::Suite;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One defect, as it is put into the engine.
pub(super) struct Case {
    /// As in `docs/defects.md`.
    pub id: &'static str,
    /// In a few words.
    pub what: &'static str,
    /// Decisions that are swapped: the defect's, and those that would stop it.
    pub swaps: &'static [&'static dyn Swap],
    /// Whether prefill's pool is smaller than the context, as in the incident.
    pub edge: bool,
    /// Whether prefixes are kept.
    pub cache: bool,
    /// What the run looks for: a finding at least as bad as this.
    pub until: Kind,
    /// What the probe runs, in order, until it finds it.
    pub suites: &'static [Suite],
}

/// A worker starts with a pool that cannot hold its context.
#[derive(Debug)]
struct NoStart;

impl Swap for NoStart {
    fn carries(&self, _: u64, _: u32) -> bool {
        true
    }
}

/// Decode's pool and the advertised context are all that the edge knows.
#[derive(Debug)]
struct NoEdge;

impl Swap for NoEdge {
    fn limit_of_pair(&self, _: Capacity, decode: Capacity) -> Limit {
        let role = Role::Prefill;
        handoff::Decisions::limit_of_pair(Sound, Capacity { role, ..decode }, decode)
    }
}

/// D-01's placeholder as the incident's engine makes it: a control token, nothing of the prompt.
#[derive(Debug)]
struct ControlToken;

impl Swap for ControlToken {
    fn admit_prompt(&self, capacity: &Capacity, mut spec: Spec) -> Result<Spec, Rejection> {
        if handoff::Decisions::admit_prompt(Sound, capacity, spec.clone()).is_err() {
            spec.tokens = vec![0];
        }
        Ok(spec)
    }
}

/// A handoff commits when its writers say that all is sent, and waits for no copy.
#[derive(Debug)]
struct CommitsAtOnce;

impl Swap for CommitsAtOnce {
    fn may_commit(&self, closed: &[bool], _: usize) -> bool {
        closed.iter().all(|closed| *closed)
    }
}

/// The mildest that convicts.
const ANYTHING: Kind = Kind::OpenControl;

/// Of the slots of a page that are filled, the second half is not sent.
#[derive(Debug)]
struct HalfSent;

impl Swap for HalfSent {
    fn sent_slots(&self, filled: u16, _: u16) -> u16 {
        filled.div_ceil(2)
    }
}

/// Now and then a batch completes that has written nothing: 16 pages of every 256. Counted through
/// all runs.
#[derive(Debug)]
struct LostBatch(AtomicU64);

static LOST_BATCH: LostBatch = LostBatch(AtomicU64::new(0));

impl Swap for LostBatch {
    fn sent_slots(&self, filled: u16, _: u16) -> u16 {
        match self.0.fetch_add(1, Relaxed) % 256 {
            0..16 => 0,
            _ => filled,
        }
    }
}

/// Suites that every engine must stand.
const ORDINARY: [Suite; 4] = [Suite::Load, Suite::Abort, Suite::Prefix, Suite::Churn];

/// The engine as it is shipped, with all suites that need no second worker's address.
pub(super) const NONE: Case = Case {
    id: "none",
    what: "nothing is swapped",
    swaps: &[],
    edge: false,
    cache: true,
    until: ANYTHING,
    suites: &[
        Suite::Boundary,
        Suite::Load,
        Suite::Stream,
        Suite::Abort,
        Suite::Prefix,
        Suite::Coherence,
        Suite::Control,
        Suite::Retry,
        Suite::Churn,
        Suite::Flood,
    ],
};

/// The incident's.
const INCIDENT: &[&dyn Swap] = &[
    &NoStart,
    &NoEdge,
    &ControlToken,
    &NoExpect,
    &NoTicketCount,
    &NoFill,
    &NotCompared,
];

/// The same door, at which prefill keeps what fits of a prompt: decode has reserved more.
const TRUNCATED: &[&dyn Swap] = &[
    &NoStart,
    &NoEdge,
    &Truncates,
    &NoExpect,
    &NoTicketCount,
    &NoFill,
    &NotCompared,
];

/// The defects.
pub(super) static ALL: [Case; 11] = [
    Case {
        id: "D-01",
        what: "a prompt that is too long becomes a placeholder, and nothing is counted",
        swaps: INCIDENT,
        edge: true,
        cache: false,
        until: ANYTHING,
        suites: &[Suite::Flood],
    },
    Case {
        id: "D-01",
        what: "the same, until text of another tenant's is seen",
        swaps: INCIDENT,
        edge: true,
        cache: false,
        until: Kind::Leak,
        suites: &[Suite::Flood],
    },
    Case {
        id: "D-02",
        what: "prefill truncates, and pages sent are not compared with pages reserved",
        swaps: TRUNCATED,
        edge: true,
        cache: false,
        until: ANYTHING,
        suites: &[Suite::Flood],
    },
    Case {
        id: "D-14",
        what: "prefill truncates, and decode learns the length from prefill",
        swaps: &[&NoStart, &NoEdge, &Truncates, &LengthFromPrefill, &NoExpect],
        edge: true,
        cache: false,
        until: ANYTHING,
        suites: &[Suite::Boundary],
    },
    Case {
        id: "D-22",
        what: "\"all is sent\" overtakes the data, and is believed: nothing is compared or waited for",
        swaps: &[
            &Overtakes,
            &NotCompared,
            &CommitsAtOnce,
            &NoSealGuard,
            &NoStepCheck,
        ],
        edge: false,
        cache: false,
        until: ANYTHING,
        suites: &ORDINARY,
    },
    Case {
        id: "D-03",
        what: "16 pages of 256 are not written, complete all the same, and nobody looks at the bytes",
        swaps: &[&LOST_BATCH, &NotLookedAt],
        edge: false,
        cache: false,
        until: ANYTHING,
        suites: &ORDINARY,
    },
    Case {
        id: "D-03",
        what: "half of every page is sent, and nobody looks at the bytes",
        swaps: &[&HalfSent, &NotLookedAt, &NoFill],
        edge: false,
        cache: false,
        until: ANYTHING,
        suites: &ORDINARY,
    },
    Case {
        id: "D-10",
        what: "an attempt's number is made from the prompt, and taken again",
        swaps: &[&ClientId, &NoNewNumber],
        edge: false,
        cache: false,
        until: ANYTHING,
        suites: &ORDINARY,
    },
    Case {
        id: "D-09",
        what: "a batch is taken for landed before it has, and nobody looks at the bytes",
        swaps: &[&SubmittedIsLanded, &NotLookedAt],
        edge: false,
        cache: false,
        until: ANYTHING,
        suites: &ORDINARY,
    },
    Case {
        id: "D-27",
        what: "a cached page is evicted while somebody has it, and no step looks",
        swaps: &[&PinsDoNotCount, &NoStepCheck],
        edge: false,
        cache: true,
        until: ANYTHING,
        suites: &ORDINARY,
    },
    Case {
        id: "D-23",
        what: "a sequence waits for pages while it holds others, and nobody is put back",
        swaps: &[&NobodyYields],
        edge: false,
        cache: false,
        until: ANYTHING,
        suites: &ORDINARY,
    },
];
