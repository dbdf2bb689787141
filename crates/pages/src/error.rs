//! What can go wrong, and whose fault it is.

use crate::{Domain, OwnerId, PageId, State};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A reservation asked for more than the pool can give now. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Pages asked for.
    pub wanted: usize,
    /// Pages free at that moment.
    pub free: usize,
}

/// The caller broke the ledger's contract. The ledger is unchanged; the page is not freed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Misuse {
    /// The handle belongs to another pool.
    ForeignHandle(PageId),
    /// The handle's tag is not the page's present tag: a stale handle.
    StaleHandle(PageId),
    /// The page is in a state in which this may not happen.
    WrongState {
        /// The page.
        page: PageId,
        /// What the call needs.
        expected: Needs,
        /// What the page is.
        got: State,
    },
    /// More slots than the page has, or fewer than are already filled.
    BadFill {
        /// The page.
        page: PageId,
        /// Slots asked for.
        filled: u16,
        /// Slots that the page has.
        page_size: u16,
    },
    /// A share was asked for from another isolation domain (H-13).
    ForeignDomain {
        /// The page.
        page: PageId,
        /// Domain of the page.
        owner: Domain,
        /// Domain that asked.
        asked: Domain,
    },
    /// Evicting, publishing or sealing while an operation or another reader is pending.
    Busy {
        /// The page.
        page: PageId,
        /// Pending reads.
        reads: u32,
        /// Pending writes.
        writes: u32,
        /// References of other sequences.
        shares: u32,
    },
    /// The last reference to a cached page cannot be given back, only evicted.
    LastShare(PageId),
    /// No such operation in flight: it ended before, never began, or is another pool's.
    UnknownOp(u64),
    /// No such page in this pool.
    NoSuchPage(PageId),
}

/// What a page must be for a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Needs {
    /// Free, and named once in the call.
    Free,
    /// Taken, its tag not sent.
    Reserved,
    /// Its content is not final.
    Unsealed,
    /// Its content is final.
    Sealed,
    /// In the cache.
    Cached,
    /// Somebody's.
    Owned,
    /// Somebody's, so that its content means something.
    Readable,
    /// Somebody's, and nobody else's.
    Writable,
    /// Freed, and not zeroed yet.
    WaitsForScrub,
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "Free, and named once",
            Self::Reserved => "Reserved",
            Self::Unsealed => "Reserved or Granted",
            Self::Sealed => "Sealed",
            Self::Cached => "Cached",
            Self::Owned => "owned",
            Self::Readable => "a page with an owner",
            Self::Writable => "a page with an owner, not shared",
            Self::WaitsForScrub => "Quarantined(Scrub)",
        })
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignHandle(page) => write!(f, "handle of {page:?} belongs to another pool"),
            Self::StaleHandle(page) => write!(f, "stale handle: {page:?} has been granted anew"),
            Self::WrongState {
                page,
                expected,
                got,
            } => {
                write!(f, "{page:?} is {got:?}, expected {expected}")
            }
            Self::BadFill {
                page,
                filled,
                page_size,
            } => {
                write!(
                    f,
                    "{page:?}: {filled} filled slots, of {page_size}, not below what is filled"
                )
            }
            Self::ForeignDomain { page, owner, asked } => {
                write!(
                    f,
                    "{page:?} belongs to domain {owner:?}, {asked:?} may not share it (H-13)"
                )
            }
            Self::Busy {
                page,
                reads,
                writes,
                shares,
            } => write!(
                f,
                "{page:?} is in use: {reads} reads, {writes} writes, {shares} shares pending (H-3)"
            ),
            Self::LastShare(page) => {
                write!(f, "this is the last share of {page:?}: evict it instead")
            }
            Self::UnknownOp(op) => write!(f, "operation {op} is not in flight"),
            Self::NoSuchPage(page) => write!(f, "{page:?} is not in this pool"),
        }
    }
}

impl std::error::Error for Misuse {}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages wanted, {} free", self.wanted, self.free)
    }
}

impl std::error::Error for Shortage {}

/// A block table does not say the truth. The step must not run; the worker ends (fail-stop).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyFault {
    /// Whose table.
    pub owner: OwnerId,
    /// Index in the table.
    pub ordinal: usize,
    /// The page that the table names, where there is one.
    pub page: Option<PageId>,
    /// What was wrong.
    pub kind: TableFault,
}

impl fmt::Display for VerifyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "block table of {:?} refused at ordinal {} ({:?}): {}",
            self.owner, self.ordinal, self.page, self.kind
        )
    }
}

impl std::error::Error for VerifyFault {}

/// What is wrong with a block table, or with one entry of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TableFault {
    /// The table counts in other pages than the pool.
    OtherPageSize,
    /// Its pages are another pool's.
    TableOfAnotherPool,
    /// From here on its pages are another pool's as well.
    PageOfAnotherPool,
    /// The step reads or writes behind the last page.
    TooFewPages,
    /// The pool has no page of that number.
    NoSuchPage,
    /// The entry names an earlier grant of the page (H-8).
    GrantedAnew,
    /// The handle was dropped: the page is lost.
    GrantDropped,
    /// Direct mode: it may be written from outside (H-3).
    WriterOpen,
    /// The ledger knows nobody who holds it.
    NoOwner,
    /// A share of what is no cached page.
    SharedNotCached,
    /// Cached for another isolation domain (H-13).
    OtherDomain,
    /// It may be evicted while the step reads it (H-3).
    NotPinned,
    /// Its content was not verified (H-9).
    NotSealed,
    /// It is another sequence's (H-1).
    OtherOwner,
    /// Another choice of the request writes it (H-1).
    OtherChoice,
    /// It is not the page of this ordinal (H-2).
    OtherPlace,
    /// The table reads slots that were not filled (H-2).
    TooFewSlots,
    /// Nobody writes what others read (H-3).
    WritesShared,
    /// The page is not this lane's alone (H-3).
    WritesOtherLane,
    /// The slots are final (H-1).
    WritesSealed,
    /// Two sequences of the step write it (H-3).
    WrittenTwice,
}

impl fmt::Display for TableFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherPageSize => "the table counts in another page size than the pool",
            Self::TableOfAnotherPool => "a table of another pool",
            Self::PageOfAnotherPool => "a page of another pool",
            Self::TooFewPages => "more tokens than the table has pages for",
            Self::NoSuchPage => "no such page",
            Self::GrantedAnew => "the page has been granted anew: its tag is another",
            Self::GrantDropped => "the grant of the page was dropped",
            Self::WriterOpen => "a remote writer of this page has not ended (H-3)",
            Self::NoOwner => "the page has no owner",
            Self::SharedNotCached => "a shared page that is not cached",
            Self::OtherDomain => "a cached page of another isolation domain (H-13)",
            Self::NotPinned => "a shared page that nobody pins",
            Self::NotSealed => "an owned page that is not sealed",
            Self::OtherOwner => "a page of another owner",
            Self::OtherChoice => "a page of another choice of the same request",
            Self::OtherPlace => "the page is sealed for another place in the sequence",
            Self::TooFewSlots => "the page has fewer filled slots than the table reads (H-2)",
            Self::WritesShared => "a step would write a shared page",
            Self::WritesOtherLane => "a step would write a page of another lane",
            Self::WritesSealed => "a step would write over slots that are sealed (H-1)",
            Self::WrittenTwice => "two sequences of one step write this page (H-3)",
        })
    }
}
