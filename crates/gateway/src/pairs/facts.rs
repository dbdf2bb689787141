//! What the engine says about itself: rebuilt when something changed, read by everybody.

use std::sync::{Arc, PoisonError, RwLock};

use handoff::gateway::Gateway;
use handoff::{Capacity, Decisions};

use super::counters::Counters;
use super::links::{Link, Links, Place};
use crate::engine::{
    Count, EngineFacts, Limit, ModelFacts, PageCounts, Readiness, WorkerFacts, WorkerRole,
};

/// The present snapshot.
#[derive(Default)]
pub(super) struct Board(RwLock<Arc<EngineFacts>>);

impl Board {
    pub(super) fn read(&self) -> Arc<EngineFacts> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn publish(&self, facts: EngineFacts) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }
}

/// A snapshot of now.
pub(super) fn snapshot<J: Decisions>(
    models: &[ModelFacts],
    machine: &Gateway<J>,
    draining: bool,
    links: &Links,
    counters: &Counters,
) -> EngineFacts {
    let workers: Vec<_> = links.all().map(worker).collect();
    let limit = machine.limit().map(|limit| Limit {
        max_model_len: limit.max_model_len(),
        max_prompt_tokens: limit.max_prompt(),
        derivation: vec![limit.to_string()],
    });
    EngineFacts {
        models: models.to_vec(),
        readiness: readiness(draining, &workers),
        limit,
        workers,
        counters: counters.named(),
    }
}

fn readiness(draining: bool, workers: &[WorkerFacts]) -> Readiness {
    if draining {
        return Readiness::Draining;
    }
    for role in [WorkerRole::Prefill, WorkerRole::Decode] {
        let mut of = workers.iter().filter(|worker| worker.role == role);
        if !of.any(|worker| worker.readiness == Readiness::Ready) {
            let role = role.as_str();
            return Readiness::NotReady(format!("no {role} worker is connected and ready"));
        }
    }
    Readiness::Ready
}

fn worker((place, link): (&Place, Option<&Link>)) -> WorkerFacts {
    let hello = link.and_then(|link| link.hello.as_ref());
    let said = link.and_then(|link| link.facts);
    let capacity = hello.and_then(|hello| hello.capacity);
    let (max_model_len, max_prompt_tokens) = capacity.map_or((0, 0), limits);
    let readiness = match (link, hello) {
        (None, _) => Readiness::NotReady("not connected".into()),
        (Some(_), None) => Readiness::NotReady("has not said what it is".into()),
        _ => match said {
            None => Readiness::NotReady("has not said how it is".into()),
            Some(facts) if facts.draining => Readiness::Draining,
            // A request sent now would be refused: there is nobody to hand over with.
            Some(facts) if facts.peers == 0 => {
                Readiness::NotReady("not connected to a worker of the other role".into())
            }
            Some(_) => Readiness::Ready,
        },
    };
    let pages = said.map_or(PageCounts::default(), |facts| PageCounts {
        free: facts.pages.free,
        reserved: facts.pages.reserved,
        granted: facts.pages.granted,
        sealed: facts.pages.sealed,
        cached: facts.pages.cached,
        quarantined: facts.pages.quarantined,
    });
    let count = |(name, help, value)| Count { name, help, value };
    let counters = said.map_or(Vec::new(), |facts| facts.counters.named());
    WorkerFacts {
        role: place.role,
        name: place.name.clone(),
        epoch: hello.map_or(String::new(), |hello| hello.epoch.to_string()),
        readiness,
        pool_tokens: capacity.map_or(0, |capacity| capacity.pool_tokens()),
        page_size: capacity.map_or(0, |capacity| capacity.page_size.into()),
        max_model_len,
        max_prompt_tokens,
        model_fingerprint: hello.map(|hello| hex(&hello.model)),
        layout_fingerprint: hello.map(|hello| hex(&hello.layout)),
        pages,
        counters: counters.into_iter().map(count).collect(),
    }
}

/// Largest sum of prompt and output, and largest prompt, that this worker alone takes. A prefill
/// pool holds the prompt alone; every answer has at least one token.
fn limits(capacity: Capacity) -> (u32, u32) {
    let pool = u32::try_from(capacity.pool_tokens()).unwrap_or(u32::MAX);
    let below = capacity.context.saturating_sub(1);
    match capacity.role {
        handoff::Role::Prefill => (capacity.context, pool.min(below)),
        _ => {
            let sum = capacity.context.min(pool);
            (sum, sum.saturating_sub(1))
        }
    }
}

fn hex(fingerprint: &[u8; 32]) -> String {
    fingerprint
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
