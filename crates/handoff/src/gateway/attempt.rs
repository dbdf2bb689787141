//! Tries at a request: announced, computed, judged, retried, put back and gone on with.

use super::request::Request;
use super::workers::Pair;
use super::{Effect, Gateway, Item, Outcome, PrefillJudged, Timer};
use crate::Decisions;
use crate::id::{LastAttempt, RequestKey};
use crate::{
    AfterPrefill, AttemptId, Conn, Ending, Entry, Failure, Fault, Finish, GatewayToDecode,
    GatewayToPrefill, Hangup, Progress, Refusal, RequestId, Reserve, Resumed, Spec, Stage,
    UnderWay,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// One try that is attached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Attempt {
    pub id: AttemptId,
    /// What is to be computed: the request, or what is left of one of its choices.
    pub spec: Spec,
    pub prefill: Conn,
    pub decode: Conn,
    pub stage: AttemptStage,
    pub judged: Option<PrefillJudged>,
    /// What P failed with; D's ending wins over it.
    pub failing: Option<Ending>,
    /// D owes an answer to Expect or to Cancel, and has a deadline for it.
    pub asked: bool,
    /// The choice of the request that each of its own is.
    pub lanes: Vec<u16>,
    /// Those of them that were put back.
    pub put_back: Vec<u16>,
    /// Whether a token of it has reached the client.
    pub begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum AttemptStage {
    /// D was told; P was not.
    Announced,
    /// P has it.
    Prefilling,
}

impl Attempt {
    /// Its own number of this choice of the request, unless that was put back.
    pub(super) fn lane_of(&self, choice: u16) -> Option<u16> {
        let lane = self.lanes.iter().position(|known| *known == choice)?;
        (!self.put_back.contains(&choice)).then_some(lane as u16)
    }

    /// The choice of the request that its own number `lane` is, unless that was put back.
    fn choice_of(&self, lane: u16) -> Option<u16> {
        let choice = self.lanes.get(usize::from(lane)).copied()?;
        (!self.put_back.contains(&choice)).then_some(choice)
    }

    pub(super) fn under_way(&self, request: RequestId) -> UnderWay<Conn> {
        let progress = match (self.stage, self.judged) {
            (AttemptStage::Announced, _) => Progress::Announced,
            (AttemptStage::Prefilling, None) => Progress::Prefill,
            (AttemptStage::Prefilling, Some(_)) => Progress::Decode,
        };
        UnderWay {
            request,
            attempt: self.id,
            progress,
            prefill: Some(self.prefill),
            decode: self.decode,
        }
    }

    /// Choices of the request that end with it.
    fn going(&self) -> impl Iterator<Item = u16> {
        let lanes = self.lanes.iter().copied();
        lanes.filter(|choice| !self.put_back.contains(choice))
    }
}

/// Pairs that are up, and what is under way with each worker.
struct Choosing {
    pairs: Vec<Pair>,
    loads: BTreeMap<Conn, usize>,
}

impl Choosing {
    fn least_loaded<J: Decisions>(
        &self,
        decisions: J,
        spec: &Spec,
        not: &[(Conn, Conn)],
    ) -> Option<&Pair> {
        let load = |conn: Conn| self.loads.get(&conn).copied().unwrap_or(0);
        let others = self.pairs.iter();
        let others = others.filter(|pair| !not.contains(&(pair.prefill, pair.decode)));
        let able = others.filter(|pair| decisions.fits_pair(&pair.limit, spec).is_ok());
        able.min_by_key(|pair| {
            let (p, d) = (pair.prefill, pair.decode);
            (load(p) + load(d), p, d)
        })
    }
}

/// The request itself, or what is left of one of its choices: the prompt is longer by what was said,
/// the rest of the answer shorter by it (H-20).
fn spec_of<J: Decisions>(decisions: J, request: &Request, choices: &[u16]) -> Spec {
    let whole = &request.spec;
    let [choice] = choices else {
        return whole.clone();
    };
    if whole.choices == 1 && request.put_backs == 0 {
        return whole.clone();
    }
    let said = &request.said[usize::from(*choice)];
    let said = &said[..decisions.resumes_behind(said.len()).min(said.len())];
    Spec {
        tokens: [&whole.tokens, said].concat(),
        max_new: whole.max_new.saturating_sub(said.len() as u32),
        choices: 1,
        resumes: Some(Resumed {
            said: said.len() as u32,
            choice: *choice,
        }),
        ..whole.clone()
    }
}

impl<J: Decisions> Gateway<J> {
    /// Announces a new attempt at these choices to the least loaded pair that can take it; `before`
    /// is the attempt that it follows, if there was one.
    pub(super) fn begin_attempt(
        &mut self,
        n: RequestKey,
        choices: Vec<u16>,
        before: Option<AttemptId>,
    ) {
        let choosing = self.choosing();
        let Some(request) = self.requests.get_mut(&n) else {
            return; // no pair was left for a choice of it that went before
        };
        let spec = spec_of(self.decisions, request, &choices);
        let Some(pair) = choosing.least_loaded(self.decisions, &spec, &request.refused_by) else {
            return self.finish(n, Outcome::Refused(Refusal::PeerUnavailable));
        };
        let often = request.put_backs >= self.config.max_put_backs;
        let pages = match often {
            true => Reserve::All,
            false => pair.limit.reserve(&spec),
        };
        let spec = Spec { pages, ..spec };
        let last = self.last_attempt.0;
        let number = self.decisions.attempt_number(last, before, &spec);
        self.last_attempt = LastAttempt(number.max(last));
        let id = AttemptId {
            epoch: self.hello.epoch,
            n: number,
        };
        let deadline_ms = request.deadline_ms;
        self.attached.insert(id, n);
        request.attempts.push(Attempt {
            id,
            spec: spec.clone(),
            prefill: pair.prefill,
            decode: pair.decode,
            stage: AttemptStage::Announced,
            judged: None,
            failing: None,
            asked: true,
            lanes: choices,
            put_back: Vec::new(),
            begun: false,
        });
        let expect = GatewayToDecode::Expect {
            attempt: id,
            spec,
            prefill: pair.life,
            deadline_ms,
        };
        self.out.push(Effect::ToDecode(pair.decode, expect));
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
        let attempt = known.and_then(|request| request.attempt(id));
        // Otherwise D answered when the deadline had passed.
        if let Some(attempt) = attempt.filter(|attempt| attempt.asked) {
            let decode = attempt.decode;
            self.hang_up(decode, Hangup::Deadline);
        }
    }

    fn choosing(&self) -> Choosing {
        let mut loads: BTreeMap<Conn, usize> = BTreeMap::new();
        for attempt in self.requests.values().flat_map(|r| &r.attempts) {
            *loads.entry(attempt.prefill).or_default() += 1;
            *loads.entry(attempt.decode).or_default() += 1;
        }
        let pairs = self.pairs();
        Choosing { pairs, loads }
    }

    /// D expects it: now, and not before, P hears of it. (The design lets both be told at once; in
    /// this order an attempt that D refuses costs P nothing, and no offer comes too early.)
    pub(super) fn expecting(&mut self, conn: Conn, id: AttemptId) {
        let decode = self.decodes.get(&conn).and_then(super::Worker::epoch);
        let Some(decode) = decode else {
            return self.lost(Entry::Peer); // it has just said this
        };
        let Some((_, request, at)) = self.attached(id, conn) else {
            return; // late, or another's
        };
        let deadline_ms = request.deadline_ms;
        let attempt = &mut request.attempts[at];
        if attempt.stage != AttemptStage::Announced || attempt.failing.is_some() {
            return; // D says it twice, or P has failed meanwhile
        }
        attempt.asked = false;
        attempt.stage = AttemptStage::Prefilling;
        let (to, spec) = (attempt.prefill, attempt.spec.clone());
        self.out.push(Effect::Disarm(Timer::Answer(id)));
        let attempt = GatewayToPrefill::Attempt {
            attempt: id,
            spec,
            decode,
            deadline_ms,
        };
        self.out.push(Effect::ToPrefill(to, attempt));
    }

    /// An answer begins with the first commit. One that goes on after it was put back has begun.
    pub(super) fn committed(&mut self, conn: Conn, id: AttemptId, cached_tokens: u32) {
        let Some((n, request, at)) = self.attached(id, conn) else {
            return; // late, or another's
        };
        let begun = request.begun;
        let attempt = &mut request.attempts[at];
        if attempt.judged.is_some() {
            return; // D says it twice
        }
        attempt.judged = Some(PrefillJudged(()));
        let (p, d) = (attempt.prefill, attempt.decode);
        // Who had no room for it then may have some when it is tried again.
        request.refused_by.clear();
        if begun {
            return; // the client has its beginning
        }
        let decode = self.decodes.get(&d).and_then(super::Worker::epoch);
        let prefill = self.prefills.get(&p).and_then(super::Worker::epoch);
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
        lane: u16,
        token: u32,
        payload: Vec<u8>,
        finish: Option<Finish>,
    ) {
        let decisions = self.decisions;
        let Some((n, request, at)) = self.attached(id, conn) else {
            return; // late, or another's
        };
        let attempt = &request.attempts[at];
        let (judged, choice) = (attempt.judged, attempt.choice_of(lane));
        let stopped = choice.is_some_and(|choice| request.stopped.contains(&choice));
        if judged.is_some() && stopped {
            return; // it was on its way when the choice was stopped
        }
        let most = request.spec.max_new as usize;
        let choice = choice.filter(|choice| {
            !request.finished.contains(choice) && request.said[usize::from(*choice)].len() < most
        });
        match choice.filter(|_| decisions.may_deliver(judged)) {
            Some(choice) => {
                request.begun = true;
                request.said[usize::from(choice)].push(token);
                if finish.is_some() {
                    request.finished.push(choice);
                }
                request.attempts[at].begun = true;
                let item = Item::Tokens {
                    choice,
                    token,
                    payload,
                    finish,
                };
                let request = self.name(n);
                self.out.push(Effect::Deliver { request, item });
            }
            None => self.finish(n, Outcome::Failed(Failure::PeerFailed(Stage::Decode))),
        }
    }

    /// D needs the pages of this choice for an older sequence: it is computed further as another
    /// attempt, behind all that was said of it (H-20). One that finished meanwhile is not.
    pub(super) fn put_back(&mut self, conn: Conn, id: AttemptId, lane: u16) {
        let Some((n, request, at)) = self.attached(id, conn) else {
            return; // late, or another's
        };
        let attempt = &mut request.attempts[at];
        let Some(choice) = attempt.choice_of(lane).filter(|_| attempt.judged.is_some()) else {
            return; // D says it twice, or of what it has not committed
        };
        attempt.put_back.push(choice);
        if !request.finished.contains(&choice) {
            request.put_backs += 1;
            self.begin_attempt(n, vec![choice], Some(id));
        }
    }

    /// P's word about an attempt. A rejection is final; anything else waits for D's ending, which
    /// wins (H-6).
    pub(super) fn prefill_ended(&mut self, conn: Conn, id: AttemptId, ending: Ending) {
        let Some(n) = self.attached.get(&id).copied() else {
            return; // it is over: D's word came first
        };
        let attempt = self.requests.get(&n).and_then(|r| r.attempt(id));
        if attempt.is_none_or(|attempt| attempt.prefill != conn) {
            return; // another worker speaks of it
        }
        match self.decisions.after_prefill(ending) {
            AfterPrefill::AskDecode => {}
            AfterPrefill::Reject(why) => self.finish(n, Outcome::Rejected(why)),
            AfterPrefill::Fail(ending) => {
                if ending == Ending::Failed(Failure::Integrity(Fault::FailStop)) {
                    self.leaves(conn);
                }
                self.fail_attempt(n, id, ending);
            }
        }
    }

    fn fail_attempt(&mut self, n: RequestKey, id: AttemptId, ending: Ending) {
        let attempts = self.requests.get_mut(&n).map(|r| r.attempts.iter_mut());
        let attempt = attempts.and_then(|mut all| all.find(|attempt| attempt.id == id));
        let Some(attempt) = attempt else {
            return self.lost(Entry::Attempt);
        };
        // Once D has judged it, its word alone counts.
        if attempt.judged.is_none() && attempt.failing.is_none() {
            attempt.failing = Some(ending);
            attempt.asked = true;
            let cancel = GatewayToDecode::Cancel { attempt: id };
            let decode = attempt.decode;
            self.out.push(Effect::ToDecode(decode, cancel));
            self.arm_answer(id);
        }
    }

    pub(super) fn decode_ended(&mut self, conn: Conn, id: AttemptId, ending: Ending) {
        let Some((n, request, at)) = self.attached(id, conn) else {
            return; // late, or another's
        };
        let attempt = request.attempts.remove(at);
        let over = attempt.going().all(|it| request.finished.contains(&it));
        self.forget(&attempt);
        self.withdraw(&attempt);
        // Cancelled by us because P failed: then P's failure is what happened.
        let ending = match (&attempt.failing, ending) {
            (Some(failing), Ending::Cancelled) => failing.clone(),
            (_, ending) => ending,
        };
        match ending {
            Ending::Finished if over => self.finish_if_answered(n),
            Ending::Finished => {
                self.finish(n, Outcome::Failed(Failure::PeerFailed(Stage::Decode)));
            }
            Ending::Rejected(why) => self.finish(n, Outcome::Rejected(why)),
            Ending::Failed(Failure::Integrity(Fault::FailStop)) => {
                self.leaves(conn);
                self.retry_or_finish(n, attempt, ending);
            }
            other => self.retry_or_finish(n, attempt, other),
        }
    }

    /// One retry of a request, with new ids, if no token of the attempt was sent; the attempt is
    /// detached already.
    fn retry_or_finish(&mut self, n: RequestKey, attempt: Attempt, ending: Ending) {
        if let Ending::Refused(why) = ending
            && self.another_may_take_it(n, &attempt, why)
        {
            return self.again(n, attempt);
        }
        let may = match ending {
            // Another attempt would be given the same form.
            Ending::Failed(Failure::Deadline(_) | Failure::Form) => false,
            // That nobody else is there would say less than the last words of who was.
            Ending::Failed(Failure::Integrity(Fault::FailStop)) => !self.pairs().is_empty(),
            Ending::Failed(_) => true,
            _ => false,
        };
        let Some(request) = self.requests.get_mut(&n) else {
            return self.lost(Entry::Request);
        };
        if !attempt.begun && may && request.retries < self.config.max_retries {
            request.retries += 1;
            return self.again(n, attempt);
        }
        let outcome = match ending {
            Ending::Refused(why) => Outcome::Refused(why),
            Ending::Failed(failure) => Outcome::Failed(failure),
            _ => Outcome::Failed(Failure::PeerFailed(Stage::Decode)),
        };
        self.finish(n, outcome);
    }

    /// A worker that is full, drains or has lost its peer speaks for the pair, not for all pairs: it
    /// may know of a peer that is gone before this gateway does. What a tenant may have in flight
    /// is no more for being asked for elsewhere (H-16).
    fn another_may_take_it(&mut self, n: RequestKey, attempt: &Attempt, why: Refusal) -> bool {
        let choosing = self.choosing();
        let Some(request) = self.requests.get_mut(&n) else {
            return false; // whoever asked finds that out as well
        };
        request.refused_by.push((attempt.prefill, attempt.decode));
        let (decisions, not) = (self.decisions, &request.refused_by);
        why != Refusal::TenantCap
            && not.len() <= self.config.max_refusals as usize
            && choosing
                .least_loaded(decisions, &attempt.spec, not)
                .is_some()
    }

    /// What the attempt was to give: all choices once more, or each that is left on its own.
    fn again(&mut self, n: RequestKey, attempt: Attempt) {
        if attempt.put_back.is_empty() {
            return self.begin_attempt(n, attempt.lanes, Some(attempt.id));
        }
        for choice in attempt.going().collect::<Vec<_>>() {
            self.begin_attempt(n, vec![choice], Some(attempt.id));
        }
        self.finish_if_answered(n); // where nothing was left of it
    }

    pub(super) fn prefill_lost(&mut self, conn: Conn) {
        for (n, id) in self.attempts_on(|attempt| attempt.prefill == conn) {
            let failure = Failure::PeerFailed(Stage::Prefill);
            self.fail_attempt(n, id, Ending::Failed(failure));
        }
    }

    pub(super) fn decode_lost(&mut self, conn: Conn) {
        for (n, id) in self.attempts_on(|attempt| attempt.decode == conn) {
            let Some(request) = self.requests.get_mut(&n) else {
                continue; // another of its attempts was lost as well, and that was its outcome
            };
            let mut attempts = request.attempts.iter();
            let Some(at) = attempts.position(|attempt| attempt.id == id) else {
                return self.lost(Entry::Attempt);
            };
            let attempt = request.attempts.remove(at);
            self.forget(&attempt);
            self.withdraw(&attempt);
            let failure = Failure::PeerFailed(Stage::Decode);
            self.retry_or_finish(n, attempt, Ending::Failed(failure));
        }
    }

    fn attempts_on(&self, of: impl Fn(&Attempt) -> bool) -> Vec<(RequestKey, AttemptId)> {
        let all = self.requests.iter();
        let all = all.flat_map(|(n, r)| r.attempts.iter().map(|attempt| (*n, attempt)));
        all.filter(|(_, attempt)| of(attempt))
            .map(|(n, attempt)| (n, attempt.id))
            .collect()
    }
}
