//! A request's life: edge, attempts, one outcome.

use super::attempt::{Attempt, AttemptStage};
use super::{Effect, Gateway, Outcome, Timer};
use crate::Decisions;
use crate::id::RequestKey;
use crate::{AttemptId, Failure, GatewayToDecode, GatewayToPrefill, Refusal, Rejection, RequestId};
use crate::{Conn, Spec, Stage};
use serde::Serialize;

/// A request without an outcome. When the outcome is set the request is gone, so it is set once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Request {
    pub spec: Spec,
    pub deadline_ms: u64,
    pub retries: u32,
    /// Pairs of which a worker turned it away: it goes to others, if there are any.
    pub refused_by: Vec<(Conn, Conn)>,
    /// Tries that are attached, oldest first: one for all choices, and one for each choice that was
    /// put back. Whatever says another attempt's id is ignored.
    pub attempts: Vec<Attempt>,
    /// Whether a token has reached the client.
    pub begun: bool,
    /// What the client has of every choice. A choice that is put back goes on behind it.
    pub said: Vec<Vec<u32>>,
    /// How often a choice of it was put back.
    pub put_backs: u32,
    /// Choices that have finished.
    pub finished: Vec<u16>,
    /// Choices that the client's side needs no more of; what D still sends is dropped.
    pub stopped: Vec<u16>,
}

impl Request {
    fn new(spec: Spec, deadline_ms: u64) -> Self {
        Self {
            said: vec![Vec::new(); usize::from(spec.choices)],
            spec,
            deadline_ms,
            retries: 0,
            refused_by: Vec::new(),
            attempts: Vec::new(),
            begun: false,
            put_backs: 0,
            finished: Vec::new(),
            stopped: Vec::new(),
        }
    }

    pub(super) fn attempt(&self, id: AttemptId) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.id == id)
    }

    fn is_answered(&self) -> bool {
        self.finished.len() == usize::from(self.spec.choices)
    }
}

impl<J: Decisions> Gateway<J> {
    /// The edge: what no pair can take ends here, and nothing reaches a worker.
    pub(super) fn handle_request(&mut self, spec: Spec, deadline_ms: u64) {
        let request = self.next_request();
        let key = RequestKey(request.n);
        self.next_request.0 += 1;
        let outcome = self.judge(&spec);
        if let Some(outcome) = outcome {
            return self.out.push(Effect::Finish { request, outcome });
        }
        let choices = (0..spec.choices).collect();
        self.requests.insert(key, Request::new(spec, deadline_ms));
        self.out.push(Effect::Arm {
            timer: Timer::Request(request),
            after_ms: deadline_ms,
        });
        self.begin_attempt(key, choices, None);
    }

    fn judge(&self, spec: &Spec) -> Option<Outcome> {
        let pairs = self.pairs();
        if pairs.is_empty() {
            return Some(Outcome::Refused(Refusal::PeerUnavailable));
        }
        let refusals = pairs
            .iter()
            .map(|pair| self.decisions.fits_pair(&pair.limit, spec).err());
        // Refused by every pair: the error of the pair with the most room says the most.
        let refusals: Option<Vec<Rejection>> = refusals.collect();
        if let Some(rejection) = refusals.and_then(|all| all.into_iter().max_by_key(room)) {
            return Some(Outcome::Rejected(rejection));
        }
        if self.draining {
            return Some(Outcome::Refused(Refusal::Draining));
        }
        (self.requests.len() >= self.config.max_requests)
            .then_some(Outcome::Refused(Refusal::QueueFull))
    }

    pub(super) fn client_gone(&mut self, request: RequestId) {
        if request.epoch == self.hello.epoch && self.requests.contains_key(&RequestKey(request.n)) {
            self.finish(RequestKey(request.n), Outcome::ClientLeft);
        }
    }

    pub(super) fn request_deadline(&mut self, request: RequestId) {
        let Some(known) = self.requests.get(&RequestKey(request.n)) else {
            return; // it was answered when the deadline had passed
        };
        let judged = known
            .attempts
            .iter()
            .any(|attempt| attempt.judged.is_some());
        let at_prefill = |attempt: &Attempt| attempt.stage == AttemptStage::Prefilling;
        let stage = match known.attempts.iter().any(at_prefill) {
            _ if judged => Stage::Decode,
            true => Stage::Prefill,
            false => Stage::Queue,
        };
        let outcome = Outcome::Failed(Failure::Deadline(stage));
        self.finish(RequestKey(request.n), outcome);
    }

