//! What may happen in front of the door and behind it.

use super::engines::{Kind, Wrote};
use super::{Front, State};
use crate::model::Notes;
use handoff::AttemptId;
use handoff::door::{
    Blame, Decisions, End, EngineId, Event, Handing, Label, Leg, Prompt, Serves, Timer, Whose,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing that may happen. A leg is named by its attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Act {
    /// A client asks.
    Ask(usize),
    /// It leaves.
    Leave(usize),
    /// Prefill has written all, and has not said so yet.
    PrefillWrites(AttemptId),
    /// Prefill has written all, and says so.
    PrefillDone(AttemptId),
    /// Prefill goes on without a connection, and has written all.
    PrefillRunsOn(AttemptId),
    /// Decode says a part of its answer.
    Part(AttemptId),
    /// Decode's answer ends.
    Answer(AttemptId),
    /// Decode goes on without a connection, and ends.
    DecodeRunsOn(AttemptId),
    /// Decode hears from its engine's other half that prefill has failed.
    Notices(AttemptId),
    /// An engine ends a leg that it was told to end.
    EndsAsTold(AttemptId, Leg),
    /// A write lands after its prefill has ended in doubt.
    LandsLate(AttemptId),
    /// Nothing else can happen: time passes.
    Due(Timer),
    /// A timer fires before what it waits for.
    Fires(Timer),
    /// A leg goes wrong.
    Wrong(AttemptId, Leg, Kind),
    /// An engine says once more how a leg ended.
    Again(AttemptId, Leg),
    /// An engine's process ends and another takes its place; it knows nothing of legs before.
    Restart(EngineId),
    /// What an engine takes is measured anew, or not known any more.
    Measured(EngineId, bool),
}

impl Act {
    pub(super) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Leave(_)
                | Self::Fires(_)
                | Self::Wrong(..)
                | Self::Again(..)
                | Self::Restart(_)
                | Self::Measured(..)
        )
    }

    pub(super) fn who(&self) -> String {
        match self {
            Self::Ask(at) | Self::Leave(at) => format!("client{at}"),
            Self::PrefillWrites(_)
            | Self::PrefillDone(_)
            | Self::PrefillRunsOn(_)
            | Self::LandsLate(_) => "prefill".into(),
            Self::Wrong(_, leg, _) | Self::Again(_, leg) | Self::EndsAsTold(_, leg) => {
                leg.to_string()
            }
            Self::Part(_) | Self::Answer(_) | Self::DecodeRunsOn(_) | Self::Notices(_) => {
                "decode".into()
            }
            Self::Due(_) | Self::Fires(_) => "time".into(),
            Self::Restart(engine) | Self::Measured(engine, _) => format!("engine{}", engine.0),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(at) => write!(f, "client {at} asks"),
            Self::Leave(at) => write!(f, "client {at} leaves"),
            Self::PrefillWrites(id) => write!(f, "attempt {}: prefill has written all", id.n),
            Self::PrefillDone(id) => write!(f, "attempt {}: prefill says that it is done", id.n),
            Self::PrefillRunsOn(id) => write!(f, "attempt {}: prefill ends unheard", id.n),
            Self::Part(id) => write!(f, "attempt {}: a part of the answer", id.n),
            Self::Answer(id) => write!(f, "attempt {}: the answer ends", id.n),
            Self::DecodeRunsOn(id) => write!(f, "attempt {}: decode ends unheard", id.n),
            Self::Notices(id) => write!(f, "attempt {}: decode notices that prefill failed", id.n),
            Self::EndsAsTold(id, leg) => write!(f, "attempt {}: {leg} ends as told", id.n),
            Self::LandsLate(id) => write!(f, "attempt {}: a late write lands", id.n),
            Self::Due(timer) => write!(f, "nothing else happens: {timer:?}"),
            Self::Fires(timer) => write!(f, "early: {timer:?}"),
            Self::Wrong(id, leg, kind) => write!(f, "attempt {}: {leg}: {kind:?}", id.n),
            Self::Again(id, leg) => write!(f, "attempt {}: {leg} says its end again", id.n),
            Self::Restart(engine) => write!(f, "engine {} restarts", engine.0),
            Self::Measured(engine, known) => write!(f, "engine {} measured: {known}", engine.0),
        }
    }
}

impl<J: Decisions> Front<J> {
    pub(super) fn possible(&self, state: &State<J>, out: &mut Vec<Act>) {
        for (at, client) in state.clients.iter().enumerate() {
            // In order: which of two equal clients asks first changes nothing.
            let before = at == 0 || state.clients[at - 1].request.is_some();
            out.extend((client.request.is_none() && before).then_some(Act::Ask(at)));
        }
        for ((id, leg), place) in &state.places {
            self.of_a_leg(state, *id, *leg, place, out);
        }
        if out.is_empty() {
            out.extend(state.timers.iter().copied().map(Act::Due));
        }
        self.faults(state, out);
    }

