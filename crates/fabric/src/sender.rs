//! The writing side of a fabric: endpoints, submissions, their endings.

use std::io;
use std::sync::Arc;

use crate::arena::{ArenaId, BadLanding, Landing, OutOfRange, WordRun};

/// Words that a write reads, at any time until its submission has ended. A page's buffer behind an
/// `Arc` is one.
pub type WriteSource = Arc<dyn AsRef<[u16]> + Send + Sync>;

/// Called with every completion, on a thread of the fabric: hand it on and return.
pub type OnCompletion = Box<dyn FnMut(Completion) + Send>;

/// Makes endpoints for one life of one writer.
pub trait Sender: Send + Sync {
    /// Reaches the arena behind a landing. May block for as long as the fabric's deadline says:
    /// not for a thread that computes.
    ///
    /// # Errors
    /// See [`AttachError`]. A landing serves once: attach again only with a new one.
    fn attach(
        &self,
        landing: &Landing,
        on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError>;
}

/// The way into one arena.
///
/// Dropping an endpoint does what [`Endpoint::destroy`] does, without saying so by value.
pub trait Endpoint: Send {
    /// The arena that it writes to.
    fn arena(&self) -> ArenaId;

    /// Submits a batch of writes under the caller's name for it; never waits. They are carried out
    /// in any order, each at any time until the completion, which comes exactly once for every
    /// submission that was accepted.
    ///
    /// # Errors
    /// See [`SubmitError`]: a refused batch was not begun, and has no completion.
    fn submit(&mut self, id: SubmissionId, writes: Vec<SlotWrite>) -> Result<(), SubmitError>;

    /// The writer's own fence: stops the transfers, waits until no source is read any more, and
    /// completes everything not known to have landed as [`WriteEnding::Failed`].
    fn destroy(self: Box<Self>) -> SourcesReleased;
}

/// The caller's name for a submission: a counter that only grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubmissionId(pub u64);

/// Copy `runs` of `source` to the same places of a slot. The writer picks the slot.
#[derive(Clone)]
pub struct SlotWrite {
    /// What is read.
    pub source: WriteSource,
    /// Which of its words: exactly these leave the worker.
    pub runs: Arc<[WordRun]>,
    /// The slot written to.
    pub slot: u32,
}

/// A submission has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The arena.
    pub arena: ArenaId,
    /// The submission.
    pub id: SubmissionId,
    /// How.
    pub ending: WriteEnding,
}

/// How a submission ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WriteEnding {
    /// Every write has landed and is visible to the receiver's reader. The endpoint holds none of
    /// its sources any more.
    Landed,
    /// Anything else: unsettled. Some, all or none of the writes have landed or will.
    Failed,
}

/// Proof by value that an endpoint reads no source any more: its transfers are joined.
#[must_use = "the sources of unsettled submissions may be freed now"]
#[derive(Debug, PartialEq, Eq)]
pub struct SourcesReleased {
    pub(crate) arena: ArenaId,
    pub(crate) unsettled: Vec<SubmissionId>,
}

impl SourcesReleased {
    /// The arena that the endpoint wrote to.
    pub fn arena(&self) -> ArenaId {
        self.arena
    }

    /// Submissions that had not landed, all of the endpoint's life, in the order of their ids.
    pub fn unsettled(&self) -> &[SubmissionId] {
        &self.unsettled
    }
}

/// Why no endpoint came about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The bytes are not a landing of this fabric.
    #[error(transparent)]
    Landing(#[from] BadLanding),
    /// The receiver refuses.
    #[error("the receiver refused the landing: {0}")]
    Refused(Refusal),
    /// The receiver gave something that is not the arena it described.
    #[error("the receiver's arena is not what the landing says: {0}")]
    Mismatch(#[from] Mismatch),
    /// The receiver cannot be reached, or not in time.
    #[error("cannot reach the receiver: {0}")]
    Io(#[from] io::Error),
}

/// What a receiver gave instead of the arena that it described.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Memory of another size.
    #[error("it has {size} bytes, expected {expected}")]
    Size {
        /// Its size.
        size: i64,
        /// What the landing says.
        expected: u64,
    },
    /// Memory whose size could be changed under its writer.
    #[error("its size is not sealed (seals {seals:#x})")]
    NotSealed {
        /// What is sealed.
        seals: u32,
    },
    /// A yes without the memory.
    #[error("granted without a descriptor")]
    NoDescriptor,
    /// An answer about another arena or life.
    #[error("it answers for another arena or another life")]
    OtherLife,
    /// An answer that is neither a yes nor a refusal.
    #[error("unknown answer {0}")]
    Answer(u8),
}

/// Why a receiver refuses an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Not open: it never was, or it has been fenced.
    #[error("no such arena is open")]
    NotOpen,
    /// The receiver has another life than the one whose arena this is.
    #[error("the arena belongs to an earlier life of the receiver")]
    StaleReceiver,
    /// The arena is for another life of a writer.
    #[error("the arena belongs to another life")]
    OtherLife,
    /// The secret is wrong.
    #[error("wrong token")]
    WrongToken,
    /// Somebody has attached with this landing before.
    #[error("the landing has been used")]
    Used,
}

/// Why a batch was not accepted. Nothing of it was begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A slot, or a run in its slot or source, does not exist.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// Too many submissions are under way: wait for a completion.
    #[error("{0} submissions are under way: wait for a completion")]
    Full(usize),
    /// Ids only grow: nothing is submitted again under its old name.
    #[error("submission {got:?} does not come after {last:?}")]
    Reused {
        /// The id given.
        got: SubmissionId,
        /// The last one accepted.
        last: SubmissionId,
    },
    /// A transfer of this endpoint has failed: it takes no more work.
    #[error("the endpoint has failed: destroy it")]
    EndpointFailed,
}
