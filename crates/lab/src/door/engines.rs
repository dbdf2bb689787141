//! What the engines do, and what is in their pages of it.

use super::act::Act;
use super::{Front, State};
use crate::model::Notes;
use handoff::door::{Blame, Decisions, End, EngineId, Event, Handing, Label, Leg, Whose};
use handoff::{AttemptId, RequestId};
use serde::{Deserialize, Serialize};

/// A leg at its engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    pub engine: EngineId,
    pub request: RequestId,
    /// The engine has ended it, or has lost it.
    pub over: bool,
    /// It neither goes on nor answers.
    pub hung: bool,
    /// The door reads its answer.
    pub connected: bool,
    pub told_to_end: bool,
    /// The door waits for nothing of it any more, without the engine's word.
    pub given_up: bool,
    /// Of prefill: what it has written, or has ready to be read.
    pub wrote: Wrote,
    /// Of prefill: something that it has written may still land.
    pub late: bool,
    /// Of decode: it has answered with something.
    pub spoke: bool,
    /// Of decode: the worst that it has said of whose answer it is, and of the prompt's length.
    pub foreign: bool,
    pub miscounted: bool,
    /// How it said that it ended.
    pub said: Option<End>,
}

/// What there is of a prompt's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Wrote {
    Nothing,
    /// One of them: a placeholder was computed.
    One,
    All,
}

/// How a leg goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// The incident: prefill computes a placeholder, says so in its count, and answers 200.
    Placeholder,
    /// It refuses the request (4xx).
    Refuses,
    /// It has too much to do (429, 503).
    IsBusy,
    /// It fails (5xx, or an abort inside a 200).
    Fails,
    /// The connection is lost, or what comes is garbage; the engine goes on.
    Breaks,
    /// It stops, and answers nothing any more, not even an abort.
    Hangs,
    /// It answers under another request's name.
    Foreign,
    /// It does not say what it has counted.
    Uncounted,
    /// Decode counts another prompt.
    Miscounts,
    /// Prefill gives no reference.
    NoReference,
    /// There is no connection to ask it over.
    Unreached,
}

impl Kind {
    pub(super) fn concerns(self, leg: Leg) -> bool {
        match self {
            Self::Placeholder | Self::NoReference => leg == Leg::Prefill,
            Self::Miscounts => leg == Leg::Decode,
            _ => true,
        }
    }

    pub(super) fn situation(self) -> &'static str {
        match self {
            Self::Placeholder => "placeholder computed",
            Self::Refuses => "engine refused",
            Self::IsBusy => "engine busy",
            Self::Fails => "engine failed",
            Self::Breaks => "connection lost",
            Self::Hangs => "engine hung",
            Self::Foreign => "another's answer",
            Self::Uncounted => "not counted",
            Self::Miscounts => "counted otherwise",
            Self::NoReference => "no reference",
            Self::Unreached => "engine not reached",
        }
    }
}

