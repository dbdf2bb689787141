//! What can go wrong, and whose fault it is.

use crate::{Domain, OwnerId, PageId, State};
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
#[derive(Clone, PartialEq, Eq, Debug)]
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
        expected: &'static str,
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
    pub kind: &'static str,
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
