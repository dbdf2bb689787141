//! The engines, which of them are asked, and which are left alone for a while.

use super::{Ask, Decisions, Door, Engine, EngineId, Handing, Leg, Serves, Timer};
use crate::Lengths;
use crate::id::RequestKey;
use serde::Serialize;
use std::collections::BTreeMap;

/// A token at an engine of weight 1.
const BUSY_UNIT: u64 = 1_000;
/// What is near may have that many tokens under way more than twice the least that another has: about
/// what it saves.
const NEAR_TOKENS: u64 = 4_096;

/// An engine that is up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Known {
    pub engine: Engine,
    /// Failures one after the other.
    pub faults: u32,
    pub health: Health,
}

/// Whether an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum Health {
    Well,
    /// It has failed too often, and is not asked until a timer fires.
    Resting,
    /// It has rested: one attempt at a time shows how it is.
    OnTrial,
}

/// What is under way at an engine.
#[derive(Clone, Copy, Default)]
struct Load {
    legs: usize,
    tokens: u64,
    /// Something of the request that is asked about.
    own: bool,
}

/// Engines that together can answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub prefill: Option<EngineId>,
    pub decode: EngineId,
    pub handing: Handing,
    /// What both were measured to take; none if that of one is not known.
    pub lengths: Option<Lengths>,
}

impl Route {
    pub(super) fn engines(&self) -> impl Iterator<Item = EngineId> {
        self.prefill.into_iter().chain([self.decode])
    }
}

impl<J: Decisions> Door<J> {
    pub(super) fn engine_known(&mut self, id: EngineId, engine: Engine) {
        let new = Known {
            engine,
            faults: 0,
            health: Health::Well,
        };
        self.engines.entry(id).or_insert(new).engine = engine;
    }

    pub(super) fn engine_gone(&mut self, id: EngineId) {
        let gone = self.engines.remove(&id);
        if gone.is_some_and(|known| known.health == Health::Resting) {
            self.out.push(super::Effect::Disarm(Timer::Rest(id)));
        }
    }

    /// Everything that could answer, if it had the room.
    pub(super) fn routes(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        for (decode, known) in &self.engines {
            let alone = |handing| Route {
                prefill: None,
                decode: *decode,
                handing,
                lengths: known.engine.lengths,
            };
            match known.engine.serves {
                Serves::Alone => routes.push(alone(Handing::Together)),
                Serves::Router => routes.push(alone(Handing::Hidden)),
                Serves::Decode(group, handing) => {
                    let wanted = Serves::Prefill(group, handing);
                    let prefills = self.engines.iter();
                    let prefills = prefills.filter(|(_, p)| p.engine.serves == wanted);
                    routes.extend(prefills.map(|(prefill, p)| Route {
                        prefill: Some(*prefill),
                        decode: *decode,
                        handing,
                        lengths: both(p.engine.lengths, known.engine.lengths),
                    }));
                }
                Serves::Prefill(..) => {}
            }
        }
        routes
    }

    /// What of it may be asked for this: nothing private but for operators (DR-13), and what was named.
    pub(super) fn routes_of(&self, ask: &Ask) -> Vec<Route> {
        let mut routes = self.routes();
        routes.retain(|route| {
            route.engines().all(|it| {
                let private = self.engines.get(&it).is_some_and(|it| it.engine.private);
                let named = ask.only.is_empty() || ask.only.contains(&it);
                named && self.decisions.may_use(private, ask.operator)
            })
        });
        routes
    }

    /// Where a request goes: where the fewest tokens are under way for the engines' weights, or to what
    /// is near it while that has not much more. With `after_the_old` also where legs of its own have not ended yet.
    pub(super) fn route_for(&self, key: RequestKey, after_the_old: bool) -> Option<Route> {
        let request = self.requests.get(&key)?;
        let ask = &request.ask;
        let loads = self.loads(key);
        let load = |engine: EngineId| loads.get(&engine).copied().unwrap_or_default();
        let takes = |engine: EngineId| {
            let avoided = request.avoid.contains(&engine);
            let joins = after_the_old || self.decisions.may_join(load(engine).own);
            !avoided && joins && self.asks(engine, load(engine).legs)
        };
        let able = self.routes_of(ask).into_iter().filter(|route| {
            let room = self.decisions.room(route.lengths, ask.prompt, ask.max_new);
            room.is_some() && route.engines().all(takes)
        });
        let busy = |route: &Route| route.engines().map(|it| self.busy(it, load(it))).sum();
        let able: Vec<(Route, u64)> = able.map(|route| (route, busy(&route))).collect();
        let least = able.iter().map(|(_, busy)| *busy).min()?;
        let much = 2 * least + NEAR_TOKENS * BUSY_UNIT;
        let best = able.into_iter().min_by_key(|(route, busy)| {
            let near = |engine| ask.near.iter().position(|near| *near == engine);
            let nearest = route.engines().filter_map(near).min();
            let nearest = nearest.filter(|_| *busy <= much);
            (
                nearest.unwrap_or(usize::MAX),
                *busy,
                route.prefill,
                route.decode,
            )
        });
        best.map(|(route, _)| route)
    }

