//! What goes into the prefill machine and what comes out of it.

use crate::{
    ArenaId, AttemptId, Broken, Conn, DecodeToPrefill, GatewayToPrefill, Hangup, NoToken, OfferId,
    PrefillToDecode, PrefillToGateway, Spec, SubmissionId,
};
use pages::{Epoch, PageId};
use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A gateway said something.
    FromGateway(Conn, GatewayToPrefill),
    /// A decode worker said something.
    FromDecode(Conn, DecodeToPrefill),
    /// P dialled a decode worker and the connection is up.
    Dialled(Conn),
    /// A connection is gone; nothing more will arrive on it.
    Disconnected(Conn),
    /// The arena can be written to, or cannot.
    Attached {
        /// Which.
        arena: ArenaId,
        /// Whether.
        ok: bool,
    },
    /// A submission has ended. Only success says that the writes have landed.
    Written {
        /// Which.
        submission: SubmissionId,
        /// Whether every write completed successfully.
        ok: bool,
    },
    /// This side's endpoint is destroyed: nothing reads the sources of its submissions any more.
    Detached {
        /// Which.
        arena: ArenaId,
    },
    /// The forward pass over a chunk of this job begins (see [`super::Prefill::runnable`]).
    ChunkBegin {
        /// The job.
        offer: OfferId,
        /// Tokens, at most; the machine says how many in its effect.
        tokens: u32,
    },
    /// It has ended. `checksums` of the pages that became complete, in order of their ordinals;
    /// `first` with the last chunk: the first token of every choice.
    ChunkEnd {
        /// The job.
        offer: OfferId,
        /// Checksums.
        checksums: Vec<u32>,
        /// First tokens.
        first: Option<Vec<u8>>,
    },
    /// It has failed.
    ChunkFailed {
        /// The job.
        offer: OfferId,
        /// In what.
        why: NoToken,
    },
    /// A timer that was armed has fired.
    Fired(Timer),
    /// No new attempts from now on.
    Drain,
}

/// A wait with a deadline (H-15).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Timer {
    /// The whole attempt.
    Attempt(AttemptId),
    /// D was busy; try again.
    Retry(AttemptId),
    /// A decode life without a connection.
    Peer(Epoch),
    /// A connection on which D has not answered Hello and Sync yet.
    Greeting(Conn),
    /// D's next answer about this job: to its offer, to a batch that was stated, or to the
    /// certificates of all ranks.
    Answer(OfferId),
    /// Cached pages grow older. No wait, and nobody's fault.
    Cache,
}

/// What the driver has to do, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Say this to a gateway. Lost if the connection is.
    ToGateway(Conn, PrefillToGateway),
    /// Say this to a decode worker. Lost if the connection is.
    ToDecode(Conn, PrefillToDecode),
    /// Close a connection; discard what is unprocessed and unsent on it.
    Close(Conn, Hangup),
    /// Make this arena writable; answer `Attached`.
    Attach {
        /// The arena.
        arena: ArenaId,
        /// How to reach it.
        address: Vec<u8>,
    },
    /// Destroy the endpoint, join its mover; answer `Detached`.
    Detach {
        /// The arena.
        arena: ArenaId,
    },
    /// Write pages into slots of the arena, one-sided; answer `Written`.
    Submit {
        /// Its name.
        submission: SubmissionId,
        /// The arena.
        arena: ArenaId,
        /// The rank whose slice of the pages this is.
        rank: u16,
        /// The pages.
        pages: Vec<SendPage>,
    },
    /// Run the forward pass over tokens `from..to` of the job's prompt (see
    /// [`super::Prefill::verify`]); answer `ChunkEnd` or `ChunkFailed`.
    Compute {
        /// The job.
        offer: OfferId,
        /// First token.
        from: u32,
        /// Behind the last.
        to: u32,
        /// Whether these are the last: sample the first token of every choice.
        last: bool,
    },
    /// A job has its ticket and will be computed; what it is.
    Admitted {
        /// The job.
        offer: OfferId,
        /// The attempt.
        attempt: AttemptId,
        /// What is to be computed.
        spec: Box<Spec>,
        /// Tokens that came from P's own cache.
        cached_tokens: u32,
    },
    /// The job is over; forget what belongs to it.
    Dropped {
        /// The job.
        offer: OfferId,
    },
    /// Zero the payload of this page, before the next effect.
    Scrub {
        /// The page.
        page: PageId,
    },
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
    /// The machine's own rules were broken: the worker must end now (fail-stop).
    FailStop(Broken),
}

/// One page of a submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SendPage {
    /// Private page.
    pub page: PageId,
    /// Slot of the arena.
    pub slot: u32,
    /// Slots filled: exactly those are sent (H-17).
    pub filled: u16,
}
