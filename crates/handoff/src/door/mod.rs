//! The door: the request machine in front of engines that are not ours.
//!
//! One request over one pair (a prefill leg, a decode leg) or over one server that answers by
//! itself. What the engines do with their pages is out of reach here; what they are asked, under
//! which identifiers, what is believed of their answers and when they are told to stop is not.
//! Clauses (DR-1 … DR-13) refer to `docs/door.md`.

mod attempt;
mod decisions;
mod event;
mod fleet;
mod legs;
mod request;

pub use decisions::Decisions;
pub use event::{
    Ask, Blame, Effect, End, Engine, EngineId, Event, Failing, Handing, Label, Leg, Outcome,
    Prompt, Serves, Timer, Turned, Whose, Why,
};
pub use legs::Moving;

use crate::id::{LastAttempt, NextRequest, RequestKey};
use crate::{AttemptId, Lengths, RequestId, UnderWay};
use attempt::Attempt;
use fleet::Known;
use pages::{Epoch, Sound};
use request::Request;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bounds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Requests at once.
    pub max_requests: usize,
    /// Automatic retries of a request, with new identifiers, while nothing of it was released.
    pub max_retries: u32,
    /// How long prefill's answer may take, or the first part of that of a server that answers by
    /// itself; milliseconds. 0: as long as the request may.
    pub prefill_ms: u64,
    /// How long decode may say nothing once prefill has answered: at least this, at most twice;
    /// milliseconds.
    pub silence_ms: u64,
    /// How long what prefill has written may still land after it ended in doubt, and how long
    /// prefill's word is waited for when decode has failed; milliseconds.
    pub settle_ms: u64,
    /// How long an attempt that nobody wants may go on before it is aborted, whatever may be under
    /// way between its engines; milliseconds.
    pub linger_ms: u64,
    /// Time for an engine's answer to an abort, milliseconds.
    pub abort_ms: u64,
    /// Failures of an engine one after the other from which on it is not asked for a while.
    pub faults: u32,
    /// That while, milliseconds.
    pub rest_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            max_retries: 2,
            prefill_ms: 300_000,
            silence_ms: 60_000,
            settle_ms: 3_000,
            linger_ms: 60_000,
            abort_ms: 2_000,
            faults: 5,
            rest_ms: 10_000,
        }
    }
}

/// No byte of an answer reaches a client before a value of this type exists: prefill's own answer
/// was read to its end and says that it computed this prompt. A server that answers by itself has
/// no prefill that could be judged: its own count is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PrefillJudged(());

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(bound = "")]
pub struct Door<J: Decisions = Sound> {
    epoch: Epoch,
    config: Config,
    #[serde(skip)]
    decisions: J,
    engines: BTreeMap<EngineId, Known>,
    requests: BTreeMap<RequestKey, Request>,
    /// Every attempt with a leg that has not ended, whether anybody wants it or not.
    attempts: BTreeMap<AttemptId, Attempt>,
    next_request: NextRequest,
    last_attempt: LastAttempt,
    draining: bool,
    #[serde(skip)]
    out: Vec<Effect>,
}

impl Door {
    /// A machine that knows no engine. The epoch is this life's: what is minted carries it.
    pub fn new(config: Config, epoch: Epoch) -> Self {
        Self::with_decisions(config, epoch, Sound)
    }
}

impl<J: Decisions> Door<J> {
    /// The same with decisions of a laboratory.
    pub fn with_decisions(config: Config, epoch: Epoch, decisions: J) -> Self {
        Self {
            epoch,
            config,
            decisions,
            engines: BTreeMap::new(),
            requests: BTreeMap::new(),
            attempts: BTreeMap::new(),
            next_request: NextRequest(1),
            last_attempt: LastAttempt(0),
            draining: false,
            out: Vec::new(),
        }
    }

    /// This life's.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The id that the next [`Event::Request`] gets.
    pub fn next_request(&self) -> RequestId {
        self.name(RequestKey(self.next_request.0))
    }

    /// What happened; what is to be done.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Engine(id, engine) => self.engine_known(id, engine),
            Event::Gone(id) => self.engine_gone(id),
            Event::Request { ask, deadline_ms } => self.handle_request(ask, deadline_ms),
            Event::ClientGone(request) => self.client_gone(request),
            Event::Part(attempt, said) => self.part(attempt, said),
            Event::Ended(attempt, Leg::Prefill, end) => self.prefill_ended(attempt, end),
            Event::Ended(attempt, Leg::Decode, end) => self.decode_ended(attempt, end),
            Event::Aborted(attempt, leg) => self.aborted(attempt, leg),
            Event::Fired(timer) => self.fired(timer),
            Event::Drain => self.draining = true,
        }
        std::mem::take(&mut self.out)
    }

    fn fired(&mut self, timer: Timer) {
        match timer {
            Timer::Request(request) => self.request_deadline(request),
            Timer::Stage(attempt) => self.stage_over(attempt),
            Timer::Settle(attempt) => self.settled(attempt),
            Timer::Word(attempt) => self.no_word_of_prefill(attempt),
            Timer::Linger(attempt) => self.lingered(attempt),
            Timer::Abort(attempt, leg) => self.abort_unanswered(attempt, leg),
            Timer::Rest(engine) => self.rested(engine),
        }
    }

    /// Nothing is under way.
    pub fn at_rest(&self) -> bool {
        self.requests.is_empty() && self.attempts.is_empty()
    }

    /// Requests that have no outcome yet.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Attempts that nobody wants any more and whose legs have not ended.
    pub fn unwanted(&self) -> usize {
        let unwanted = self.attempts.values().filter(|attempt| !attempt.wanted);
        unwanted.count()
    }

    /// Attempts whose legs have not ended, oldest first.
    pub fn under_way(&self) -> impl Iterator<Item = UnderWay<EngineId>> + '_ {
        self.attempts.iter().map(|(id, it)| UnderWay {
            request: self.name(it.request),
            attempt: *id,
            progress: it.progress(),
            prefill: it.prefill_at,
            decode: it.decode_at,
        })
    }

    /// The lengths that the routes take now, the largest first, each once; those that are not known
    /// are none.
    pub fn lengths(&self) -> Vec<Lengths> {
        sorted(self.routes())
    }

    /// The same of what may be asked for this.
    fn lengths_for(&self, ask: &Ask) -> Vec<Lengths> {
        sorted(self.routes_of(ask))
    }

    /// The engine at which an attempt's prompt is computed, while the attempt is known.
    pub fn prefill_of(&self, attempt: AttemptId) -> Option<EngineId> {
        self.attempts.get(&attempt)?.prefill_at
    }

    fn name(&self, key: RequestKey) -> RequestId {
        RequestId {
            epoch: self.epoch,
            n: key.0,
        }
    }

    fn key(&self, request: RequestId) -> Option<RequestKey> {
        let key = RequestKey(request.n);
        (request.epoch == self.epoch && self.requests.contains_key(&key)).then_some(key)
    }

    fn arm(&mut self, timer: Timer, after_ms: u64) {
        self.out.push(Effect::Arm { timer, after_ms });
    }
}

/// The lengths of routes, the largest first, each once.
fn sorted(routes: Vec<fleet::Route>) -> Vec<Lengths> {
    let known = routes.into_iter().filter_map(|route| route.lengths);
    let mut known: Vec<Lengths> = known.collect();
    known.sort_by_key(|it| std::cmp::Reverse((it.max_prompt, it.max_model_len)));
    known.dedup();
    known
}