    /// Tokens under way at an engine for its weight.
    fn busy(&self, engine: EngineId, load: Load) -> u64 {
        let weight = self.engines.get(&engine).map_or(1, |it| it.engine.weight);
        load.tokens * BUSY_UNIT / u64::from(weight.max(1))
    }

    /// Nothing of any attempt is left there.
    pub fn is_idle(&self, engine: EngineId) -> bool {
        let mut busy = self.attempts.values().flat_map(|it| it.busy_engines());
        !busy.any(|it| it == engine)
    }

    /// Whether one more attempt may go to this engine, which has so many.
    fn asks(&self, engine: EngineId, legs: usize) -> bool {
        let Some(known) = self.engines.get(&engine) else {
            return false;
        };
        match known.health {
            Health::Well => legs < known.engine.most as usize,
            Health::OnTrial => legs == 0,
            Health::Resting => false,
        }
    }

    /// What is under way at every engine, and whether something of this request is.
    fn loads(&self, key: RequestKey) -> BTreeMap<EngineId, Load> {
        let mut loads: BTreeMap<EngineId, Load> = BTreeMap::new();
        for attempt in self.attempts.values() {
            for engine in attempt.busy_engines() {
                let load = loads.entry(engine).or_default();
                load.legs += 1;
                load.tokens += u64::from(attempt.prompt.most());
                load.own |= attempt.request == key;
            }
        }
        loads
    }

    /// It has done what it was asked for.
    pub(super) fn was_well(&mut self, engine: EngineId) {
        if let Some(known) = self.engines.get_mut(&engine) {
            known.faults = 0;
            if known.health == Health::OnTrial {
                known.health = Health::Well;
            }
        }
    }

    /// It has failed, and nobody else is to blame.
    pub(super) fn failed(&mut self, engine: EngineId) {
        let Some(known) = self.engines.get_mut(&engine) else {
            return; // it is gone
        };
        known.faults = (known.faults + 1).min(self.config.faults);
        let often = known.faults == self.config.faults || known.health == Health::OnTrial;
        if often && known.health != Health::Resting {
            known.health = Health::Resting;
            self.arm(Timer::Rest(engine), self.config.rest_ms);
        }
    }

    pub(super) fn rested(&mut self, engine: EngineId) {
        if let Some(known) = self.engines.get_mut(&engine) {
            known.health = Health::OnTrial;
        }
    }

    /// Engines that are not asked because they have failed.
    pub fn resting(&self) -> impl Iterator<Item = EngineId> {
        let known = self.engines.iter();
        let resting = known.filter(|(_, known)| known.health == Health::Resting);
        resting.map(|(id, _)| *id)
    }

    /// Failures of an engine one after the other.
    pub fn faults_of(&self, engine: EngineId) -> u32 {
        self.engines.get(&engine).map_or(0, |known| known.faults)
    }

    pub(super) fn aborts_prefill(&self, engine: EngineId) -> bool {
        let known = self.engines.get(&engine);
        known.is_some_and(|known| known.engine.aborts_prefill)
    }
}

fn both(prefill: Option<Lengths>, decode: Option<Lengths>) -> Option<Lengths> {
    Some(prefill?.of_both(decode?))
}

impl super::Attempt {
    /// Where it has a leg that has not ended.
    fn busy_engines(&self) -> impl Iterator<Item = EngineId> {
        let legs = [Leg::Prefill, Leg::Decode].into_iter();
        legs.filter_map(|leg| {
            let engine = self.engine(leg)?;
            (!self.leg(leg).has_ended()).then_some(engine)
        })
    }
}