    fn faults(&self, state: &State<J>, out: &mut Vec<Act>) {
        let left = &state.faults;
        if left.leaves > 0 {
            let open = state.clients.iter().enumerate();
            let open = open.filter(|(_, client)| client.is_open() && !client.left);
            out.extend(open.map(|(at, _)| Act::Leave(at)));
        }
        if left.early > 0 {
            out.extend(state.timers.iter().copied().map(Act::Fires));
        }
        for ((id, leg), place) in &state.places {
            if place.is_working() && !place.told_to_end {
                let kinds = self.setup.wrong.iter().copied();
                let kinds = kinds.filter(|kind| left.wrong > 0 && kind.concerns(*leg));
                // Who was heard of, or has begun, was reached.
                let fresh = !place.spoke && place.wrote == Wrote::Nothing;
                let kinds = kinds.filter(|kind| fresh || *kind != Kind::Unreached);
                out.extend(kinds.map(|kind| Act::Wrong(*id, *leg, kind)));
            }
            let said = place.said.is_some() && left.again > 0;
            out.extend(said.then_some(Act::Again(*id, *leg)));
        }
        for at in 0..self.setup.engines.len() as u32 {
            let engine = EngineId(at);
            let here = state.places.values();
            let here = here
                .filter(|it| it.engine == engine && it.is_working())
                .count();
            out.extend((left.restarts > 0 && here > 0).then_some(Act::Restart(engine)));
            out.extend((left.measured > 0).then_some(Act::Measured(engine, false)));
        }
    }

    pub(super) fn happens(&self, state: &mut State<J>, act: &Act, notes: &mut Notes) {
        let own = Label {
            whose: Whose::Ours,
            prompt: None,
        };
        match *act {
            Act::Ask(at) => {
                state.clients[at].request = Some(state.door.next_request());
                let ask = self.setup.asks[at].clone();
                let deadline_ms = 60_000;
                self.tell(state, Event::Request { ask, deadline_ms }, notes);
            }
            Act::Leave(at) => {
                state.faults.leaves -= 1;
                state.clients[at].left = true;
                if let Some(request) = state.clients[at].request {
                    self.tell(state, Event::ClientGone(request), notes);
                }
            }
            Act::PrefillWrites(id) => self.writes(state, id, Wrote::All),
            Act::PrefillDone(id) => {
                self.writes(state, id, Wrote::All);
                let prompt = self.prompt_of(state, id, Leg::Prefill);
                let said = Label { prompt, ..own };
                let end = End::Answered {
                    said,
                    reference: true,
                };
                self.ends(state, id, Leg::Prefill, end, notes);
            }
            Act::PrefillRunsOn(id) => {
                self.writes(state, id, Wrote::All);
                self.is_over(state, id, Leg::Prefill);
            }
            Act::DecodeRunsOn(id) => self.is_over(state, id, Leg::Decode),
            Act::Part(id) => {
                let prompt = self.prompt_of(state, id, Leg::Decode);
                let prompt = prompt.filter(|_| self.setup.counts_in_parts);
                let said = Label { prompt, ..own };
                self.speaks(state, id, said, notes);
            }
            Act::Answer(id) => {
                let prompt = self.prompt_of(state, id, Leg::Decode);
                let said = Label { prompt, ..own };
                let reference = false;
                self.ends(
                    state,
                    id,
                    Leg::Decode,
                    End::Answered { said, reference },
                    notes,
                );
            }
            Act::Notices(id) => {
                self.ends(state, id, Leg::Decode, End::Failed(Blame::Engine), notes);
            }
            Act::EndsAsTold(id, leg) => self.ends_as_told(state, id, leg, notes),
            Act::LandsLate(id) => self.lands_late(state, id, notes),
            Act::Due(timer) => self.fires(state, timer, notes),
            Act::Fires(timer) => {
                state.faults.early -= 1;
                notes.saw("early timer");
                self.fires(state, timer, notes);
            }
            Act::Wrong(id, leg, kind) => {
                state.faults.wrong -= 1;
                notes.saw(kind.situation());
                self.goes_wrong(state, id, leg, kind, notes);
            }
            Act::Again(id, leg) => {
                state.faults.again -= 1;
                notes.saw("said again");
                if let Some(end) = state.places.get(&(id, leg)).and_then(|it| it.said) {
                    self.tell(state, Event::Ended(id, leg, end), notes);
                }
            }
            Act::Restart(engine) => self.restarts(state, engine, notes),
            Act::Measured(engine, _) => {
                state.faults.measured -= 1;
                let mut unknown = self.setup.engines[engine.0 as usize];
                unknown.lengths = None;
                self.tell(state, Event::Engine(engine, unknown), notes);
            }
        }
    }

    fn fires(&self, state: &mut State<J>, timer: Timer, notes: &mut Notes) {
        state.timers.remove(&timer);
        if let Timer::Abort(id, leg) = timer
            && let Some(place) = state.places.get(&(id, leg))
        {
            // It was too slow, whatever it may be doing.
            *state.own_faults.entry(place.engine).or_default() += 1;
        }
        if let Timer::Settle(id) | Timer::Linger(id) = timer {
            state.excused.insert(id);
            for leg in [Leg::Prefill, Leg::Decode] {
                if let Some(place) = state.places.get_mut(&(id, leg)) {
                    place.late = false; // that is what the time is for
                }
            }
        }
        self.tell(state, Event::Fired(timer), notes);
    }

    /// How many tokens an engine has computed of a leg's prompt, and says so.
    fn prompt_of(&self, state: &State<J>, id: AttemptId, leg: Leg) -> Option<u32> {
        let place = state.places.get(&(id, leg))?;
        let client = state
            .clients
            .iter()
            .position(|it| it.request == Some(place.request))?;
        match self.setup.asks[client].prompt {
            Prompt::Counted(tokens) => Some(tokens),
            Prompt::AtMost(most) => Some(most - 1), // it is rarely as long as the bound
        }
    }

    pub(super) fn is_router(&self, engine: EngineId) -> bool {
        self.setup.engines[engine.0 as usize].serves == Serves::Router
    }

    pub(super) fn handing(&self, engine: EngineId) -> Option<Handing> {
        match self.setup.engines[engine.0 as usize].serves {
            Serves::Alone | Serves::Router => None,
            Serves::Prefill(_, handing) | Serves::Decode(_, handing) => Some(handing),
        }
    }
}
