//! What goes into the door's machine and what comes out of it.

use crate::{AttemptId, Broken, Lengths, RequestId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An engine that is not ours, as one driver numbers them. A process that has taken another's place
/// has another number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct EngineId(pub u32);

/// What is known of an engine that is up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Engine {
    /// What it does.
    pub serves: Serves,
    /// The lengths that it was measured to take; none: they are not known, and nothing goes to it.
    pub lengths: Option<Lengths>,
    /// Attempts at once.
    pub most: u32,
    /// How much it takes beside others: one of weight 2 gets twice the tokens. 0 is as 1.
    pub weight: u32,
    /// Whether it declares that a prefill may be aborted at any time.
    pub aborts_prefill: bool,
    /// Whether it is asked for operators only: it is under suspicion, and somebody has to test it.
    pub private: bool,
}

/// What an engine does. Any prefill of a group may be paired with any decode of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Serves {
    /// It answers by itself.
    Alone,
    /// It has answered what engines behind it answer, whom it chooses and brings together: somebody
    /// else's router.
    Router,
    /// It computes prompts for the decodes of this group.
    Prefill(u32, Handing),
    /// It answers with what the prefills of this group have computed.
    Decode(u32, Handing),
}

/// How the engines of a pair come together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Handing {
    /// Both are asked at once and meet under an identifier of ours; prefill writes into decode's
    /// pages (SGLang).
    Together,
    /// Prefill is asked first and answers with a reference to its pages; decode, asked with it,
    /// reads them (vLLM NIXL).
    Pull,
    /// Behind a router, where neither is seen: there is the decode leg only, and until it speaks
    /// anything may be under way.
    Hidden,
}

/// One of the two requests that an attempt consists of. A server that answers by itself has the
/// decode leg only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Leg {
    /// At the engine that computes the prompt.
    Prefill,
    /// At the engine that answers.
    Decode,
}

/// What a client wants.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Length of its prompt.
    pub prompt: Prompt,
    /// Most tokens of its answer; none: as many as there is room for.
    pub max_new: Option<u32>,
    /// Engines that it goes to rather than to others, best first: they may hold its beginning.
    pub near: Vec<EngineId>,
    /// Whether an operator asks.
    pub operator: bool,
    /// Engines of which all that it goes to must be; none: any.
    pub only: Vec<EngineId>,
}

/// Length of a prompt, in tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Prompt {
    /// Exactly, because the tokens themselves are sent or the engine has counted them for us.
    Counted(u32),
    /// Not more than this.
    AtMost(u32),
}

impl Prompt {
    /// The length that it is judged by.
    pub fn most(self) -> u32 {
        match self {
            Self::Counted(tokens) | Self::AtMost(tokens) => tokens,
        }
    }
}

/// Something happened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Event {
    /// An engine is up, or what is known of it has changed.
    Engine(EngineId, Engine),
    /// Nothing more may go to this engine. What it still says of its legs counts.
    Gone(EngineId),
    /// A client asks. The driver takes the id from [`super::Door::next_request`] before.
    Request {
        /// What.
        ask: Ask,
        /// Time for the whole request, milliseconds.
        deadline_ms: u64,
    },
    /// The client has left.
    ClientGone(RequestId),
    /// The decode leg has said a part of its answer, which is held until [`Effect::Release`].
    Part(AttemptId, Label),
    /// A leg's answer has ended, or the connection to it.
    Ended(AttemptId, Leg, End),
    /// The engine has carried out the abort of a leg whose answer nobody reads any more.
    Aborted(AttemptId, Leg),
    /// A timer that was armed has fired.
    Fired(Timer),
    /// No new requests from now on.
    Drain,
}

/// What a part of an answer says of itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Label {
    /// Whose answer it says that it is.
    pub whose: Whose,
    /// Tokens of the prompt that the engine has counted, if it says so.
    pub prompt: Option<u32>,
}

/// Whose answer an answer says that it is, by the identifier that the engine was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Whose {
    /// This leg's.
    Ours,
    /// It does not say.
    Unsaid,
    /// Somebody else's.
    Anothers,
}

