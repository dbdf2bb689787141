//! The gateway's request machine: admission at the edge, one outcome, retry with new ids, and when
//! a byte may leave.

mod attempt;
mod event;
mod request;
mod workers;

pub use event::{Effect, Event, Item, Outcome, Timer};

use crate::id::{LastAttempt, NextRequest, RequestKey};
use crate::{
    AttemptId, Broken, Capacity, Conn, Decisions, Entry, Hello, Limit, RequestId, Role, UnderWay,
};
use pages::{Epoch, Sound};
use request::Request;
use serde::Serialize;
use std::collections::BTreeMap;
use workers::Worker;

/// Bounds.
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Config {
    /// Requests at once.
    pub max_requests: usize,
    /// Automatic retries of a request, with new ids, while no token was sent (H-16).
    pub max_retries: u32,
    /// How often choices of a request may be put back (H-20); from then on decode takes all pages
    /// that they can need at once, and they are not put back again.
    pub max_put_backs: u32,
    /// Pairs that may turn a request away before it is told so, beside the first: where all are
    /// full, asking every pair of a large fleet would be work for those who have too much of it.
    pub max_refusals: u32,
    /// Time for a worker's Hello, and for decode's answer to Expect and to Cancel, milliseconds. A
    /// worker answers between two steps. One that does not is hung up on, and no request goes to it
    /// before it has said Hello again.
    pub answer_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_requests: 1024,
            max_retries: 1,
            max_put_backs: 3,
            max_refusals: 4,
            answer_ms: 20_000,
        }
    }
}

/// No byte of an answer reaches a client before a value of this type exists. For our own workers
/// only D's `Committed` makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PrefillJudged(());

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(bound = "")]
pub struct Gateway<J: Decisions = Sound> {
    hello: Hello,
    config: Config,
    #[serde(skip)]
    decisions: J,
    prefills: BTreeMap<Conn, Worker>,
    decodes: BTreeMap<Conn, Worker>,
    requests: BTreeMap<RequestKey, Request>,
    /// The request of every attached attempt.
    attached: BTreeMap<AttemptId, RequestKey>,
    next_request: NextRequest,
    last_attempt: LastAttempt,
    draining: bool,
    #[serde(skip)]
    out: Vec<Effect>,
}

impl Gateway {
    /// A machine without workers.
    pub fn new(config: Config, hello: Hello) -> Self {
        Self::with_decisions(config, hello, Sound)
    }
}

impl<J: Decisions> Gateway<J> {
    /// The same under other decisions, for a laboratory.
    pub fn with_decisions(config: Config, hello: Hello, decisions: J) -> Self {
        Self {
            hello: Hello {
                role: Role::Gateway,
                capacity: None,
                ..hello
            },
            config,
            decisions,
            prefills: BTreeMap::new(),
            decodes: BTreeMap::new(),
            requests: BTreeMap::new(),
            attached: BTreeMap::new(),
            next_request: NextRequest(1),
            last_attempt: LastAttempt(0),
            draining: false,
            out: Vec::new(),
        }
    }

    /// The id that the next `Request` event will get (H-8: minted here, whatever the client says).
    pub fn next_request(&self) -> RequestId {
        RequestId {
            epoch: self.hello.epoch,
            n: self.next_request.0,
        }
    }

    /// Applies an event. The effects are to be carried out in order.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::PrefillDialled(conn) => self.prefill_dialled(conn),
            Event::DecodeDialled(conn) => self.decode_dialled(conn),
            Event::FromPrefill(conn, message) => self.handle_prefill(conn, message),
            Event::FromDecode(conn, message) => self.handle_decode(conn, message),
            Event::Disconnected(conn) => self.handle_disconnected(conn),
            Event::Request { spec, deadline_ms } => self.handle_request(spec, deadline_ms),
            Event::ClientGone(request) => self.client_gone(request),
            Event::StopChoice(request, choice) => self.stop_choice(request, choice),
            Event::Fired(Timer::Request(request)) => self.request_deadline(request),
            Event::Fired(Timer::Greeting(conn)) => self.greeting_deadline(conn),
            Event::Fired(Timer::Answer(attempt)) => self.answer_deadline(attempt),
            Event::Drain => self.draining = true,
        }
        std::mem::take(&mut self.out)
    }

    /// What another book of the machine names is not where it must be.
    fn lost(&mut self, what: Entry) {
        self.out.push(Effect::FailStop(Broken::Lost(what)));
    }
}

/// Questions.
impl<J: Decisions> Gateway<J> {
    /// What this life says of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The limits of the pairs that are up, each once, the largest first. A request goes to a pair
    /// that holds it, so the first one is what is advertised. Empty: no pair is up.
    pub fn limits(&self) -> Vec<Limit> {
        let pairs = self.pairs().into_iter().map(|pair| pair.limit);
        let mut limits: Vec<_> = pairs.collect();
        limits.sort_by_key(|limit| std::cmp::Reverse((limit.lengths(), *limit)));
        limits.dedup_by_key(|limit| limit.lengths());
        limits
    }

    /// Workers that are up: epoch and measured capacity, prefill first.
    pub fn workers(&self) -> Vec<(Epoch, Capacity)> {
        let up = self.prefills.values().chain(self.decodes.values());
        up.filter_map(|worker| worker.hello.as_ref())
            .filter_map(|hello| hello.capacity.map(|capacity| (hello.epoch, capacity)))
            .collect()
    }

    /// Whose attempt this is, and the lives of prefill and decode that it is with; none once it is
    /// detached.
    pub fn about(&self, attempt: AttemptId) -> Option<(RequestId, Option<Epoch>, Option<Epoch>)> {
        let key = self.attached.get(&attempt)?;
        let known = self.requests.get(key)?.attempt(attempt)?;
        let request = RequestId {
            epoch: self.hello.epoch,
            n: key.0,
        };
        let prefill = self.prefills.get(&known.prefill).and_then(Worker::epoch);
        let decode = self.decodes.get(&known.decode).and_then(Worker::epoch);
        Some((request, prefill, decode))
    }

    /// Attempts that are attached, in the order in which their requests came.
    pub fn under_way(&self) -> impl Iterator<Item = UnderWay<Conn>> + '_ {
        let requests = self.requests.iter();
        requests.flat_map(|(key, known)| {
            let request = RequestId {
                epoch: self.hello.epoch,
                n: key.0,
            };
            known.attempts.iter().map(move |it| it.under_way(request))
        })
    }

    /// Requests without an outcome.
    pub fn load(&self) -> usize {
        self.requests.len()
    }

    /// For checkers only: attempts are numbered from behind this number on.
    #[doc(hidden)]
    pub fn begin_at_for_checker(&mut self, number: u64) {
        self.last_attempt = LastAttempt(number);
    }
}
