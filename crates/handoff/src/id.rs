//! Ids of the handoff: minted by the owner of the thing named, never reused (H-8).
//!
//! # Names in a serialized state
//!
//! The state of a machine serializes whole (everything that its `Ord` compares), and every
//! identifier in it is a struct of its own, so that a checker can find and rename identifiers by
//! the name that serde gives it. Machines compare identifiers for equality and, as keys of ordered
//! maps and in [`AttemptMark`], for order; renaming that keeps the order of each of these spaces
//! changes nothing that a machine does:
//!
//! | space | names |
//! |---|---|
//! | lives | `Epoch` (a `u128`; equality only, apart from the order of maps) |
//! | counter of one life of D | `HandoffId` and `ArenaId` (`epoch`, `n`); inside a `Decode`, of its own life: `HandoffKey`, `OwnerId`, `LastId` |
//! | counter of one life of P | `OfferId` and `SubmissionId` (`epoch`, `n`); inside a `Prefill`, of its own life: `JobKey`, `SubmissionKey`, `OwnerId`, `LastId` |
//! | requests of one gateway life | `RequestId` (`epoch`, `n`), `RequestKey`, `NextRequest` |
//! | attempts of one gateway life | `AttemptId` (`epoch`, `n`), `LastAttempt`, `AttemptMark` |
//! | connections, as one driver numbers them | `Conn` |
//! | tags of one pool | `Tag`; D's as a peer says them: `StatedTag`; `LastTag` |
//! | operations of one pool | `OpId`, `LastOp` |
//! | uses of one prefix index | `UseStamp` |
//!
//! `LastId`, `LastAttempt`, `LastTag` and `LastOp` are at least as large as everything in their
//! space, `NextRequest` larger. All machines begin with their `hello`, whose first field is their
//! own `Epoch`. `PageId`, ordinals, slots and batch numbers are no identifiers of this kind: which
//! page is lowest decides what is taken next.

use pages::Epoch;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub struct $name {
            /// Life of the worker or gateway that minted it.
            pub epoch: Epoch,
            /// Its counter.
            pub n: u64,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}-{}", self.epoch, self.n)
            }
        }
    };
}

id! {
    /// A client's request, minted by the gateway. It has exactly one outcome (H-6).
    RequestId
}
id! {
    /// One try at a request, minted by the gateway. A retry is another attempt.
    AttemptId
}
id! {
    /// P's offer to hand an attempt over, minted by P. A repeated offer is another offer.
    OfferId
}
id! {
    /// D's grant for an offer, minted by D.
    HandoffId
}
id! {
    /// A landing arena of D's, for one life of one writer.
    ArenaId
}
id! {
    /// One submission of P's to its fabric.
    SubmissionId
}

/// A connection between P and D, by the life that dialled it: what is said for one connection counts on no
/// other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LinkId {
    /// P's life.
    pub epoch: Epoch,
    /// P's own number of it.
    pub conn: Conn,
}

/// A number under which a machine keeps something of its own.
macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        pub(crate) struct $name(pub u64);
    };
}

key! {
    /// `n` of a [`HandoffId`], at the D that minted it.
    HandoffKey
}
key! {
    /// `n` of an [`OfferId`], at the P that minted it.
    JobKey
}
key! {
    /// `n` of a [`SubmissionId`], at the P that minted it.
    SubmissionKey
}
key! {
    /// `n` of a [`RequestId`], at the gateway that minted it.
    RequestKey
}
key! {
    /// The last `n` that a worker gave to anything.
    LastId
}
key! {
    /// The `n` of the next request.
    NextRequest
}
key! {
    /// The last `n` that a gateway gave to an attempt.
    LastAttempt
}
key! {
    /// The largest `n` of an attempt that a gateway life has announced.
    AttemptMark
}

/// A connection as its driver numbers them; never reused in a process's life. What arrives under
/// another number than the current one of that peer is discarded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Conn(pub u64);
