//! What a worker counts, from the endings that it sees.

use handoff::{Ending, Failure};
use pages::Counts;
use wire::{Counters, Pages};

/// The ledger's counts as they are told to a gateway.
pub(crate) fn pages_of(counts: Counts) -> Pages {
    Pages {
        free: counts.free as u64,
        reserved: counts.reserved as u64,
        granted: counts.granted as u64,
        sealed: counts.sealed as u64,
        cached: counts.cached as u64,
        quarantined: counts.quarantined as u64,
    }
}

/// One attempt has ended here.
pub(crate) fn count_ending(counters: &mut Counters, ending: &Ending) {
    let counter = match ending {
        Ending::Finished => &mut counters.attempts_finished,
        Ending::Rejected(_) => &mut counters.attempts_rejected,
        Ending::Cancelled => &mut counters.attempts_cancelled,
        Ending::Refused(_) => &mut counters.attempts_refused,
        Ending::Failed(failure) => {
            if matches!(failure, Failure::Integrity(_)) {
                counters.integrity_faults += 1;
            }
            &mut counters.attempts_failed
        }
    };
    *counter += 1;
}
