//! What every run of a machine keeps to, whatever it is told. A watch sees each event before the
//! machine does and each effect after it, keeps its own small book of both, and compares: the tests
//! of one machine and the walks through all three have one each, so that a rule that is broken
//! anywhere is seen wherever it happens, and not only where a test was written for it.

pub mod decode;
pub mod gateway;
pub mod prefill;

use pages::{Holder, OwnerId, Reason, State};

/// Whether a page is held because of its owner, who must then be somebody: not cached, not lost,
/// not waiting to be zeroed.
fn owned(holder: &Holder) -> Option<OwnerId> {
    match holder.state {
        State::Free | State::Cached => None,
        State::Quarantined(Reason::Dropped | Reason::Scrub) => None,
        _ => Some(holder.owner.expect("held by somebody").id),
    }
}

/// Whether something that is still going on may touch the page.
fn in_use(holder: &Holder) -> bool {
    holder.reads > 0 || holder.writes > 0 || !holder.open.is_empty()
}
