//! Everything that happened, in order, and how often.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

/// Bodies above this are noted without themselves.
pub(crate) const NOTED_BODY: usize = 64 << 10;

/// What a request came with.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Arrival {
    /// The path, without a query.
    pub path: String,
    /// `rid`, `request_id`, or with vLLM the header `x-request-id`.
    pub rid: Option<String>,
    /// `bootstrap_room`.
    pub room: Option<u64>,
    /// `kv_transfer_params.remote_request_id`.
    pub reference: Option<String>,
    /// Tokens of the prompt, by the engine's own count.
    pub prompt_tokens: u64,
    /// Bytes of the body.
    pub bytes: u64,
    /// Names in the body, in their order.
    pub fields: Vec<String>,
    /// Name and value of each header.
    pub headers: Vec<(String, String)>,
    /// The body, unless it is large.
    pub body: Value,
}

/// How far a request was when something happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Before the other leg has come.
    Waiting,
    /// While the prompt is computed, or before anything is done.
    Computing,
    /// While it is handed over.
    Transferring,
    /// After that.
    Answering,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// A request.
    Arrived(Box<Arrival>),
    /// The prompt was handed over whole: noted by both legs.
    Transferred,
    /// The peer closed before the end.
    Disconnected {
        /// How far the request was.
        stage: Stage,
    },
    /// The engine was killed.
    Killed {
        /// How far the request was.
        stage: Stage,
    },
    /// Somebody called for an end of these.
    AbortCall {
        /// The id or its beginning.
        rid: String,
        /// How many requests it fits.
        hits: u64,
    },
    /// A request heard its abort.
    Aborted {
        /// How far the request was.
        stage: Stage,
    },
    /// A request ended by the engine's own doing.
    Ended {
        /// Of the response; 0 without one.
        status: u16,
    },
    /// A decode leg ended, and its prefill never came.
    Orphan,
    /// A leg ended by disconnect or abort while its transfer was possible.
    Broken,
    /// A bootstrap room came to this engine once more.
    RoomAgain {
        /// Which.
        room: u64,
    },
    /// vLLM's prefill handed out a reference.
    ReferenceMade {
        /// Its `remote_request_id`.
        id: String,
    },
    /// A decode read by it, as it may, once.
    ReferenceUsed {
        /// Its `remote_request_id`.
        id: String,
    },
    /// A decode read by one that was used before, whose lease had ended, or for another prompt.
    ReferenceMisused {
        /// Its `remote_request_id`.
        id: String,
        /// Which of these.
        why: &'static str,
    },
}

/// What happened, when, where, to which request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Since the fleet began.
    pub at_ms: f64,
    /// The engine's name.
    #[serde(serialize_with = "as_text")]
    pub engine: Arc<str>,
    /// Its request, from 1, counted through the whole fleet.
    pub request: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

fn as_text<S: serde::Serializer>(name: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name)
}

/// How often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that generate.
    pub arrived: u64,
    /// Of these, still running.
    pub in_flight: u64,
    /// Ended by the engine.
    pub ended: u64,
    /// Ended by the peer.
    pub disconnected: u64,
    /// Ended by an abort.
    pub aborted: u64,
    /// Decode legs without a prefill, ended.
    pub orphans: u64,
    /// Transfers that began: counted by the leg that writes, or reads by reference.
    pub transfers_begun: u64,
    /// Legs whose transfer is over.
    pub transferred: u64,
    /// Legs that left while their transfer was possible.
    pub broken: u64,
    /// Rooms that came again.
    pub rooms_again: u64,
    /// References handed out.
    pub references: u64,
    /// References used for the first time.
    pub references_used: u64,
    /// References used wrongly.
    pub references_misused: u64,
    /// Calls for an abort.
    pub abort_calls: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.arrived += other.arrived;
        self.in_flight += other.in_flight;
        self.ended += other.ended;
        self.disconnected += other.disconnected;
        self.aborted += other.aborted;
        self.orphans += other.orphans;
        self.transfers_begun += other.transfers_begun;
        self.transferred += other.transferred;
        self.broken += other.broken;
        self.rooms_again += other.rooms_again;
        self.references += other.references;
        self.references_used += other.references_used;
        self.references_misused += other.references_misused;
        self.abort_calls += other.abort_calls;
    }

    fn note(&mut self, what: &What) {
        match what {
            What::Arrived(_) | What::Killed { .. } => {}
            What::Transferred => self.transferred += 1,
            What::Disconnected { .. } => self.disconnected += 1,
            What::AbortCall { .. } => self.abort_calls += 1,
            What::Aborted { .. } => self.aborted += 1,
            What::Ended { .. } => self.ended += 1,
            What::Orphan => self.orphans += 1,
            What::Broken => self.broken += 1,
            What::RoomAgain { .. } => self.rooms_again += 1,
            What::ReferenceMade { .. } => self.references += 1,
            What::ReferenceUsed { .. } => self.references_used += 1,
            What::ReferenceMisused { .. } => self.references_misused += 1,
        }
    }
}

/// The log of a fleet.
pub(crate) struct Log {
    began: Instant,
    events: Mutex<Vec<Event>>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            events: Mutex::default(),
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().expect("nobody panics with it").clone()
    }

    pub(crate) fn clear(&self) {
        self.events.lock().expect("nobody panics with it").clear();
    }
}

/// One engine's way to the log.
pub(crate) struct Notes {
    pub(crate) engine: Arc<str>,
    pub(crate) noting: bool,
    pub(crate) log: Arc<Log>,
    pub(crate) counts: Mutex<Counts>,
}

impl Notes {
    pub(crate) fn note(&self, request: u64, what: What) {
        self.count(|counts| counts.note(&what));
        if !self.noting {
            return;
        }
        let mut events = self.log.events.lock().expect("nobody panics with it");
        let at_ms = self.log.began.elapsed().as_secs_f64() * 1e3;
        events.push(Event {
            at_ms,
            engine: self.engine.clone(),
            request,
            what,
        });
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().expect("nobody panics with it"));
    }
}
