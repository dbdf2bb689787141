//! Defects of messages: which are heard, which are answered, and what they let others see.

use super::swap::Swap;
use handoff::{Conn, DecodeToPrefill, LinkId};

/// D-11. What still arrives on a connection that a new one has replaced is heard.
#[derive(Debug)]
pub struct HearsTheOld;

impl Swap for HearsTheOld {
    fn replaces(&self, _: Conn, _: Conn) -> bool {
        false
    }
}

/// D-32. A ticket out of an earlier connection counts, behind prefill's word that it has none.
#[derive(Debug)]
pub struct OldTicketCounts;

impl Swap for OldTicketCounts {
    fn same_link(&self, _: LinkId, _: LinkId) -> bool {
        true
    }
}

/// D-12. Computed pages are published in the cache before anybody has verified them.
#[derive(Debug)]
pub struct PublishesUnverified;

impl Swap for PublishesUnverified {
    fn may_publish(&self, _: bool) -> bool {
        true
    }
}

/// D-17. A grant whose ticket was lost is kept for a prefill that knows nothing of it.
#[derive(Debug)]
pub struct KeepsOrphans;

impl Swap for KeepsOrphans {
    fn still_holds(&self, _: bool, _: bool) -> bool {
        true
    }
}

/// D-20. What is said about a handoff that is not known gets no answer.
#[derive(Debug)]
pub struct UnknownUnanswered;

impl Swap for UnknownUnanswered {
    fn answers_unknown(&self, _: &DecodeToPrefill) -> bool {
        false
    }
}