impl Place {
    pub(super) fn new(engine: EngineId, request: RequestId) -> Self {
        Self {
            engine,
            request,
            over: false,
            hung: false,
            connected: true,
            told_to_end: false,
            given_up: false,
            wrote: Wrote::Nothing,
            late: false,
            spoke: false,
            foreign: false,
            miscounted: false,
            said: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn is_working(&self) -> bool {
        !self.over && !self.hung
    }

    /// Of prefill: whether a write of it may land from now on.
    pub(super) fn may_still_write(&self) -> bool {
        self.late
    }
}

impl<J: Decisions> Front<J> {
    pub(super) fn of_a_leg(
        &self,
        state: &State<J>,
        id: AttemptId,
        leg: Leg,
        place: &Place,
        out: &mut Vec<Act>,
    ) {
        if leg == Leg::Prefill && place.late {
            out.push(Act::LandsLate(id));
        }
        if !place.is_working() {
            return;
        }
        if place.told_to_end {
            out.push(Act::EndsAsTold(id, leg));
        }
        let connected = place.connected;
        match leg {
            Leg::Prefill if connected => {
                let new = place.wrote == Wrote::Nothing;
                out.extend(new.then_some(Act::PrefillWrites(id)));
                out.push(Act::PrefillDone(id));
            }
            Leg::Prefill => out.push(Act::PrefillRunsOn(id)),
            Leg::Decode => match self.source(state, id, place) {
                Source::There if connected => {
                    out.extend((!place.spoke).then_some(Act::Part(id)));
                    out.push(Act::Answer(id));
                }
                Source::There => out.push(Act::DecodeRunsOn(id)),
                Source::Failed if connected => out.push(Act::Notices(id)),
                Source::Failed => out.push(Act::DecodeRunsOn(id)),
                Source::NotYet => {}
            },
        }
    }

    /// Whether decode has what it answers from.
    fn source(&self, state: &State<J>, id: AttemptId, place: &Place) -> Source {
        if self.handing(place.engine).is_none() {
            return Source::There;
        }
        let Some(prefill) = state.places.get(&(id, Leg::Prefill)) else {
            return Source::Failed;
        };
        match prefill.wrote {
            Wrote::One | Wrote::All => Source::There,
            // That it failed is told from half to half, unless it is stuck.
            Wrote::Nothing if prefill.over && prefill.said.is_some() => Source::Failed,
            Wrote::Nothing => Source::NotYet,
        }
    }

    pub(super) fn writes(&self, state: &mut State<J>, id: AttemptId, wrote: Wrote) {
        if let Some(place) = state.places.get_mut(&(id, Leg::Prefill)) {
            place.wrote = place.wrote.max(wrote);
        }
    }

    pub(super) fn is_over(&self, state: &mut State<J>, id: AttemptId, leg: Leg) {
        if let Some(place) = state.places.get_mut(&(id, leg)) {
            place.over = true;
        }
    }

    pub(super) fn ends(
        &self,
        state: &mut State<J>,
        id: AttemptId,
        leg: Leg,
        end: End,
        notes: &mut Notes,
    ) {
        if let Some(place) = state.places.get_mut(&(id, leg)) {
            place.over = true;
            place.said = Some(end);
            place.spoke |= leg == Leg::Decode;
        }
        self.tell(state, Event::Ended(id, leg, end), notes);
    }

    pub(super) fn speaks(
        &self,
        state: &mut State<J>,
        id: AttemptId,
        said: Label,
        notes: &mut Notes,
    ) {
        if let Some(place) = state.places.get_mut(&(id, Leg::Decode)) {
            place.spoke = true;
        }
        self.tell(state, Event::Part(id, said), notes);
    }

    pub(super) fn ends_as_told(
        &self,
        state: &mut State<J>,
        id: AttemptId,
        leg: Leg,
        notes: &mut Notes,
    ) {
        let Some(place) = state.places.get_mut(&(id, leg)) else {
            return;
        };
        place.over = true;
        // Its word that it has ended is worth that much only where it declares so.
        let declared = self.setup.engines[place.engine.0 as usize].aborts_prefill;
        place.late &= !declared;
        let event = match place.connected {
            true => Event::Ended(id, leg, End::Failed(Blame::Engine)),
            false => Event::Aborted(id, leg),
        };
        self.tell(state, event, notes);
    }

    /// A write of an attempt whose prefill ended in doubt lands in pages that decode holds for it,
    /// or held.
    pub(super) fn lands_late(&self, state: &mut State<J>, id: AttemptId, notes: &mut Notes) {
        let freed = state
            .places
            .get(&(id, Leg::Decode))
            .is_some_and(|decode| decode.over && decode.told_to_end);
        if let Some(place) = state.places.get_mut(&(id, Leg::Prefill)) {
            place.late = false;
            notes.saw("late write of a prefill");
        }
        notes.check("DR-5", !freed, || {
            format!(
                "attempt {}: a write lands in pages of a decode leg that the door had ended",
                id.n
            )
        });
    }

    pub(super) fn restarts(&self, state: &mut State<J>, engine: EngineId, notes: &mut Notes) {
        state.faults.restarts -= 1;
        notes.saw("engine restarted");
        *state.own_faults.entry(engine).or_default() += 8;
        let here = state.places.iter_mut();
        let here = here.filter(|(_, place)| place.engine == engine && !place.over);
        let mut lost = Vec::new();
        for ((id, leg), place) in here {
            place.over = true;
            place.late = false;
            if place.connected && !place.hung {
                lost.push((*id, *leg));
            }
            place.connected = false;
        }
        for (id, leg) in lost {
            self.tell(state, Event::Ended(id, leg, End::Lost), notes);
        }
    }

    pub(super) fn goes_wrong(
        &self,
        state: &mut State<J>,
        id: AttemptId,
        leg: Leg,
        kind: Kind,
        notes: &mut Notes,
    ) {
        let Some(place) = state.places.get_mut(&(id, leg)) else {
            return;
        };
        let engine = place.engine;
        let together = self.handing(engine) == Some(Handing::Together);
        let (whose, prompt) = (Whose::Ours, self.setup.tokens_of(place.request));
        let right = Label { whose, prompt };
        let answered = |said| End::Answered {
            said,
            reference: kind != Kind::NoReference,
        };
        let end = match kind {
            Kind::Hangs => {
                place.hung = true;
                *state.own_faults.entry(engine).or_default() += 1;
                return;
            }
            Kind::Breaks => {
                place.connected = false;
                place.late |= leg == Leg::Prefill && together;
                *state.own_faults.entry(engine).or_default() += 1;
                return self.tell(state, Event::Ended(id, leg, End::Lost), notes);
            }
            Kind::Refuses => End::Failed(Blame::Client),
            Kind::IsBusy => End::Failed(Blame::Busy),
            Kind::Fails => {
                place.late |= leg == Leg::Prefill && together;
                End::Failed(Blame::Engine)
            }
            Kind::Placeholder => {
                place.wrote = place.wrote.max(Wrote::One);
                place.miscounted = true;
                answered(Label {
                    prompt: Some(1),
                    ..right
                })
            }
            Kind::Foreign => {
                place.foreign = true;
                answered(Label {
                    whose: Whose::Anothers,
                    ..right
                })
            }
            Kind::Uncounted => {
                place.miscounted |= !(place.spoke && self.setup.counts_in_parts);
                answered(Label {
                    prompt: None,
                    ..right
                })
            }
            Kind::Miscounts => {
                place.miscounted = true;
                answered(Label {
                    prompt: prompt.map(|tokens| tokens + 7),
                    ..right
                })
            }
            Kind::Unreached => {
                *state.own_faults.entry(engine).or_default() += 1;
                place.over = true;
                place.said = Some(End::Unreached);
                return self.tell(state, Event::Ended(id, leg, End::Unreached), notes);
            }
            Kind::NoReference => {
                place.wrote = Wrote::All;
                answered(right)
            }
        };
        if !matches!(end, End::Failed(Blame::Client | Blame::Busy)) {
            *state.own_faults.entry(engine).or_default() += 1;
        }
        self.ends(state, id, leg, end, notes);
    }
}

enum Source {
    NotYet,
    There,
    Failed,
}
