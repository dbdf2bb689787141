//! The receiving side of a fabric: arenas, copies out of them, fences.

use std::io;
use std::sync::Arc;

use pages::{WriterGone, WriterLife};

use crate::arena::{ArenaId, Landing, OutOfRange, Shape, WordRun};
use crate::memory::MemoryShortage;

/// Owns landing arenas. One thread owns the receiver; copies run elsewhere through [`Reader`]s.
///
/// Opening touches every byte of an arena and a fence gives them back: both take milliseconds for
/// large ones, so the owner is better not the thread that computes.
pub trait Receiver: Send {
    /// Opens the arena that `writer`, and no other life, may write to. The caller mints `arena`.
    ///
    /// A life has at most one open arena: a fence proves that *nothing* of that life can be seen
    /// any more, which with two arenas would take two fences.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left behind.
    fn open_arena(
        &mut self,
        arena: ArenaId,
        writer: WriterLife,
        shape: Shape,
    ) -> Result<Landing, OpenError>;

    /// A handle for copying out of an open arena, for any thread. It stops working at the fence.
    ///
    /// # Errors
    /// The arena is not open.
    fn reader(&self, arena: ArenaId) -> Result<Arc<dyn Reader>, FenceError>;

    /// Ends an arena: waits for this side's copies out of it, gives its memory up and never reads
    /// it again. Writes of its writer cannot be seen afterwards, whether it is dead, stopped or
    /// still writing.
    ///
    /// # Errors
    /// The arena is not open; a second fence yields no second proof.
    fn fence(&mut self, arena: ArenaId) -> Result<Fenced, FenceError>;

    /// Open arenas, oldest id first.
    fn arenas(&self) -> Vec<ArenaId>;

    /// Dropped arenas that a writer still maps, and their bytes (counted apart, H-10).
    fn lingering(&mut self) -> (usize, u64);

    /// Whether the memory of a dropped arena is given back: no writer maps it any more.
    fn is_given_back(&mut self, arena: ArenaId) -> bool;

    /// Who was turned away so far, by reason.
    fn refusals(&self) -> Refusals;
}

/// How often somebody who asked for an arena was turned away, since the receiver was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// The arena is one of another life of this receiver (D-24).
    pub stale_receiver: u64,
    /// The arena is not open.
    pub not_open: u64,
    /// The arena is another writer's, or of another life of this one.
    pub other_life: u64,
    /// The secret was wrong.
    pub wrong_token: u64,
    /// The landing had been used.
    pub used: u64,
    /// Connected and made no claim: no certificate of this cluster, another protocol, silence.
    pub strangers: u64,
}

impl Refusals {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Self {
            stale_receiver,
            not_open,
            other_life,
            wrong_token,
            used,
            strangers,
        } = *self;
        stale_receiver + not_open + other_life + wrong_token + used + strangers
    }
}

/// Copies out of one arena.
pub trait Reader: Send + Sync {
    /// Copies `runs` of a slot to the same places of `dst` and returns the CRC-32C of the words
    /// copied, in the order of the runs, computed over the private copy. The rest of `dst` stays.
    ///
    /// The caller copies a slot only after its submission has landed, as the writer's manifest
    /// says: the fabric does not know which slots these are. If the writer broke that promise, the
    /// bytes are any mixture, and the checksum says so.
    ///
    /// # Errors
    /// See [`CopyError`]; on `OutOfRange` nothing was copied.
    fn copy_out(&self, slot: u32, runs: &[WordRun], dst: &mut [u16]) -> Result<u32, CopyError>;
}

/// A fence was carried out.
#[must_use = "the proof releases what the writer could write"]
#[derive(Debug)]
pub struct Fenced {
    /// Nothing of this life can be seen any more.
    pub proof: WriterGone,
    /// What else is known about the writer.
    pub evidence: Evidence,
}

/// What a fence found out. The proof holds with any of them; evidence is for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The kernel attests that no writable mapping of the arena exists any more, in any process,
    /// and will allow none. Where this side applies the writes itself that includes its own map,
    /// which ends with the task that applies.
    NoWriterMaps,
    /// A writer, stopped or alive, or a child of it still maps the arena. The fence rests on this
    /// side never reading it again; its memory stays taken until they are gone.
    WriterMaps,
    /// The kernel could not be asked, for this reason.
    Unknown(String),
}

/// Why an arena was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The caller's counter is at fault: ids are never used twice.
    #[error("arena {0} was opened before: ids are never used twice")]
    Reused(ArenaId),
    /// A receiver serves one life of its worker, whose epoch names all its arenas.
    #[error("arena {arena} is not of {owner}, whose arenas this receiver holds")]
    OtherOwner {
        /// Asked for.
        arena: ArenaId,
        /// Owner of the arenas so far.
        owner: pages::Epoch,
    },
    /// Fence that arena first.
    #[error("writer {writer:?} has the open arena {open}: fence it first")]
    WriterHasArena {
        /// The writer.
        writer: WriterLife,
        /// Its open arena.
        open: ArenaId,
    },
    /// The shape is empty or larger than memory can be addressed.
    #[error("impossible shape {0:?}")]
    Shape(Shape),
    /// Open arenas, together with dropped ones that a writer still maps, would exceed the limit.
    #[error(
        "arenas of {open} bytes are open and {lingering} bytes dropped but still mapped by \
             their writers; {wanted} more exceed the limit of {limit}"
    )]
    Limit {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes of open arenas.
        open: u64,
        /// Bytes of dropped arenas that are still mapped.
        lingering: u64,
        /// The receiver's limit.
        limit: u64,
    },
    /// The machine or the cgroup has not so much memory.
    #[error(transparent)]
    Memory(#[from] MemoryShortage),
    /// The system refused.
    #[error("cannot make an arena: {0}")]
    Io(#[from] io::Error),
}

/// Why nothing was copied, or not to the end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The arena was fenced: its contents do not exist any more.
    #[error("arena {0} has been fenced")]
    Fenced(ArenaId),
    /// A slot, the arena's shape or `dst` is exceeded.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// Why there was no fence, or no reader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Never opened, or fenced before.
    #[error("arena {0} is not open: it never was, or it has been fenced")]
    NotOpen(ArenaId),
}
