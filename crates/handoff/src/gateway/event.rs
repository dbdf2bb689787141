//! What goes into the gateway's request machine and what comes out of it.

use crate::{
    AttemptId, Broken, Conn, DecodeToGateway, Failure, Finish, GatewayToDecode, GatewayToPrefill,
    Hangup, PrefillToGateway, Refusal, Rejection, RequestId, Spec,
};
use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Event {
    /// The gateway dialled a prefill worker and the connection is up.
    PrefillDialled(Conn),
    /// The gateway dialled a decode worker and the connection is up.
    DecodeDialled(Conn),
    /// A prefill worker said something.
    FromPrefill(Conn, PrefillToGateway),
    /// A decode worker said something.
    FromDecode(Conn, DecodeToGateway),
    /// A connection is gone; nothing more will arrive on it.
    Disconnected(Conn),
    /// A client asks. The driver takes the id from [`super::Gateway::next_request`] before.
    Request {
        /// What is to be computed.
        spec: Spec,
        /// Time for the whole request, milliseconds.
        deadline_ms: u64,
    },
    /// The client has left.
    ClientGone(RequestId),
    /// This choice needs no more tokens.
    StopChoice(RequestId, u16),
    /// A timer that was armed has fired.
    Fired(Timer),
    /// No new requests from now on.
    Drain,
}

/// A wait with a deadline (H-15).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Timer {
    /// The whole request.
    Request(RequestId),
    /// A worker that was dialled and has not said Hello.
    Greeting(Conn),
    /// Decode's answer to Expect, or to Cancel.
    Answer(AttemptId),
}

/// What the driver has to do, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Say this to a prefill worker. Lost if the connection is.
    ToPrefill(Conn, GatewayToPrefill),
    /// Say this to a decode worker. Lost if the connection is.
    ToDecode(Conn, GatewayToDecode),
    /// Close a connection.
    Close(Conn, Hangup),
    /// Something for the client. Only after the prefill was judged.
    Deliver {
        /// The request.
        request: RequestId,
        /// What.
        item: Item,
    },
    /// The request's one outcome. Nothing follows.
    Finish {
        /// The request.
        request: RequestId,
        /// It.
        outcome: Outcome,
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
    /// The machine's own rules were broken: the gateway must end now (fail-stop), with this as the
    /// evidence.
    FailStop(Broken),
}

/// A part of an answer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Item {
    /// An answer begins.
    Begin {
        /// Prompt tokens that came from decode's own cache.
        cached_tokens: u32,
        /// Life of the prefill worker, if it is still up.
        prefill: Option<pages::Epoch>,
        /// Life of the decode worker.
        decode: Option<pages::Epoch>,
    },
    /// Output of one choice.
    Tokens {
        /// The choice.
        choice: u16,
        /// Its id.
        token: u32,
        /// What was sampled.
        payload: Vec<u8>,
        /// Set with its last output.
        finish: Option<Finish>,
    },
}

/// How a request ended; set exactly once (H-6).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Every choice has finished.
    Answered,
    /// Refused for good, before anything was allocated for it.
    Rejected(Rejection),
    /// Not taken on now.
    Refused(Refusal),
    /// It failed.
    Failed(Failure),
    /// The client left first.
    ClientLeft,
}
