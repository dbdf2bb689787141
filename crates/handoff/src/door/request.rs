//! A request, from the edge to its one outcome.

use super::{Ask, Decisions, Door, Effect, EngineId, Failing, Leg, Outcome, Timer, Turned, Why};
use crate::id::RequestKey;
use crate::{AttemptId, Lengths, RequestId};
use serde::Serialize;

/// A request that has no outcome yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Request {
    pub ask: Ask,
    pub retries: u32,
    /// Its present attempt.
    pub attempt: Option<AttemptId>,
    /// Engines that have failed it.
    pub avoid: Vec<EngineId>,
    /// Something of an answer was released to the client.
    pub released: bool,
    /// How its last attempt failed.
    pub failing: Option<Failing>,
}

impl<J: Decisions> Door<J> {
    /// The edge: what no engine can hold ends here, and nothing is asked of one (DR-8).
    pub(super) fn handle_request(&mut self, ask: Ask, deadline_ms: u64) {
        let key = RequestKey(self.next_request.0);
        let request = self.name(key);
        self.next_request.0 += 1;
        if let Some(outcome) = self.judge(&ask) {
            return self.out.push(Effect::Finish { request, outcome });
        }
        let new = Request {
            ask,
            retries: 0,
            attempt: None,
            avoid: Vec::new(),
            released: false,
            failing: None,
        };
        self.requests.insert(key, new);
        self.arm(Timer::Request(request), deadline_ms);
        self.begin_or_end(key);
    }

    fn judge(&self, ask: &Ask) -> Option<Outcome> {
        let known = self.lengths_for(ask);
        let Some(limit) = known.first() else {
            return Some(Outcome::Refused(Turned::NoEngine));
        };
        let room = |lengths: &Lengths| {
            self.decisions
                .room(Some(*lengths), ask.prompt, ask.max_new)
                .is_some()
        };
        if !known.iter().any(room) {
            return Some(Outcome::TooLong {
                prompt: ask.prompt,
                max_new: ask.max_new,
                limit: *limit,
            });
        }
        if self.draining {
            return Some(Outcome::Refused(Turned::Draining));
        }
        (self.requests.len() >= self.config.max_requests).then_some(Outcome::Refused(Turned::Full))
    }

    /// The first attempt at a request that may be taken on.
    fn begin_or_end(&mut self, key: RequestKey) {
        if self.begin_attempt(key, None) {
            return;
        }
        let resting = self.resting().next().is_some();
        let why = match resting {
            true => Turned::NoEngine,
            false => Turned::Full,
        };
        self.finish(key, Outcome::Refused(why));
    }

    /// A leg of the present attempt has failed for good: the request is tried again, or ends (DR-6).
    pub(super) fn attempt_failed(&mut self, key: RequestKey, failing: Failing, at: EngineId) {
        let max_retries = self.config.max_retries;
        let Some(request) = self.requests.get_mut(&key) else {
            return; // it has ended
        };
        request.attempt = None;
        request.failing = Some(failing);
        request.avoid.push(at);
        let again = failing.why.may_be_tried_again()
            && request.retries < max_retries
            && self.decisions.may_retry(request.released);
        if !again {
            return self.finish(key, Outcome::Failed(failing));
        }
        request.retries += 1;
        self.try_again(key);
    }

    /// Goes on elsewhere, as soon as nothing of what was tried before can be there any more.
    pub(super) fn try_again(&mut self, key: RequestKey) {
        let waits = self.requests.get(&key).filter(|it| it.attempt.is_none());
        let Some(failing) = waits.and_then(|request| request.failing) else {
            return; // it has ended, or its present attempt is another
        };
        if self.begin_attempt(key, Some(failing.attempt)) {
            return;
        }
        if self.route_for(key, true).is_none() {
            self.finish(key, Outcome::Failed(failing));
        }
    }

    pub(super) fn client_gone(&mut self, request: RequestId) {
        if let Some(key) = self.key(request) {
            self.finish(key, Outcome::ClientLeft);
        }
    }

    pub(super) fn request_deadline(&mut self, request: RequestId) {
        let Some(key) = self.key(request) else {
            return; // it was answered when the deadline had passed
        };
        let known = &self.requests[&key];
        let waiting = known.attempt.is_none();
        let before = known.failing.map(|failing| (failing.attempt, failing.leg));
        let now = known.attempt.and_then(|id| {
            let leg = match self.attempts.get(&id)?.judged {
                None => Leg::Prefill,
                Some(_) => Leg::Decode,
            };
            Some((id, leg))
        });
        let Some((attempt, leg)) = now.or(before) else {
            return self.out.push(Effect::FailStop(crate::Broken::Lost(
                crate::Entry::Attempt, // every request has one, or had
            )));
        };
        if self.decisions.ends_at_deadline(waiting) {
            let why = Why::Deadline;
            self.finish(key, Outcome::Failed(Failing { attempt, leg, why }));
        }
    }

    /// The one outcome (DR-3). What still goes on for the request is wound up.
    pub(super) fn finish(&mut self, key: RequestKey, outcome: Outcome) {
        let Some(ended) = self.requests.remove(&key) else {
            return; // it had its outcome
        };
        let request = self.name(key);
        self.out.push(Effect::Disarm(Timer::Request(request)));
        self.out.push(Effect::Finish { request, outcome });
        if let Some(id) = ended.attempt {
            self.unwanted_now(id);
        }
    }
}

impl Why {
    /// Whether another engine may do better. What points to pages of somebody else, and what is the
    /// client's fault, is not tried again: it would only be hidden.
    fn may_be_tried_again(self) -> bool {
        use super::Blame;
        match self {
            Self::Said(Blame::Busy | Blame::Engine)
            | Self::Lost
            | Self::Unreached
            | Self::Silent
            | Self::NoReference => true,
            Self::Said(Blame::Client)
            | Self::Counts { .. }
            | Self::Differ { .. }
            | Self::Uncounted
            | Self::Anothers
            | Self::Deadline => false,
        }
    }
}
