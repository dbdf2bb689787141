//! Tries at a request: who is asked, what is believed of the answers, and what is released.

use super::fleet::Route;
use super::legs::{Moving, State};
use super::{
    Blame, Decisions, Door, Effect, End, EngineId, Failing, Handing, Label, Leg, Outcome,
    PrefillJudged, Prompt, Timer, Why,
};
use crate::id::{LastAttempt, RequestKey};
use crate::{AttemptId, Progress};
use serde::Serialize;

/// One try.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Attempt {
    pub request: RequestKey,
    /// The attempt that it follows.
    pub before: Option<AttemptId>,
    /// Whether it is its request's present one.
    pub wanted: bool,
    /// None: the server answers by itself.
    pub prefill_at: Option<EngineId>,
    pub decode_at: EngineId,
    pub handing: Handing,
    pub prompt: Prompt,
    pub max_new: u32,
    pub prefill: State,
    pub decode: State,
    pub moving: Moving,
    pub judged: Option<PrefillJudged>,
    /// Tokens that prefill has counted.
    pub counted: Option<u32>,
    /// Decode has said a part of an answer.
    pub speaks: bool,
    /// What decode has counted.
    pub counted_by_decode: Option<u32>,
    /// Decode's answer is whole.
    pub answered: bool,
    /// Decode has failed, and prefill has not said yet how it ended.
    pub decode_failed: Option<Why>,
    /// Decode has said something since the stage's timer was armed.
    pub heard: bool,
    /// Its timer of stages runs.
    pub staged: bool,
    /// Its timer runs.
    pub lingers: bool,
}

impl Attempt {
    pub(super) fn engine(&self, leg: Leg) -> Option<EngineId> {
        match leg {
            Leg::Prefill => self.prefill_at,
            Leg::Decode => Some(self.decode_at),
        }
    }

    pub(super) fn leg(&self, leg: Leg) -> State {
        match leg {
            Leg::Prefill => self.prefill,
            Leg::Decode => self.decode,
        }
    }

    pub(super) fn leg_mut(&mut self, leg: Leg) -> &mut State {
        match leg {
            Leg::Prefill => &mut self.prefill,
            Leg::Decode => &mut self.decode,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let computed = self.prefill_at.is_none() || self.counted.is_some();
        match (self.wanted, computed, self.speaks) {
            (false, ..) => Progress::Ending,
            (true, false, _) => Progress::Prefill,
            // A server that answers by itself computes the prompt until it speaks.
            (true, true, false) if self.prefill_at.is_none() => Progress::Prefill,
            (true, true, false) => Progress::Handover,
            (true, true, true) => Progress::Decode,
        }
    }

    /// Both legs have ended, and nothing is in doubt between them.
    pub(super) fn has_ended(&self) -> bool {
        self.prefill.has_ended() && self.decode.has_ended() && self.moving != Moving::Doubt
    }
}

impl<J: Decisions> Door<J> {
    /// Asks the engines of a route, if there is one.
    pub(super) fn begin_attempt(&mut self, key: RequestKey, before: Option<AttemptId>) -> bool {
        let Some((route, prompt, max_new)) = self.route_for(key, false).and_then(|route| {
            let ask = &self.requests.get(&key)?.ask;
            let room = self.decisions.room(route.lengths, ask.prompt, ask.max_new);
            Some((route, ask.prompt, room?))
        }) else {
            return false;
        };
        let last = self.last_attempt.0;
        let n = self.decisions.attempt_number(last, before);
        self.last_attempt = LastAttempt(n.max(last));
        let id = AttemptId {
            epoch: self.epoch,
            n,
        };
        if let Some(request) = self.requests.get_mut(&key) {
            request.attempt = Some(id);
        }
        self.attempts
            .insert(id, Attempt::new(key, before, &route, prompt, max_new));
        self.arm_stage(id, self.config.prefill_ms);
        match route.prefill {
            None => self.dispatch(id, Leg::Decode),
            Some(_) => {
                self.dispatch(id, Leg::Prefill);
                if !self.decisions.decode_waits(route.handing) {
                    self.dispatch(id, Leg::Decode);
                }
            }
        }
        true
    }