    pub(super) fn stop_choice(&mut self, request: RequestId, choice: u16) {
        let n = RequestKey(request.n);
        let Some(known) = self.requests.get_mut(&n) else {
            return; // it was answered meanwhile
        };
        if choice >= known.spec.choices || known.finished.contains(&choice) {
            return; // it finished meanwhile
        }
        known.finished.push(choice);
        known.stopped.push(choice);
        let of = |(at, attempt): (usize, &Attempt)| Some((at, attempt.lane_of(choice)?));
        let Some((at, lane)) = known.attempts.iter().enumerate().find_map(of) else {
            return self.finish_if_answered(n);
        };
        let attempt = &known.attempts[at];
        if attempt.judged.is_none() && attempt.spec.resumes.is_some() {
            // It was put back, and there is no handoff yet in which it could be stopped.
            let attempt = known.attempts.remove(at);
            self.detach(&attempt);
            return self.finish_if_answered(n);
        }
        let (decode, attempt, choice) = (attempt.decode, attempt.id, lane);
        let stop = GatewayToDecode::StopChoice { attempt, choice };
        self.out.push(Effect::ToDecode(decode, stop));
    }

    /// The answer is complete when every choice has finished and no attempt goes on.
    pub(super) fn finish_if_answered(&mut self, n: RequestKey) {
        let Some(request) = self.requests.get(&n) else {
            return; // no pair was left for what it had to go on with
        };
        if !request.attempts.is_empty() {
            return; // it goes on
        }
        let outcome = match request.is_answered() {
            true => Outcome::Answered,
            false => Outcome::Failed(Failure::PeerFailed(Stage::Decode)),
        };
        self.finish(n, outcome);
    }

    /// The answer stream at D ends, which is a cancel; P is told that it is not wanted.
    fn detach(&mut self, attempt: &Attempt) {
        self.forget(attempt);
        self.out.push(Effect::ToDecode(
            attempt.decode,
            GatewayToDecode::Cancel {
                attempt: attempt.id,
            },
        ));
        self.withdraw(attempt);
    }

    /// The attempt is its request's no more; nobody waits for what is said about it.
    pub(super) fn forget(&mut self, attempt: &Attempt) {
        self.attached.remove(&attempt.id);
        if attempt.asked {
            self.out.push(Effect::Disarm(Timer::Answer(attempt.id)));
        }
    }

    pub(super) fn withdraw(&mut self, attempt: &Attempt) {
        if attempt.stage == AttemptStage::Prefilling {
            let withdraw = GatewayToPrefill::Withdraw {
                attempt: attempt.id,
            };
            self.out.push(Effect::ToPrefill(attempt.prefill, withdraw));
        }
    }

    /// The one outcome (H-6). Whatever still goes on for the request ends.
    pub(super) fn finish(&mut self, n: RequestKey, outcome: Outcome) {
        let Some(request) = self.requests.remove(&n) else {
            return; // no pair was left for one of its choices: that was its outcome
        };
        for attempt in &request.attempts {
            self.detach(attempt);
        }
        let request = self.name(n);
        self.out.push(Effect::Disarm(Timer::Request(request)));
        self.out.push(Effect::Finish { request, outcome });
    }

    /// The request whose attached attempt this is, at that decode connection, and its place there.
    /// None: whoever says something of it is late, or is another.
    pub(super) fn attached(
        &mut self,
        id: AttemptId,
        conn: Conn,
    ) -> Option<(RequestKey, &mut Request, usize)> {
        let n = self.attached.get(&id).copied()?;
        let request = self.requests.get_mut(&n)?;
        let mut attempts = request.attempts.iter();
        let at = attempts.position(|it| it.id == id && it.decode == conn)?;
        Some((n, request, at))
    }

    pub(super) fn name(&self, n: RequestKey) -> RequestId {
        RequestId {
            epoch: self.hello.epoch,
            n: n.0,
        }
    }
}

/// How much room a rejection speaks of.
fn room(rejection: &Rejection) -> u64 {
    match rejection {
        Rejection::PromptTooLong { limit, .. } | Rejection::ContextTooLong { limit, .. } => {
            u64::from(*limit)
        }
        Rejection::TooManyPages { pool, .. } => *pool,
        _ => 0,
    }
}
