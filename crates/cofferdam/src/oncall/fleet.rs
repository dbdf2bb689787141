//! Which engines there are, under which names, and which lives run.

use super::{Names, OnCall, locked};
use gateway::engine::{EngineFacts, Provenance, WorkerFacts};
use oncall::{Entry, Life};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An engine as the operator named it, and as the API calls it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// `engine-N`.
    pub(crate) api: String,
    /// Its address.
    pub(crate) url: String,
    /// What it is, with its version.
    pub(crate) software: String,
    /// Those it may be paired with.
    pub(crate) group: u32,
    /// Its context, as it says.
    pub(crate) context: Option<u64>,
}

#[derive(Default)]
pub(super) struct Fleet {
    /// From the API's name to the operator's.
    names: Names,
    pub(super) named: BTreeMap<String, Named>,
    /// The life of each that was seen last, and since when.
    lives: BTreeMap<String, (String, u64)>,
}

impl OnCall {
    /// The engines from now on.
    pub(crate) fn engines(&self, engines: Vec<Named>) {
        let mut fleet = locked(&self.fleet);
        let names = engines.iter().map(|it| (it.api.clone(), it.url.clone()));
        fleet.names = names.collect();
        let named = engines.into_iter().map(|it| (it.url.clone(), it));
        fleet.named = named.collect();
    }

    pub(super) fn facts(&self) -> Option<Arc<EngineFacts>> {
        self.engine.get().map(|it| it.facts())
    }

    /// What runs now.
    pub(super) fn lives(&self) -> Vec<Life> {
        let Some(facts) = self.facts() else {
            return Vec::new();
        };
        let known = facts.workers.iter().filter(|it| !it.epoch.is_empty());
        known.map(|worker| self.life(worker)).collect()
    }

    pub(super) fn life(&self, worker: &WorkerFacts) -> Life {
        Life {
            engine: self.name(&worker.name),
            life: worker.epoch.clone(),
        }
    }

    /// The operator's name of what the API calls so.
    pub(super) fn name(&self, api: &str) -> String {
        let fleet = locked(&self.fleet);
        fleet.names.get(api).map_or(api, String::as_str).to_owned()
    }

    /// The lives of whoever has answered; by their names, or by their epochs where those are their own.
    pub(super) fn lives_of(&self, by: &Provenance) -> Vec<Life> {
        let facts = self.facts();
        let workers = facts.as_ref().map_or(&[][..], |it| &it.workers[..]);
        let of = |name: &str, epoch: &str| {
            if !name.is_empty() {
                return Some(Life {
                    engine: self.name(name),
                    life: epoch.to_owned(),
                });
            }
            let worker = workers.iter().find(|it| it.epoch == epoch);
            worker.filter(|_| !epoch.is_empty()).map(|it| self.life(it))
        };
        let both = [
            of(&by.prefill, &by.prefill_epoch),
            of(&by.decode, &by.decode_epoch),
        ];
        let mut lives: Vec<Life> = both.into_iter().flatten().collect();
        lives.dedup();
        lives
    }

    /// Another process under a known name is written down.
    pub(super) fn look_at_lives(&self) {
        let now = oncall::times::now();
        for life in self.lives() {
            let mut fleet = locked(&self.fleet);
            let new = (life.life.clone(), now);
            let before = match fleet.lives.get(&life.engine) {
                Some((known, _)) if *known == life.life => continue,
                _ => fleet.lives.insert(life.engine.clone(), new),
            };
            drop(fleet);
            let before = before.map(|(life, _)| life);
            self.note(Entry::NewLife { life, before });
            self.stand();
        }
    }

    /// Since when a life was seen.
    pub(super) fn since(&self, life: &Life) -> Option<u64> {
        let fleet = locked(&self.fleet);
        let (known, since) = fleet.lives.get(&life.engine)?;
        (*known == life.life).then_some(*since)
    }
}
