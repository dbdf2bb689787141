//! What the door counts since its start.

use crate::engine::counters;
use handoff::door::{Blame, End, Leg, Outcome, Why};

counters! {
    /// Requests that the machine judged.
    requests_judged,
    /// Requests that ended with a whole answer.
    requests_answered,
    /// Requests refused for good.
    requests_rejected,
    /// Requests not taken on, for now.
    requests_refused,
    /// Requests that failed.
    requests_failed,
    /// Requests whose client left first.
    requests_abandoned,
    /// Requests cancelled because their reader fell behind.
    readers_behind,
    /// Requests sent to engines.
    legs_dispatched,
    /// Legs that were told to end by the engine's own call.
    legs_aborted,
    /// Legs given up because the engine did not answer its abort.
    aborts_unanswered,
    /// Legs that ended with an answer that is whole.
    legs_answered,
    /// Legs that the engine refused as the client's fault.
    legs_refused,
    /// Legs that the engine had no room for.
    legs_busy,
    /// Prefill legs that the engine failed.
    prefill_failed,
    /// Decode legs that the engine failed.
    decode_failed,
    /// Legs whose connection was lost, or whose answer could not be understood.
    legs_lost,
    /// Legs that no connection was there for.
    legs_unreached,
    /// Requests ended because an engine had computed another prompt, or did not say which.
    integrity_wrong_count,
    /// Requests ended because an engine answered with what is another request's.
    integrity_anothers_answer,
    /// Attempts that nobody wants any more and that have not ended.
    unwanted_attempts,
}

impl Counters {
    pub(super) fn ended(&mut self, leg: Leg, end: End) {
        *match (end, leg) {
            (End::Answered { .. }, _) => &mut self.legs_answered,
            (End::Failed(Blame::Client), _) => &mut self.legs_refused,
            (End::Failed(Blame::Busy), _) => &mut self.legs_busy,
            (End::Failed(Blame::Engine), Leg::Prefill) => &mut self.prefill_failed,
            (End::Failed(Blame::Engine), Leg::Decode) => &mut self.decode_failed,
            (End::Lost, _) => &mut self.legs_lost,
            (End::Unreached, _) => &mut self.legs_unreached,
        } += 1;
    }

    pub(super) fn outcome(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Answered(_) => &mut self.requests_answered,
            Outcome::TooLong { .. } => &mut self.requests_rejected,
            Outcome::Refused(_) => &mut self.requests_refused,
            Outcome::Failed(_) => &mut self.requests_failed,
            Outcome::ClientLeft => &mut self.requests_abandoned,
        } += 1;
        let Outcome::Failed(failing) = outcome else {
            return;
        };
        match failing.why {
            Why::Counts { .. } | Why::Differ { .. } | Why::Uncounted => {
                self.integrity_wrong_count += 1;
            }
            Why::Anothers => self.integrity_anothers_answer += 1,
            Why::Said(_)
            | Why::Lost
            | Why::Unreached
            | Why::Silent
            | Why::NoReference
            | Why::Deadline => {}
        }
    }
}