    fn dispatch(&mut self, id: AttemptId, leg: Leg) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return; // it ended with the other leg
        };
        let Some(engine) = attempt.engine(leg) else {
            return; // a server that answers by itself has no prefill
        };
        *attempt.leg_mut(leg) = State::Going;
        if attempt.prefill_at.is_some() || attempt.handing == Handing::Hidden {
            attempt.moving = Moving::May;
        }
        let pulls = leg == Leg::Decode && attempt.handing == Handing::Pull;
        let (request, before, max_new) = (attempt.request, attempt.before, attempt.max_new);
        let pulls = pulls && attempt.prefill_at.is_some();
        let reference = pulls.then(|| self.decisions.reference_for(id, before));
        let request = self.name(request);
        self.out.push(Effect::Dispatch {
            request,
            attempt: id,
            leg,
            engine,
            max_new,
            reference,
        });
    }

    /// A part of decode's answer: held until prefill was judged.
    pub(super) fn part(&mut self, id: AttemptId, said: Label) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return; // late
        };
        if attempt.decode != State::Going {
            return; // it was told to end
        }
        if matches!(attempt.handing, Handing::Pull | Handing::Hidden) {
            self.moves_no_more(id); // it has read what it needs for this
        }
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        if !self.decisions.counts_for_its_request(attempt.wanted) {
            return self.wind_up(id);
        }
        let first = !std::mem::replace(&mut attempt.speaks, true);
        let begins = first && attempt.prefill_at.is_none();
        attempt.heard = true;
        attempt.counted_by_decode = said.prompt.or(attempt.counted_by_decode);
        if let Some(why) = self.decode_differs(id, said, false) {
            return self.fails(id, Leg::Decode, why);
        }
        if begins {
            self.next_stage(id);
        }
        self.judged(id);
        self.release(id);
    }

    /// What was held may go, if prefill was judged (DR-1).
    fn release(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.get(&id).filter(|attempt| attempt.speaks) else {
            return; // there is nothing yet
        };
        if !self.decisions.may_release(attempt.judged) {
            return;
        }
        let key = attempt.request;
        if let Some(request) = self.requests.get_mut(&key) {
            request.released = true;
        }
        let request = self.name(key);
        self.out.push(Effect::Release {
            request,
            attempt: id,
        });
    }

    /// Prefill has done its part. Of a prompt whose length is known as a bound only, that is known when
    /// decode has counted the same; a server that answers by itself has no prefill.
    fn judged(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            let pair = attempt.prefill_at.is_some();
            let exact = matches!(attempt.prompt, Prompt::Counted(_));
            let counted =
                attempt.counted.is_some() && (exact || attempt.counted_by_decode.is_some());
            if !pair || counted {
                attempt.judged = Some(PrefillJudged(()));
            }
        }
    }

    /// Prefill's own answer, which is read to its end whatever its status was.
    pub(super) fn prefill_ended(&mut self, id: AttemptId, end: End) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return; // late
        };
        let (handing, prompt) = (attempt.handing, attempt.prompt);
        let Some(engine) = attempt.prefill_at else {
            return; // a server that answers by itself has no such leg
        };
        match attempt.prefill {
            State::Going => attempt.prefill = after(end),
            State::Aborting => return self.ended_while_aborting(id, Leg::Prefill, end),
            _ => return, // it says it twice
        }
        self.prefill_moves(id, handing, end);
        match self.verdict(prompt, end, handing == Handing::Pull) {
            Ok(counted) => {
                self.was_well(engine);
                self.prefill_is_well(id, counted);
            }
            Err(why) => {
                if why.is_of_the_engine() {
                    self.failed(engine);
                }
                self.fails(id, Leg::Prefill, why);
            }
        }
        self.wind_up(id);
    }

    fn prefill_is_well(&mut self, id: AttemptId, counted: Option<u32>) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.counted = counted;
        }
        self.judged(id);
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        if !self.decisions.counts_for_its_request(attempt.wanted) {
            return; // and its reference, if there is one, is used by nobody
        }
        let (decode, decode_at) = (attempt.decode, attempt.decode_at);
        if let Some(why) = attempt.decode_failed.take() {
            self.out.push(Effect::Disarm(Timer::Word(id)));
            self.failed(decode_at);
            return self.fails(id, Leg::Decode, why);
        }
        if let Some(why) = self.counts_at_both(id) {
            return self.fails(id, Leg::Prefill, why);
        }
        self.next_stage(id);
        match decode {
            State::Unsent => self.dispatch(id, Leg::Decode),
            _ => self.conclude(id),
        }
    }

    /// Decode's answer, to its end.
    pub(super) fn decode_ended(&mut self, id: AttemptId, end: End) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return; // late
        };
        let (handing, wanted) = (attempt.handing, attempt.wanted);
        match attempt.decode {
            State::Going => attempt.decode = after(end),
            State::Aborting => return self.ended_while_aborting(id, Leg::Decode, end),
            _ => return, // it says it twice
        }
        self.decode_moves(id, handing, end);
        if !self.decisions.counts_for_its_request(wanted) {
            self.blame_decode(id, end);
            return self.wind_up(id);
        }
        match end {
            End::Answered { said, .. } => self.decode_answered(id, said),
            End::Failed(class) => self.decode_fails(id, Why::Said(class)),
            End::Lost => self.decode_fails(id, Why::Lost),
            End::Unreached => self.decode_fails(id, Why::Unreached),
        }
        self.wind_up(id);
    }

    fn decode_answered(&mut self, id: AttemptId, said: Label) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        attempt.answered = true;
        attempt.counted_by_decode = said.prompt.or(attempt.counted_by_decode);
        let decode_at = attempt.decode_at;
        if let Some(why) = self.decode_differs(id, said, true) {
            let well = self.prefill_of_is_well(id);
            if why.is_of_the_engine() && self.decisions.blames_decode(well) {
                self.failed(decode_at);
            }
            return self.fails(id, Leg::Decode, why);
        }
        self.judged(id);
        self.conclude(id);
    }

    /// Ends the request with this answer, if it is whole and prefill was judged; releases what
    /// there is of it otherwise.
    fn conclude(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.get(&id) else {
            return;
        };
        let (key, whole, decode_at) = (attempt.request, attempt.answered, attempt.decode_at);
        if !whole {
            return self.release(id);
        }
        if self.decisions.may_release(attempt.judged) {
            self.was_well(decode_at);
            self.finish(key, Outcome::Answered(id));
        }
    }

    fn decode_fails(&mut self, id: AttemptId, why: Why) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let decode_at = attempt.decode_at;
        // Prefill's failure is often heard of at decode first.
        let waits = attempt.prefill == State::Going && attempt.handing == Handing::Together;
        let waits = waits && why.is_of_the_engine() && why != Why::Unreached;
        if waits {
            attempt.decode_failed = Some(why);
            self.arm(Timer::Word(id), self.config.settle_ms);
        }
        let well = self.prefill_of_is_well(id);
        if why.is_of_the_engine() && self.decisions.blames_decode(well) {
            self.failed(decode_at);
        }
        if !waits {
            self.fails(id, Leg::Decode, why);
        }
    }

    /// Nobody wants the answer any more; how it ended still says how decode is.
    fn blame_decode(&mut self, id: AttemptId, end: End) {
        let failed = matches!(end, End::Failed(Blame::Engine) | End::Lost | End::Unreached);
        let well = self.prefill_of_is_well(id);
        if let Some(attempt) = self.attempts.get(&id)
            && failed
            && self.decisions.blames_decode(well)
        {
            self.failed(attempt.decode_at);
        }
    }

    fn arm_stage(&mut self, id: AttemptId, after_ms: u64) {
        if after_ms == 0 {
            return; // the request's own deadline is all
        }
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.staged = true;
            self.arm(Timer::Stage(id), after_ms);
        }
    }

    /// The prompt is computed: from now on somebody must go on speaking.
    fn next_stage(&mut self, id: AttemptId) {
        if self.attempts.get(&id).is_some_and(|it| it.staged) {
            self.arm_stage(id, self.config.silence_ms);
        }
    }

    /// A stage has had its time: nobody waits longer for an engine that says nothing.
    pub(super) fn stage_over(&mut self, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(&id).filter(|it| it.wanted) else {
            return; // it is over
        };
        attempt.staged = false;
        let heard = std::mem::take(&mut attempt.heard);
        let unjudged = attempt.prefill_at.is_some() && attempt.counted.is_none();
        match (unjudged, heard) {
            (true, _) => self.fails(id, Leg::Prefill, Why::Silent),
            (false, true) => self.arm_stage(id, self.config.silence_ms),
            (false, false) => self.fails(id, Leg::Decode, Why::Silent),
        }
    }

    /// Prefill has not said in time how it ended.
    pub(super) fn no_word_of_prefill(&mut self, id: AttemptId) {
        let attempt = self.attempts.get_mut(&id);
        if let Some(why) = attempt.and_then(|attempt| attempt.decode_failed.take()) {
            self.fails(id, Leg::Decode, why);
        }
    }

    /// The present attempt of a request has failed.
    fn fails(&mut self, id: AttemptId, leg: Leg, why: Why) {
        let Some(attempt) = self.attempts.get(&id).filter(|attempt| attempt.wanted) else {
            return; // nobody wants it
        };
        let (key, at) = (
            attempt.request,
            attempt.engine(leg).unwrap_or(attempt.decode_at),
        );
        self.unwanted_now(id);
        let failing = Failing {
            attempt: id,
            leg,
            why,
        };
        self.attempt_failed(key, failing, at);
    }

    /// Whether prefill has done its part, or there is none.
    fn prefill_of_is_well(&self, id: AttemptId) -> bool {
        let attempt = self.attempts.get(&id);
        attempt.is_some_and(|attempt| attempt.counted.is_some() || attempt.prefill_at.is_none())
    }

    /// What prefill has counted, or what is wrong with its answer.
    fn verdict(&self, ours: Prompt, end: End, pulls: bool) -> Result<Option<u32>, Why> {
        match end {
            End::Failed(class) => Err(Why::Said(class)),
            End::Lost => Err(Why::Lost),
            End::Unreached => Err(Why::Unreached),
            End::Answered { said, .. } if !self.decisions.is_ours(said.whose) => Err(Why::Anothers),
            End::Answered { said, .. } if !self.decisions.same_prompt(ours, said.prompt) => {
                Err(miscounted(ours, said.prompt))
            }
            End::Answered {
                reference: false, ..
            } if pulls => Err(Why::NoReference),
            End::Answered { said, .. } => Ok(said.prompt),
        }
    }

    /// What is wrong with what decode says of itself; at the end of its answer it must have
    /// counted.
    fn decode_differs(&self, id: AttemptId, said: Label, whole: bool) -> Option<Why> {
        let attempt = self.attempts.get(&id)?;
        if !self.decisions.is_ours(said.whose) {
            return Some(Why::Anothers);
        }
        let counted = attempt.counted_by_decode;
        let says = counted.is_some() || whole;
        if says && !self.decisions.same_prompt(attempt.prompt, counted) {
            return Some(miscounted(attempt.prompt, counted));
        }
        self.counts_at_both(id)
    }

    fn counts_at_both(&self, id: AttemptId) -> Option<Why> {
        let attempt = self.attempts.get(&id)?;
        let (prefill, decode) = (attempt.counted?, attempt.counted_by_decode?);
        (!self.decisions.same_at_both(prefill, decode)).then_some(Why::Differ { prefill, decode })
    }
}

