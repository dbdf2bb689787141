//! What goes into the decode machine and what comes out of it.

use crate::{
    ArenaId, AttemptId, Broken, Conn, DecodeToGateway, DecodeToPrefill, Failure, Finish,
    GatewayToDecode, HandoffId, Hangup, NoToken, PrefillToDecode, Spec,
};
use pages::{Epoch, PageId, StatedTag, WriterGone, WriterLife};
use serde::{Deserialize, Serialize};

/// What the machine is told. A proof is no event: it is linear, and cannot be read from anywhere.
/// It is written down as what it is about, and an input that was read has that in its place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Input<Proof = WriterGone> {
    /// See [`super::Decode::handle`].
    Event(Event),
    /// See [`super::Decode::handle_fenced`].
    Fenced(ArenaId, Proof),
}

impl<Proof> From<Event> for Input<Proof> {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// Something happened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A gateway said something.
    FromGateway(Conn, GatewayToDecode),
    /// A prefill worker said something.
    FromPrefill(Conn, PrefillToDecode),
    /// A connection is gone; nothing more will arrive on it.
    Disconnected(Conn),
    /// An arena that was asked for exists and is populated.
    ArenaOpened {
        /// Which.
        arena: ArenaId,
        /// Its slots.
        slots: u32,
        /// How its writer reaches it.
        address: Vec<u8>,
    },
    /// It could not be made.
    ArenaFailed {
        /// Which.
        arena: ArenaId,
    },
    /// Somebody still maps an arena that is being fenced: its memory is not given back with its
    /// fence. Comes before the proof.
    ArenaLingers {
        /// Which.
        arena: ArenaId,
    },
    /// The memory of a fenced arena that lingered is given back: nobody maps it any more. May be
    /// never: a writer that is stopped keeps what it maps.
    ArenaReleased {
        /// Which.
        arena: ArenaId,
    },
    /// A copy, or a check, has ended: the checksum of each page, in the order of the effect. `None`
    /// if it could not be read.
    Copied {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank.
        rank: u16,
        /// The batch.
        batch: u32,
        /// Checksums of the copies, or of what was checked.
        checksums: Option<Vec<u32>>,
    },
    /// The worker has looked at the first tokens of a started attempt.
    First(Vec<Output>),
    /// A step begins over these sequences. Until `StepEnd` it reads and writes their pages.
    StepBegin(Vec<Lane>),
    /// It has ended: one output for each sequence of the step, in any order.
    StepEnd(Vec<Output>),
    /// It has failed: nothing of it may be used. The sequences end.
    StepFailed(NoToken),
    /// A timer that was armed has fired.
    Fired(Timer),
    /// No new attempts from now on.
    Drain,
}

/// One choice of one handoff.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Lane {
    /// The handoff.
    pub handoff: HandoffId,
    /// The choice, from 0.
    pub choice: u16,
}

/// What one sequence gave in a step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Output {
    /// The sequence.
    pub lane: Lane,
    /// The token that was sampled.
    pub token: u32,
    /// What else is said of it, for the gateway; opaque here.
    pub payload: Vec<u8>,
    /// Whether it was its last.
    pub finish: Option<Finish>,
}

/// A wait with a deadline (H-15). A deadline may end ownership; it never proves quiescence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Timer {
    /// The whole attempt.
    Attempt(AttemptId),
    /// The answer to a Cancel.
    Cancel(HandoffId),
    /// Unsettled slots in an arena.
    Unsettled(ArenaId),
    /// A prefill life without a connection.
    Peer(Epoch),
    /// A connection on which P has said Hello and not Sync.
    Greeting(Conn),
    /// An attempt whose offer was told Busy for want of pages, and whose turn is kept.
    Turn(AttemptId),
    /// An arena of this life that could not be made is to be tried again.
    Arena(Epoch),
    /// Cached pages grow older. No wait, and nobody's fault.
    Cache,
}

/// What the driver has to do, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Say this to a gateway. Lost if the connection is.
    ToGateway(Conn, DecodeToGateway),
    /// Say this to a prefill worker. Lost if the connection is.
    ToPrefill(Conn, DecodeToPrefill),
    /// Close a connection; discard what is unprocessed and unsent on it.
    Close(Conn, Hangup),
    /// Make a landing arena for this writer's life; in direct mode, an endpoint through which it
    /// reaches this pool's pages, which are its slots. Answer with `ArenaOpened` or `ArenaFailed`.
    OpenArena {
        /// Its name.
        arena: ArenaId,
        /// The only writer that may reach it.
        writer: WriterLife,
    },
    /// Join all copies out of this arena, never read it again (in direct mode: destroy the endpoint,
    /// so that nothing that was submitted through it lands any more), and answer with the proof
    /// ([`super::Decode::handle_fenced`]).
    Fence {
        /// The arena.
        arena: ArenaId,
    },
    /// Copy a batch out of the arena into private pages, checksum the copies, answer `Copied`.
    Copy {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank.
        rank: u16,
        /// The batch.
        batch: u32,
        /// The arena.
        arena: ArenaId,
        /// Its pages.
        pages: Vec<CopyPage>,
    },
    /// Direct mode: checksum what lies in these pages, answer `Copied`.
    Check {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank, whose slice of the pages is meant.
        rank: u16,
        /// The batch.
        batch: u32,
        /// Its pages.
        pages: Vec<CheckPage>,
    },
    /// Copy the filled slots of one private page to another, before the next effect.
    Duplicate {
        /// Source.
        from: PageId,
        /// Target.
        to: PageId,
        /// Slots.
        filled: u16,
    },
    /// Zero the payload of this page, before the next effect.
    Scrub {
        /// The page.
        page: PageId,
    },
    /// The cache is committed: look at the first tokens and answer `First`.
    Start {
        /// The handoff.
        handoff: HandoffId,
        /// The attempt.
        attempt: AttemptId,
        /// What is to be computed.
        spec: Box<Spec>,
        /// First token of every choice, from the writer that sampled it.
        first: Vec<u8>,
    },
    /// This sequence takes part in no further step.
    Stop(Lane),
    /// Cached pages that nobody had used for their lifetime were given up.
    Expired {
        /// How many.
        pages: u32,
    },
    /// Fire this timer after so many milliseconds, unless it is disarmed before.
    Arm {
        /// The timer.
        timer: Timer,
        /// Milliseconds.
        after_ms: u64,
    },
    /// Do not fire it.
    Disarm(Timer),
    /// An attempt failed in a way that belongs into the audit log.
    Audit {
        /// The attempt.
        attempt: AttemptId,
        /// The handoff.
        handoff: HandoffId,
        /// The writer's life.
        writer: Epoch,
        /// What happened.
        failure: Failure,
        /// The tag concerned, as it was stated.
        stated: Option<StatedTag>,
    },
    /// The machine's own rules were broken: the worker must end now (fail-stop), with this as the
    /// evidence.
    FailStop(Broken),
}

/// One page of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CheckPage {
    /// The page.
    pub page: PageId,
    /// Slots filled: exactly those count.
    pub filled: u16,
}

/// One page of a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CopyPage {
    /// Slot of the arena.
    pub slot: u32,
    /// Private page.
    pub page: PageId,
    /// Slots filled: exactly those are copied.
    pub filled: u16,
}
