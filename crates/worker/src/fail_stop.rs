//! What a worker ends with when a rule that must hold is broken.

use handoff::decode::Lane;
use handoff::{Broken, OfferId};

/// What was found. Whoever caused it, the epoch is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FailStop {
    /// The machine has stopped (H-3, H-8).
    #[error(transparent)]
    Machine(#[from] Broken),
    /// A block table is not what its sequence must read (H-3).
    #[error(transparent)]
    Table(#[from] pages::VerifyFault),
    /// A page of KV memory is not as the ledger has it (H-3).
    #[error(transparent)]
    Memory(#[from] model::KvError),
    /// Nothing proves that a writer is gone (H-3).
    #[error("no fence: {0}")]
    NoFence(#[from] fabric::FenceError),
    /// A thread has panicked, perhaps with pages in its hands.
    #[error("{0} has ended")]
    Thread(&'static str),
    /// More slots of a page were to be sent than it has (H-17).
    #[error("{0} slots of a page")]
    Slots(u16),
    /// A job whose turn it was has no chunk.
    #[error("{0} may be computed and was not")]
    NoChunk(OfferId),
    /// A chunk names tokens that its prompt has not.
    #[error("a chunk behind its prompt")]
    ChunkBehindPrompt,
    /// A chunk was verified without the table that it writes to.
    #[error("a chunk without a block table")]
    ChunkWithoutTable,
    /// The machine speaks of a way of handing over that it was not told to use.
    #[error("direct mode was not asked for")]
    DirectMode,
    /// A choice is to be computed whose last token nobody has.
    #[error("{0:?} may run and nobody knows its last token")]
    NoInput(Lane),
    /// A forward pass gave fewer rows than it was asked for.
    #[error("a step without its logits")]
    NoLogits,
    /// An idle pool has no room for what its capacity admits.
    #[error("{0} pages fit the pool and are not to be had")]
    IdlePoolFull(u64),
    /// A sequence is to be computed that holds no page.
    #[error("a sequence without a page")]
    NoPage,
    /// A step has written where its sequence owns nothing (H-3).
    #[error("a step wrote a page without a grant")]
    NoGrant,
    /// A choice grew beyond what was reserved for it.
    #[error("a choice ran out of its reserved pages")]
    ReserveEmpty,
}
