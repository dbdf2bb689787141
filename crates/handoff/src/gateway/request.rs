//! A request's life: edge, expectation, attempt, answer, outcome.

use super::{Effect, Gateway, Item, Outcome, PrefillJudged, Timer};
use crate::Decisions;
use crate::id::{LastAttempt, RequestKey};
use crate::{
    AfterPrefill, AttemptId, Conn, Ending, Failure, Fault, Finish, GatewayToDecode,
    GatewayToPrefill, Hangup, Refusal, Rejection, RequestId, Spec, Stage,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A request without an outcome. When the outcome is set the request is gone, so it is set once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Request {
    pub spec: Spec,
    pub deadline_ms: u64,
    pub retries: u32,
    pub attempt: Option<Attempt>,
    /// Whether a token has reached the client.
    pub begun: bool,
    /// Choices that have finished.
    pub finished: Vec<u16>,
    /// Choices that the client's side needs no more of; what D still sends is dropped.
    pub stopped: Vec<u16>,
}

/// The one try that is attached. Whatever says another attempt's id is ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Attempt {
    pub id: AttemptId,
    pub prefill: Conn,
    pub decode: Conn,
    pub stage: AttemptStage,
    pub judged: Option<PrefillJudged>,
    /// What P failed with; D's ending wins over it.
    pub failing: Option<Ending>,
    /// D owes an answer to Expect or to Cancel, and has a deadline for it.
    pub asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum AttemptStage {
    /// D was told; P was not.
    Announced,
    /// P has it.
    Prefilling,
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
        let known = Request {
            spec,
            deadline_ms,
            retries: 0,
            attempt: None,
            begun: false,
            finished: Vec::new(),
            stopped: Vec::new(),
        };
        self.requests.insert(key, known);
        self.out.push(Effect::Arm {
            timer: Timer::Request(request),
            after_ms: deadline_ms,
        });
        self.begin_attempt(key, None);
    }

    fn judge(&self, spec: &Spec) -> Option<Outcome> {
        let pairs = self.pairs();
        if pairs.is_empty() {
            return Some(Outcome::Refused(Refusal::PeerUnavailable));
        }
        let refusals = pairs
            .iter()
            .map(|(_, _, limit)| self.decisions.fits_pair(limit, spec).err());
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

    /// Announces a new attempt to the least loaded pair that can take it; `before` is the attempt
    /// that it follows, if there was one.
    fn begin_attempt(&mut self, n: RequestKey, before: Option<AttemptId>) {
        let Some(request) = self.requests.get(&n) else {
            return;
        };
        let mut loads: BTreeMap<Conn, usize> = BTreeMap::new();
        for attempt in self.requests.values().filter_map(|r| r.attempt.as_ref()) {
            *loads.entry(attempt.prefill).or_default() += 1;
            *loads.entry(attempt.decode).or_default() += 1;
        }
        let load = |conn: Conn| loads.get(&conn).copied().unwrap_or_default();
        let able = self
            .pairs()
            .into_iter()
            .filter(|(_, _, limit)| self.decisions.fits_pair(limit, &request.spec).is_ok());
        let Some((prefill, decode, _)) = able.min_by_key(|(p, d, _)| (load(*p) + load(*d), *p, *d))
        else {
            return self.finish(n, Outcome::Refused(Refusal::PeerUnavailable));
        };
        let epoch = |conn, map: &BTreeMap<Conn, super::Worker>| {
            map.get(&conn)
                .and_then(|worker| worker.hello.as_ref())
                .map(|hello| hello.epoch)
        };
        let Some(prefill_epoch) = epoch(prefill, &self.prefills) else {
            return;
        };
        let last = self.last_attempt.0;
        let number = self.decisions.attempt_number(last, before, &request.spec);
        self.last_attempt = LastAttempt(number.max(last));
        let id = AttemptId {
            epoch: self.hello.epoch,
            n: number,
        };
        let (spec, deadline_ms) = (request.spec.clone(), request.deadline_ms);
        if let Some(request) = self.requests.get_mut(&n) {
            let stage = AttemptStage::Announced;
            self.attached.insert(id, n);
            request.attempt = Some(Attempt {
                id,
                prefill,
                decode,
                stage,
                judged: None,
                failing: None,
                asked: true,
            });
        }
        let expect = GatewayToDecode::Expect {
            attempt: id,
            spec,
            prefill: prefill_epoch,
            deadline_ms,
        };
        self.out.push(Effect::ToDecode(decode, expect));
        self.arm_answer(id);
    }

    fn arm_answer(&mut self, attempt: AttemptId) {
        self.out.push(Effect::Arm {
            timer: Timer::Answer(attempt),
            after_ms: self.config.answer_ms,
        });
    }

    /// D has not answered in time. It may be stopped, and what it is hung up on tells nothing of what
    /// it may still do: the attempt is over here, its number is never used again (H-8).
    pub(super) fn answer_deadline(&mut self, id: AttemptId) {
        let known = self.attached.get(&id).and_then(|n| self.requests.get(n));
        let attempt = known.and_then(|request| request.attempt.as_ref());
        if let Some(attempt) = attempt.filter(|attempt| attempt.asked) {
            let decode = attempt.decode;
            self.hang_up(decode, Hangup::Deadline);
        }
    }

    /// D expects it: now, and not before, P hears of it. (The design lets both be told at once; in
    /// this order an attempt that D refuses costs P nothing, and no offer comes too early.)
    pub(super) fn expecting(&mut self, conn: Conn, id: AttemptId) {
        let decode = self
            .decodes
            .get(&conn)
            .and_then(|worker| worker.hello.as_ref());
        let Some(decode) = decode.map(|hello| hello.epoch) else {
            return;
        };
        let Some(n) = self.attached(id, conn) else {
            return;
        };
        let Some(request) = self.requests.get_mut(&n) else {
            return;
        };
        let (spec, deadline_ms) = (request.spec.clone(), request.deadline_ms);
        let Some(attempt) = &mut request.attempt else {
            return;
        };
        if attempt.stage != AttemptStage::Announced || attempt.failing.is_some() {
            return;
        }
        attempt.asked = false;
        self.out.push(Effect::Disarm(Timer::Answer(id)));
        attempt.stage = AttemptStage::Prefilling;
        let to = attempt.prefill;
        let attempt = GatewayToPrefill::Attempt {
            attempt: id,
            spec,
            decode,
            deadline_ms,
        };
        self.out.push(Effect::ToPrefill(to, attempt));
    }

    pub(super) fn committed(&mut self, conn: Conn, id: AttemptId, cached_tokens: u32) {
        let Some(n) = self.attached(id, conn) else {
            return;
        };
        let attempt = self.requests.get(&n).and_then(|r| r.attempt.as_ref());
        let Some(attempt) = attempt.filter(|attempt| attempt.judged.is_none()) else {
            return;
        };
        let (p, d) = (attempt.prefill, attempt.decode);
        let decode = self.decodes.get(&d).and_then(super::Worker::epoch);
        let prefill = self.prefills.get(&p).and_then(super::Worker::epoch);
        let Some(request) = self.requests.get_mut(&n) else {
            return;
        };
        if let Some(attempt) = &mut request.attempt {
            attempt.judged = Some(PrefillJudged(()));
        }
        let item = Item::Begin {
            cached_tokens,
            prefill,
            decode,
        };
        let request = self.name(n);
        self.out.push(Effect::Deliver { request, item });
    }

    /// A token before the commit would be one that nobody verified: the attempt fails (H-9).
    pub(super) fn tokens(
        &mut self,
        conn: Conn,
        id: AttemptId,
        choice: u16,
        payload: Vec<u8>,
        finish: Option<Finish>,
    ) {
        let Some(n) = self.attached(id, conn) else {
            return;
        };
        let Some(request) = self.requests.get_mut(&n) else {
            return;
        };
        let judged = request.attempt.as_ref().and_then(|attempt| attempt.judged);
        if judged.is_some() && request.stopped.contains(&choice) {
            return; // it was on its way when the choice was stopped
        }
        let expected = choice < request.spec.choices && !request.finished.contains(&choice);
        match self.decisions.may_deliver(judged) {
            true if expected => {
                request.begun = true;
                if finish.is_some() {
                    request.finished.push(choice);
                }
                let item = Item::Tokens {
                    choice,
                    payload,
                    finish,
                };
                let request = self.name(n);
                self.out.push(Effect::Deliver { request, item });
            }
            _ => {
                self.detach(n);
                self.finish(n, Outcome::Failed(Failure::PeerFailed(Stage::Decode)));
            }
        }
    }

    /// P's word about an attempt. A rejection is final; anything else waits for D's ending, which
    /// wins (H-6).
    pub(super) fn prefill_ended(&mut self, conn: Conn, id: AttemptId, ending: Ending) {
        let Some(n) = self.attached.get(&id).copied() else {
            return;
        };
        let attempt = self.requests.get(&n).and_then(|r| r.attempt.as_ref());
        if attempt.is_none_or(|attempt| attempt.prefill != conn) {
            return;
        }
        match self.decisions.after_prefill(ending) {
            AfterPrefill::AskDecode => {}
            AfterPrefill::Reject(why) => {
                self.detach(n);
                self.finish(n, Outcome::Rejected(why));
            }
            AfterPrefill::Fail(ending) => {
                if ending == Ending::Failed(Failure::Integrity(Fault::FailStop)) {
                    self.leaves(conn);
                }
                self.fail_attempt(n, ending);
            }
        }
    }

    fn fail_attempt(&mut self, n: RequestKey, ending: Ending) {
        let Some(request) = self.requests.get_mut(&n) else {
            return;
        };
        let Some(attempt) = &mut request.attempt else {
            return;
        };
        if attempt.judged.is_none() && attempt.failing.is_none() {
            attempt.failing = Some(ending);
            attempt.asked = true;
            let (decode, attempt) = (attempt.decode, attempt.id);
            self.out.push(Effect::ToDecode(
                decode,
                GatewayToDecode::Cancel { attempt },
            ));
            self.arm_answer(attempt);
        }
    }

    pub(super) fn decode_ended(&mut self, conn: Conn, id: AttemptId, ending: Ending) {
        let Some(n) = self.attached(id, conn) else {
            return;
        };
        let Some(request) = self.requests.get_mut(&n) else {
            return;
        };
        let all = request.finished.len() == request.spec.choices as usize;
        let Some(attempt) = self.take_attempt(n) else {
            return;
        };
        self.withdraw(&attempt);
        // Cancelled by us because P failed: then P's failure is what happened.
        let ending = match (attempt.failing, ending) {
            (Some(failing), Ending::Cancelled) => failing,
            (_, ending) => ending,
        };
        match ending {
            Ending::Finished if all => self.finish(n, Outcome::Answered),
            Ending::Finished => {
                self.finish(n, Outcome::Failed(Failure::PeerFailed(Stage::Decode)));
            }
            Ending::Rejected(why) => self.finish(n, Outcome::Rejected(why)),
            Ending::Failed(Failure::Integrity(Fault::FailStop)) => {
                self.leaves(conn);
                self.retry_or_finish(n, id, ending);
            }
            other => self.retry_or_finish(n, id, other),
        }
    }

    /// One retry, with new ids, if no token was sent; the old attempt is detached already.
    fn retry_or_finish(&mut self, n: RequestKey, attempt: AttemptId, ending: Ending) {
        let may = match ending {
            Ending::Failed(Failure::Deadline(_)) => false,
            // That nobody else is there would say less than the last words of who was.
            Ending::Failed(Failure::Integrity(Fault::FailStop)) => !self.pairs().is_empty(),
            Ending::Failed(_) => true,
            _ => false,
        };
        let Some(request) = self.requests.get_mut(&n) else {
            return;
        };
        if !request.begun && may && request.retries < self.config.max_retries {
            request.retries += 1;
            return self.begin_attempt(n, Some(attempt));
        }
        let outcome = match ending {
            Ending::Refused(why) => Outcome::Refused(why),
            Ending::Failed(failure) => Outcome::Failed(failure),
            _ => Outcome::Failed(Failure::PeerFailed(Stage::Decode)),
        };
        self.finish(n, outcome);
    }

    pub(super) fn prefill_lost(&mut self, conn: Conn) {
        for n in self.requests_on(|attempt| attempt.prefill == conn) {
            self.fail_attempt(n, Ending::Failed(Failure::PeerFailed(Stage::Prefill)));
        }
    }

    pub(super) fn decode_lost(&mut self, conn: Conn) {
        for n in self.requests_on(|attempt| attempt.decode == conn) {
            let Some(attempt) = self.take_attempt(n) else {
                continue;
            };
            self.withdraw(&attempt);
            let failure = Failure::PeerFailed(Stage::Decode);
            self.retry_or_finish(n, attempt.id, Ending::Failed(failure));
        }
    }

    fn requests_on(&self, of: impl Fn(&Attempt) -> bool) -> Vec<RequestKey> {
        let on = self
            .requests
            .iter()
            .filter(|(_, r)| r.attempt.as_ref().is_some_and(&of));
        on.map(|(n, _)| *n).collect()
    }

    pub(super) fn client_gone(&mut self, request: RequestId) {
        if request.epoch == self.hello.epoch && self.requests.contains_key(&RequestKey(request.n)) {
            self.detach(RequestKey(request.n));
            self.finish(RequestKey(request.n), Outcome::ClientLeft);
        }
    }

    pub(super) fn request_deadline(&mut self, request: RequestId) {
        let Some(known) = self.requests.get(&RequestKey(request.n)) else {
            return;
        };
        let stage = match &known.attempt {
            Some(attempt) if attempt.judged.is_some() => Stage::Decode,
            Some(attempt) if attempt.stage == AttemptStage::Prefilling => Stage::Prefill,
            _ => Stage::Queue,
        };
        self.detach(RequestKey(request.n));
        self.finish(
            RequestKey(request.n),
            Outcome::Failed(Failure::Deadline(stage)),
        );
    }

    pub(super) fn stop_choice(&mut self, request: RequestId, choice: u16) {
        let Some(known) = self.requests.get(&RequestKey(request.n)) else {
            return;
        };
        if let Some(attempt) = &known.attempt {
            let (decode, attempt) = (attempt.decode, attempt.id);
            let stop = GatewayToDecode::StopChoice { attempt, choice };
            self.out.push(Effect::ToDecode(decode, stop));
        }
        if let Some(known) = self.requests.get_mut(&RequestKey(request.n))
            && choice < known.spec.choices
            && !known.finished.contains(&choice)
        {
            known.finished.push(choice);
            known.stopped.push(choice);
        }
    }

    /// The answer stream at D ends, which is a cancel; P is told that it is not wanted.
    fn detach(&mut self, n: RequestKey) {
        let Some(attempt) = self.take_attempt(n) else {
            return;
        };
        let (decode, id) = (attempt.decode, attempt.id);
        self.out.push(Effect::ToDecode(
            decode,
            GatewayToDecode::Cancel { attempt: id },
        ));
        self.withdraw(&attempt);
    }

    /// The attempt is not this request's any more; nobody waits for what is said about it.
    fn take_attempt(&mut self, n: RequestKey) -> Option<Attempt> {
        let attempt = self.requests.get_mut(&n)?.attempt.take()?;
        self.attached.remove(&attempt.id);
        if attempt.asked {
            self.out.push(Effect::Disarm(Timer::Answer(attempt.id)));
        }
        Some(attempt)
    }

    fn withdraw(&mut self, attempt: &Attempt) {
        if attempt.stage == AttemptStage::Prefilling {
            let withdraw = GatewayToPrefill::Withdraw {
                attempt: attempt.id,
            };
            self.out.push(Effect::ToPrefill(attempt.prefill, withdraw));
        }
    }

    /// The one outcome (H-6).
    fn finish(&mut self, n: RequestKey, outcome: Outcome) {
        if self.requests.remove(&n).is_some() {
            let request = self.name(n);
            self.out.push(Effect::Disarm(Timer::Request(request)));
            self.out.push(Effect::Finish { request, outcome });
        }
    }

    /// The request whose attached attempt this is, at that decode connection.
    fn attached(&self, id: AttemptId, conn: Conn) -> Option<RequestKey> {
        let n = self.attached.get(&id).copied()?;
        let attempt = self.requests.get(&n)?.attempt.as_ref()?;
        (attempt.decode == conn).then_some(n)
    }

    fn name(&self, n: RequestKey) -> RequestId {
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
