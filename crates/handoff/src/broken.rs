//! Rules of a machine's own that it finds broken. Nothing that a peer says leads here, and no race:
//! each is a fault of this program, and the worker ends with it as its evidence (fail-stop).

use pages::Misuse;
use serde::{Deserialize, Serialize};

/// Why a machine stops.
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, thiserror::Error,
)]
pub enum Broken {
    /// The ledger has refused a call, and has changed nothing.
    #[error(transparent)]
    Ledger(#[from] Misuse),
    /// One of the machine's books names what another has lost (H-8).
    #[error("{0} is named and not known (H-8)")]
    Lost(Entry),
    /// An arena was opened, or could not be, that is not being made.
    #[error("an arena is reported that nobody is making")]
    ArenaUnasked,
    /// No arena is being fenced under that name (H-3).
    #[error("a fence that nobody asked for (H-3)")]
    FenceUnasked,
    /// The proof names another writer than the arena's (H-3).
    #[error("a fence proves the end of another writer (H-3)")]
    FenceOfAnother,
    /// The proof was made by another pool's mint (H-3).
    #[error("a fence proves something about the memory of another pool (H-3)")]
    FenceOfAnotherPool,
    /// A copy has ended that is not in flight.
    #[error("a copy ended that had not begun")]
    CopyNotBegun,
    /// A step began in a step: the pages of the first could be freed (H-3).
    #[error("a step began while another was in flight (H-3)")]
    StepInStep,
    /// A step shall compute a sequence that may not take part.
    #[error("a step names a sequence that cannot run")]
    StepNotRunnable,
    /// A step has ended, or failed, that is not in flight.
    #[error("a step ended that had not begun")]
    StepNotBegun,
    /// The token went to a page that others read (H-3).
    #[error("a step wrote behind a shared page (H-3)")]
    WroteShared,
    /// A chunk began without its ticket, or in another (H-5).
    #[error("a chunk began that may not run (H-5)")]
    ChunkNotRunnable,
    /// A chunk has ended, or failed, that is not in flight.
    #[error("a chunk ended that had not begun")]
    ChunkNotBegun,
    /// A chunk gave other checksums than it completed pages (H-2).
    #[error("a chunk gave other checksums than it completed pages (H-2)")]
    ChunkCount,
}

/// What can be lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// An attempt that a gateway announced.
    Attempt,
    /// A handoff.
    Handoff,
    /// A choice of a handoff.
    Sequence,
    /// The pages that a choice of a handoff has not used.
    Reserve,
    /// A life of a peer.
    Peer,
    /// A landing arena, or this side's end of one.
    Arena,
    /// A writer of a handoff's ticket.
    Writer,
    /// A job of prefill's.
    Job,
    /// The ticket of a job.
    Ticket,
    /// A slot of an arena, counted as free.
    Slot,
    /// The checksum of a computed page.
    Checksum,
    /// A batch handed to the fabric.
    Submission,
    /// A request.
    Request,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Attempt => "an attempt",
            Self::Handoff => "a handoff",
            Self::Sequence => "a sequence",
            Self::Reserve => "a sequence's reserve of pages",
            Self::Peer => "a peer's life",
            Self::Arena => "an arena",
            Self::Writer => "a writer",
            Self::Job => "a job",
            Self::Ticket => "a ticket",
            Self::Slot => "a free slot",
            Self::Checksum => "a page's checksum",
            Self::Submission => "a submission",
            Self::Request => "a request",
        })
    }
}
