//! Defects of release: what is taken for a proof that nobody can touch a page or a slot any more.

use super::swap::Swap;
use handoff::{ArenaId, Close, Closing, Evidence, Write};
use pages::{Pending, Reason};

fn proven(evidence: Evidence) -> bool {
    matches!(evidence, Evidence::Closed | Evidence::Fenced)
}

/// D-04. A time-out proves that the writer has stopped.
#[derive(Debug)]
pub struct DeadlineProves;

impl Swap for DeadlineProves {
    fn proves_gone(&self, evidence: Evidence) -> bool {
        proven(evidence) || evidence == Evidence::Deadline
    }
}

/// D-05. Pages are free when their owner ends, writes in flight or not.
#[derive(Debug)]
pub struct WritesDoNotCount;

impl Swap for WritesDoNotCount {
    fn waits_for(&self, pending: Pending) -> Option<Reason> {
        (pending.reads > 0).then_some(Reason::Operations)
    }
}

/// D-06. An abort is acknowledged at once, before what was submitted has drained.
#[derive(Debug)]
pub struct AcknowledgesBeforeDrain;

impl Swap for AcknowledgesBeforeDrain {
    fn may_close(&self, how: &Close, flying: usize) -> bool {
        flying == 0 || matches!(how, Close::Closed(Closing::Abandoned { .. }))
    }
}

/// D-08. Source pages are free when their owner ends, though they are still being sent or read.
#[derive(Debug)]
pub struct ReadsDoNotCount;

impl Swap for ReadsDoNotCount {
    fn waits_for(&self, pending: Pending) -> Option<Reason> {
        if pending.writes > 0 {
            Some(Reason::Operations)
        } else {
            (pending.writers > 0).then_some(Reason::Writers)
        }
    }
}

/// D-13. Slots of a write that failed are written again while it may still land.
#[derive(Debug)]
pub struct LostSlotsComeBack;

impl Swap for LostSlotsComeBack {
    fn frees_slots(&self, write: Write) -> bool {
        write != Write::Submitted
    }
}

/// D-19. A new life that says Hello is taken for the end of the one before it.
#[derive(Debug)]
pub struct SuccessorProves;

impl Swap for SuccessorProves {
    fn proves_gone(&self, evidence: Evidence) -> bool {
        proven(evidence) || evidence == Evidence::Successor
    }
}

/// D-24. Prefill writes through an endpoint that it had attached for an arena before.
#[derive(Debug)]
pub struct StaleEndpoint;

impl Swap for StaleEndpoint {
    fn same_endpoint(&self, _: ArenaId, _: ArenaId) -> bool {
        true
    }
}

/// D-25. Pages are given back while a step that names them is in flight.
#[derive(Debug)]
pub struct StepDoesNotHold;

impl Swap for StepDoesNotHold {
    fn may_release(&self, _: bool) -> bool {
        true
    }
}

/// D-26. A connection that broke, as it does when the process dies, proves that nothing of it
/// writes any more; but the mapping, or what was handed to the hardware, outlives the process.
#[derive(Debug)]
pub struct DeadProcessProves;

impl Swap for DeadProcessProves {
    fn proves_gone(&self, evidence: Evidence) -> bool {
        proven(evidence) || evidence == Evidence::Disconnected
    }
}

/// D-27. A cached page may be evicted whoever has pinned it.
#[derive(Debug)]
pub struct PinsDoNotCount;

impl Swap for PinsDoNotCount {
    fn may_evict(&self, reads: u32, _: u32) -> bool {
        reads == 0
    }
}