impl Attempt {
    fn new(
        request: RequestKey,
        before: Option<AttemptId>,
        route: &Route,
        prompt: Prompt,
        max_new: u32,
    ) -> Self {
        Self {
            request,
            before,
            wanted: true,
            prefill_at: route.prefill,
            decode_at: route.decode,
            handing: route.handing,
            prompt,
            max_new,
            prefill: State::Unsent,
            decode: State::Unsent,
            moving: Moving::No,
            judged: None,
            counted: None,
            speaks: false,
            counted_by_decode: None,
            answered: false,
            decode_failed: None,
            heard: false,
            staged: false,
            lingers: false,
        }
    }
}

impl Why {
    /// Whether the engine is to blame. Where two differ, or wait for each other, nobody knows which one;
    /// who hangs does not answer an abort either.
    fn is_of_the_engine(self) -> bool {
        !matches!(
            self,
            Self::Said(Blame::Client | Blame::Busy)
                | Self::Deadline
                | Self::Silent
                | Self::Differ { .. }
        )
    }
}

/// A leg whose answer ended of itself.
fn after(end: End) -> State {
    match end {
        End::Lost => State::Silent,
        End::Answered { .. } | End::Failed(_) | End::Unreached => State::Over,
    }
}

fn miscounted(ours: Prompt, counted: Option<u32>) -> Why {
    match counted {
        Some(theirs) => Why::Counts { ours, theirs },
        None => Why::Uncounted,
    }
}
