//! The ends of legs: who is told to stop, when, and what if he does not answer (DR-4, DR-5).

use super::{Decisions, Door, Effect, End, EngineId, Handing, Leg, Timer};
use crate::AttemptId;
use serde::{Deserialize, Serialize};

/// How far a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum State {
    /// Nobody was asked.
    Unsent,
    /// The engine is at it.
    Going,
    /// Its connection is lost; the engine may be at it.
    Silent,
    /// The engine was told to end it.
    Aborting,
    /// The engine has said that it ended.
    Over,
    /// The engine did not answer when it was told to end it.
    GivenUp,
}

impl State {
    /// Nobody waits for anything of it.
    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Unsent | Self::Over | Self::GivenUp)
    }

    fn may_go_on(self) -> bool {
        matches!(self, Self::Going | Self::Silent)
    }
}

/// What may be under way between the pages of the two engines of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Moving {
    /// Nothing: it has not begun, or its end is proved.
    No,
    /// Anything.
    May,
    /// Who moved it ended in doubt; a timer runs for what is left of it.
    Doubt,
}

impl<J: Decisions> Door<J> {
    /// Nobody wants the answer of this attempt any more.
    pub(super) fn unwanted_now(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return; // both its legs have ended
        };
        attempt.wanted = false;
        if std::mem::take(&mut attempt.staged) {
            self.out.push(Effect::Disarm(Timer::Stage(id)));
        }
        if attempt.decode_failed.take().is_some() {
            self.out.push(Effect::Disarm(Timer::Word(id)));
        }
        if !attempt.has_ended() {
            attempt.lingers = true;
            self.arm(Timer::Linger(id), self.config.linger_ms);
        }
        self.wind_up(id);
    }

    /// Tells the legs of an unwanted attempt to end as soon as they may be, and forgets it when they
    /// have.
    pub(super) fn wind_up(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.get(&id).filter(|attempt| !attempt.wanted) else {
            return; // it is wanted, or known no more
        };
        if attempt.has_ended() {
            return self.forget(id);
        }
        let may = self.decisions.may_abort(attempt.moving);
        let (prefill, decode) = (attempt.prefill, attempt.decode);
        if may && decode.may_go_on() {
            self.abort(id, Leg::Decode);
        }
        let early = self.attempts[&id]
            .engine(Leg::Prefill)
            .is_some_and(|engine| self.aborts_prefill(engine));
        if (may || early) && prefill.may_go_on() {
            self.abort(id, Leg::Prefill);
        }
    }

    fn forget(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.remove(&id) else {
            return; // it is forgotten
        };
        if attempt.lingers {
            self.out.push(Effect::Disarm(Timer::Linger(id)));
        }
        self.try_again(attempt.request);
    }

    fn abort(&mut self, id: AttemptId, leg: Leg) {
        let Some((attempt, engine)) = self.at(id, leg) else {
            return;
        };
        *attempt.leg_mut(leg) = State::Aborting;
        self.out.push(Effect::Abort(id, leg, engine));
        self.arm(Timer::Abort(id, leg), self.config.abort_ms);
    }

    /// The answer of a leg that was told to end has ended, or its connection.
    pub(super) fn ended_while_aborting(&mut self, id: AttemptId, leg: Leg, end: End) {
        if end != End::Lost {
            self.aborted(id, leg); // the engine's own word
        }
    }

    /// The engine has ended a leg as it was told.
    pub(super) fn aborted(&mut self, id: AttemptId, leg: Leg) {
        let Some((attempt, engine)) = self.at(id, leg) else {
            return; // late
        };
        if attempt.leg(leg) != State::Aborting {
            return; // it ended by itself
        }
        *attempt.leg_mut(leg) = State::Over;
        self.out.push(Effect::Disarm(Timer::Abort(id, leg)));
        if leg == Leg::Prefill && self.aborts_prefill(engine) {
            self.moves_no_more(id);
        }
        self.wind_up(id);
    }

    /// An engine that does not answer an abort may still be at it. Nothing of this request goes
    /// there again.
    pub(super) fn abort_unanswered(&mut self, id: AttemptId, leg: Leg) {
        let gives_up = self.decisions.gives_up();
        let Some((attempt, engine)) = self.at(id, leg) else {
            return; // it has ended
        };
        if attempt.leg(leg) != State::Aborting || !gives_up {
            return; // as above
        }
        *attempt.leg_mut(leg) = State::GivenUp;
        let request = attempt.request;
        self.failed(engine);
        self.out.push(Effect::Drop(id, leg));
        if let Some(request) = self.requests.get_mut(&request) {
            request.avoid.push(engine);
        }
        self.wind_up(id);
    }

    /// What prefill or decode left behind in doubt has had its time.
    pub(super) fn settled(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id)
            && attempt.moving == Moving::Doubt
        {
            attempt.moving = Moving::No;
            self.wind_up(id);
        }
    }

    /// An unwanted attempt has gone on for so long that it is ended whatever may be under way.
    pub(super) fn lingered(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.lingers = false;
            self.moves_no_more(id);
            self.wind_up(id);
        }
    }

    /// Nothing is under way between the pages of this attempt.
    pub(super) fn moves_no_more(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            if attempt.moving == Moving::Doubt {
                self.out.push(Effect::Disarm(Timer::Settle(id)));
            }
            attempt.moving = Moving::No;
        }
    }

    /// Something may be, and nobody is left who will say when it is not.
    pub(super) fn moves_in_doubt(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id)
            && attempt.moving == Moving::May
        {
            attempt.moving = Moving::Doubt;
            self.arm(Timer::Settle(id), self.config.settle_ms);
        }
    }

    /// What the end of prefill's leg says about writes of its own (together), or about pages that
    /// nobody reads yet (pull).
    pub(super) fn prefill_moves(&mut self, id: AttemptId, handing: Handing, end: End) {
        use super::Blame::{Busy, Client, Engine};
        match (handing, end) {
            (_, End::Unreached)
            | (Handing::Together, End::Answered { .. } | End::Failed(Client | Busy))
            | (Handing::Pull | Handing::Hidden, _) => self.moves_no_more(id),
            (Handing::Together, End::Failed(Engine) | End::Lost) => self.moves_in_doubt(id),
        }
    }

    /// The same of decode's leg, which reads (pull), which has refused to be written to (together), or
    /// which is all that is seen (hidden).
    pub(super) fn decode_moves(&mut self, id: AttemptId, handing: Handing, end: End) {
        use super::Blame::{Busy, Client};
        match (handing, end) {
            (_, End::Failed(Client | Busy) | End::Unreached) => self.moves_no_more(id),
            (Handing::Pull, End::Answered { .. } | End::Failed(_)) => self.moves_no_more(id),
            (Handing::Hidden, End::Answered { .. }) => self.moves_no_more(id),
            (Handing::Pull, End::Lost) => self.moves_in_doubt(id),
            // Which of the two has failed, and what the other does, is not said.
            (Handing::Hidden, End::Failed(_) | End::Lost) => self.moves_in_doubt(id),
            (Handing::Together, _) => {} // prefill says when it has written
        }
    }

    fn at(&mut self, id: AttemptId, leg: Leg) -> Option<(&mut super::Attempt, EngineId)> {
        let attempt = self.attempts.get_mut(&id)?;
        let engine = attempt.engine(leg)?;
        Some((attempt, engine))
    }
}
