//! Defects of arrival: what is taken for there, and what it is compared with.

use super::swap::Swap;
use handoff::{Arrived, Close, Closing, Manifest, Write};

/// D-02. Pages sent are never compared with pages reserved: what its writer calls complete is.
#[derive(Debug)]
pub struct NotCompared;

impl Swap for NotCompared {
    fn covers(&self, _: Arrived<'_>) -> bool {
        true
    }
}

/// D-03. "Complete" is believed, and nobody looks at the bytes.
#[derive(Debug)]
pub struct NotLookedAt;

impl Swap for NotLookedAt {
    fn same_checksum(&self, _: u32, _: u32) -> bool {
        true
    }
}

/// D-07. There is one slot for the acknowledgements of all writers: the first one commits.
#[derive(Debug)]
pub struct OneAcknowledgement;

impl Swap for OneAcknowledgement {
    fn may_commit(&self, closed: &[bool], copying: usize) -> bool {
        copying == 0 && closed.contains(&true)
    }
}

/// D-09. A batch is stated as soon as it was submitted.
#[derive(Debug)]
pub struct SubmittedIsLanded;

impl Swap for SubmittedIsLanded {
    fn has_landed(&self, write: Write) -> bool {
        write != Write::Lost
    }
}

/// D-18. A batch whose write failed is sent again inside the same handoff.
#[derive(Debug)]
pub struct SendsAgain;

impl Swap for SendsAgain {
    fn sends_again(&self, _: &Manifest) -> bool {
        true
    }
}

/// D-21. A write that was reported failed counts as one that has ended: it is stated, and the
/// handoff is closed and commits while it may still land, over what decode has appended.
#[derive(Debug)]
pub struct LostIsLanded;

impl Swap for LostIsLanded {
    fn has_landed(&self, write: Write) -> bool {
        write != Write::Submitted
    }
}

/// D-22. "All is sent" goes out when all is submitted, and overtakes the data.
#[derive(Debug)]
pub struct Overtakes;

impl Swap for Overtakes {
    fn may_close(&self, how: &Close, flying: usize) -> bool {
        flying == 0 || matches!(how, Close::Closed(Closing::Sealed { .. }))
    }
}

/// D-28. The last page goes out whole: behind the filled slots lies what its page held before.
#[derive(Debug)]
pub struct WholePage;

impl Swap for WholePage {
    fn sent_slots(&self, _: u16, page_size: u16) -> u16 {
        page_size
    }
}
