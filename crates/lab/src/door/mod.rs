//! The door's machine in a world of engines that answer late, twice, never, with garbage, under
//! another's name, after an abort, after a restart.
//!
//! What the engines do with their pages is said here as far as the door can matter for it: what
//! prefill has written of an attempt, whether something of it may still land, and what decode would
//! answer with. The clauses are those of `docs/door.md`.

mod act;
mod defects;
mod engines;
mod judge;
mod setups;
#[cfg(test)]
mod tests;

pub use act::Act;
pub use defects::{ALL as DEFECTS, Defect, Swapped};
pub use setups::{ALL, Faults, Scenario, Setup};

use crate::encode::Canonical;
use crate::model::{Model, Notes};
use engines::Place;
use handoff::door::{Config, Decisions, Door, Effect, EngineId, Event, Leg, Outcome, Timer};
use handoff::{AttemptId, RequestId};
use pages::{Epoch, Sound};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The life of the gateway.
const EPOCH: Epoch = Epoch::new(1);

/// A world around the door.
#[derive(Clone, Debug)]
pub struct Front<J = Sound> {
    setup: Setup,
    decisions: J,
}

/// A whole world.
#[derive(Clone, Debug, Serialize)]
#[serde(bound = "")]
pub struct State<J: Decisions = Sound> {
    door: Door<J>,
    clients: Vec<Client>,
    /// What became of every leg that an engine was asked for.
    places: BTreeMap<(AttemptId, Leg), Place>,
    timers: BTreeSet<Timer>,
    faults: Faults,
    /// Failures that were an engine's own.
    own_faults: BTreeMap<EngineId, u32>,
    /// References that were used, of attempts that are still there.
    used: BTreeSet<AttemptId>,
    /// Attempts that were ended for their age, or whose doubtful writes have had their time: an
    /// assumption about the engines, not a proof.
    excused: BTreeSet<AttemptId>,
    /// The last attempt that there was.
    highest: Option<AttemptId>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Client {
    request: Option<RequestId>,
    left: bool,
    /// The attempt of whose answer something has reached it.
    has: Option<AttemptId>,
    outcome: Option<Outcome>,
}

impl Front {
    /// With the decisions that ship.
    pub fn new(setup: Setup) -> Self {
        Self::with_decisions(setup, Sound)
    }
}

impl<J: Decisions> Front<J> {
    /// With others.
    pub fn with_decisions(setup: Setup, decisions: J) -> Self {
        Self { setup, decisions }
    }

    /// Hands the machine an event, and carries out what it says.
    fn tell(&self, state: &mut State<J>, event: Event, notes: &mut Notes) {
        let effects = state.door.handle(event);
        for effect in effects {
            notes.tell(|| format!("gateway: {effect:?}"));
            self.judge_effect(state, &effect, notes);
            self.carry_out(state, effect);
        }
    }

    fn carry_out(&self, state: &mut State<J>, effect: Effect) {
        match effect {
            Effect::Dispatch {
                attempt,
                leg,
                engine,
                request,
                reference,
                ..
            } => {
                state.highest = Some(attempt);
                state.used.extend(reference);
                state
                    .places
                    .insert((attempt, leg), Place::new(engine, request));
            }
            Effect::Abort(attempt, leg, _) => {
                if let Some(place) = state.places.get_mut(&(attempt, leg)) {
                    place.told_to_end = true;
                }
            }
            Effect::Drop(attempt, leg) => {
                if let Some(place) = state.places.get_mut(&(attempt, leg)) {
                    place.given_up = true;
                }
            }
            Effect::Release { request, attempt } => {
                if let Some(client) = state.client_of(request) {
                    client.has = Some(attempt);
                }
            }
            Effect::Finish { request, outcome } => {
                if let Some(client) = state.client_of(request) {
                    client.outcome = Some(outcome);
                }
            }
            Effect::Arm { timer, .. } => {
                state.timers.insert(timer);
            }
            Effect::Disarm(timer) => {
                state.timers.remove(&timer);
            }
            Effect::FailStop(_) => {}
        }
    }