/// How a leg ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum End {
    /// Its whole answer was read, and no failure is in it.
    Answered {
        /// What it says of itself.
        said: Label,
        /// Whether the reference to prefill's pages is in it.
        reference: bool,
    },
    /// The engine said that it failed: by the status, or inside an answer of status 200.
    Failed(Blame),
    /// The connection was lost, or what came cannot be understood: the engine may still be at it.
    Lost,
    /// There was no connection to ask it over: nothing was begun.
    Unreached,
}

/// Whose fault a failure is, by its status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Blame {
    /// The client's (4xx). Nothing was computed.
    Client,
    /// Nobody's: the engine has too much to do (429, 503). Nothing was computed.
    Busy,
    /// The engine's.
    Engine,
}

/// A wait with a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Timer {
    /// The whole request.
    Request(RequestId),
    /// Prefill's answer; then anything more of decode's.
    Stage(AttemptId),
    /// Prefill ended in doubt: what it has written may still land.
    Settle(AttemptId),
    /// Decode failed, and prefill's word on it is not there yet.
    Word(AttemptId),
    /// Nobody wants the answer of this attempt any more.
    Linger(AttemptId),
    /// The engine's answer to an abort.
    Abort(AttemptId, Leg),
    /// An engine that failed often is not asked.
    Rest(EngineId),
}

/// What the driver has to do, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Ask an engine, under identifiers that are made of this attempt's and of nothing else.
    Dispatch {
        /// Whose request it is.
        request: RequestId,
        /// The attempt.
        attempt: AttemptId,
        /// Which of its legs.
        leg: Leg,
        /// The engine.
        engine: EngineId,
        /// Most tokens of the answer.
        max_new: u32,
        /// The attempt whose prefill has answered with the reference that goes along; it is used up.
        reference: Option<AttemptId>,
    },
    /// End a leg by the engine's own call.
    Abort(AttemptId, Leg, EngineId),
    /// Nobody waits for this leg any more: its connection is closed.
    Drop(AttemptId, Leg),
    /// What was held of this attempt's answer may go to the client.
    Release {
        /// Whose.
        request: RequestId,
        /// The attempt whose answer it is.
        attempt: AttemptId,
    },
    /// The request's one outcome. Nothing follows. If it was answered, the rest of this attempt's
    /// answer goes out before.
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
    /// The machine's own rules were broken: the gateway must end now (fail-stop).
    FailStop(Broken),
}

/// How a request ended; set exactly once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// With this attempt's answer.
    Answered(AttemptId),
    /// Too long for all: nothing was asked of an engine.
    TooLong {
        /// Its prompt.
        prompt: Prompt,
        /// What it wanted.
        max_new: Option<u32>,
        /// The largest lengths that are taken.
        limit: Lengths,
    },
    /// Not taken on now.
    Refused(Turned),
    /// It failed.
    Failed(Failing),
    /// The client left first.
    ClientLeft,
}

/// Why a request is not taken on now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Turned {
    /// No engines that can answer are up, or what they take is not known.
    NoEngine,
    /// All that could take it have as much to do as they may have.
    Full,
    /// The gateway drains.
    Draining,
}

/// Which leg failed, and how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Failing {
    /// Of which attempt.
    pub attempt: AttemptId,
    /// The leg at fault.
    pub leg: Leg,
    /// How.
    pub why: Why,
}

/// How a leg failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Why {
    /// The engine said so.
    Said(Blame),
    /// Its connection, or what it said could not be understood.
    Lost,
    /// It computed another prompt than the one that was sent.
    Counts {
        /// As it is.
        ours: Prompt,
        /// As the engine counted it.
        theirs: u32,
    },
    /// Prefill and decode have computed different prompts; which of them is right is not known.
    Differ {
        /// As prefill counted.
        prefill: u32,
        /// As decode did.
        decode: u32,
    },
    /// It could not be asked.
    Unreached,
    /// It said nothing for as long as it may.
    Silent,
    /// It did not say what it has computed.
    Uncounted,
    /// It answered with what is somebody else's.
    Anothers,
    /// Prefill gave no reference to its pages.
    NoReference,
    /// The request's time was over.
    Deadline,
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}
