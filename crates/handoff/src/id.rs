//! Ids of the handoff: minted by the owner of the thing named, never reused (H-8).

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

/// A connection as its driver numbers them; never reused in a process's life. What arrives under
/// another number than the current one of that peer is discarded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Conn(pub u64);