    /// What nobody speaks of any more.
    fn forget_the_ended(state: &mut State<J>) {
        let gone = |place: &Place| place.is_over() || place.given_up;
        let live: BTreeSet<AttemptId> = state
            .places
            .iter()
            .filter(|(_, place)| !gone(place) || place.may_still_write())
            .map(|((attempt, _), _)| *attempt)
            .collect();
        let wanted: BTreeSet<AttemptId> = state.clients.iter().filter_map(|it| it.has).collect();
        let known = |id: &AttemptId| live.contains(id) || wanted.contains(id);
        let settles: BTreeSet<AttemptId> = state.timers.iter().filter_map(of_attempt).collect();
        let present = |id: &AttemptId| known(id) || settles.contains(id);
        let running = state.clients.iter().any(|it| it.is_open());
        if !running {
            state.places.retain(|(id, _), _| present(id));
            let there: BTreeSet<AttemptId> = state.places.keys().map(|(id, _)| *id).collect();
            state.used.retain(|id| there.contains(id));
            state.excused.retain(|id| there.contains(id));
        }
    }
}

impl<J: Decisions> State<J> {
    fn client_of(&mut self, request: RequestId) -> Option<&mut Client> {
        let mut clients = self.clients.iter_mut();
        clients.find(|client| client.request == Some(request))
    }
}

impl Client {
    fn is_open(&self) -> bool {
        self.request.is_some() && self.outcome.is_none()
    }
}

fn of_attempt(timer: &Timer) -> Option<AttemptId> {
    match timer {
        Timer::Stage(id)
        | Timer::Settle(id)
        | Timer::Word(id)
        | Timer::Linger(id)
        | Timer::Abort(id, _) => Some(*id),
        Timer::Request(_) | Timer::Rest(_) => None,
    }
}

impl<J: Decisions> Model for Front<J> {
    type State = State<J>;
    type Act = Act;

    fn initial(&self) -> (State<J>, Notes) {
        let config = Config {
            faults: 2,
            max_retries: self.setup.retries,
            prefill_ms: u64::from(self.setup.stages),
            silence_ms: u64::from(self.setup.stages),
            ..Config::default()
        };
        let mut state = State {
            door: Door::with_decisions(config, EPOCH, self.decisions),
            clients: vec![Client::default(); self.setup.asks.len()],
            places: BTreeMap::new(),
            timers: BTreeSet::new(),
            faults: self.setup.faults,
            own_faults: BTreeMap::new(),
            used: BTreeSet::new(),
            excused: BTreeSet::new(),
            highest: None,
        };
        let mut notes = Notes::default();
        for (at, engine) in self.setup.engines.iter().enumerate() {
            let known = Event::Engine(EngineId(at as u32), *engine);
            self.tell(&mut state, known, &mut notes);
        }
        (state, notes)
    }

    fn acts(&self, state: &mut State<J>, out: &mut Vec<Act>) {
        self.possible(state, out);
    }

    fn is_fault(&self, act: &Act) -> bool {
        act.is_fault()
    }

    fn apply(&self, state: &mut State<J>, act: &Act, notes: &mut Notes) {
        self.happens(state, act, notes);
        self.judge_state(state, act, notes);
        Self::forget_the_ended(state);
    }

    fn fork(&self, state: &mut State<J>) -> State<J> {
        state.clone()
    }

    fn at_rest(&self, state: &mut State<J>) -> bool {
        let served = |client: &Client| client.request.is_some() && client.outcome.is_some();
        state.door.at_rest() && state.clients.iter().all(served)
    }

    fn encode(&self, state: &State<J>, out: &mut Canonical) {
        out.value(state);
    }

    fn progress(&self) -> &'static str {
        "DR-4"
    }

    fn describe(&self, before: &mut State<J>, act: &Act, _: &mut State<J>) -> Vec<String> {
        let mut notes = Notes::listening();
        self.happens(&mut before.clone(), act, &mut notes);
        let mut lines = vec![format!("{}: {act}", act.who())];
        lines.extend(notes.told.unwrap_or_default());
        lines
    }
}
