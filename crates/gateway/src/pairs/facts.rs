//! What the engine says about itself: rebuilt when something changed, read by everybody.

use std::sync::Arc;

use handoff::gateway::Gateway;
use handoff::{Capacity, Decisions};
use tokio::sync::watch;
use wire::Facts;

use super::counters::Counters;
use super::links::{Link, Links, Place};
use crate::engine::{
    Count, EngineFacts, LengthLimit, ModelFacts, PageCounts, Quarantine, Readiness, TextPath,
    WorkerFacts, WorkerRole,
};

/// The present snapshot.
#[derive(Default)]
pub(crate) struct Board(watch::Sender<Arc<EngineFacts>>);

impl Board {
    pub(crate) fn read(&self) -> Arc<EngineFacts> {
        self.0.borrow().clone()
    }

    /// For who waits until something is so.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<EngineFacts>> {
        self.0.subscribe()
    }

    pub(crate) fn publish(&self, facts: EngineFacts) {
        self.0.send_replace(Arc::new(facts));
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
    let limits = machine.limits().into_iter().map(|limit| LengthLimit {
        max_model_len: limit.max_model_len(),
        max_prompt_tokens: limit.max_prompt(),
        derivation: vec![limit.to_string()],
    });
    let limits: Vec<_> = limits.collect();
    EngineFacts {
        text_path: TextPath::OURS,
        models: models.to_vec(),
        readiness: readiness(draining, &workers, !limits.is_empty()),
        limits,
        workers,
        counters: counters.named(),
    }
}

fn readiness(draining: bool, workers: &[WorkerFacts], paired: bool) -> Readiness {
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
    // A worker that has said its last words is still connected for a moment.
    if !paired {
        return Readiness::NotReady("no pair of prefill and decode workers goes together".into());
    }
    Readiness::Ready
}

fn worker((place, link): (&Place, Option<&Link>)) -> WorkerFacts {
    let hello = link.and_then(|link| link.hello.as_ref());
    let said = link.and_then(|link| link.facts);
    let capacity = hello.and_then(|hello| hello.capacity);
    let (max_model_len, max_prompt_tokens) =
        capacity.map_or((0, 0), |it| (it.longest_sum(), it.longest_prompt()));
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
            Some(facts) => match degraded(&facts, max_model_len, capacity) {
                Some(why) => Readiness::NotReady(why),
                None => Readiness::Ready,
            },
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
        quarantine: said.map_or(Quarantine::default(), |facts| facts.quarantine),
        counters: counters.into_iter().map(count).collect(),
    }
}

/// Why a worker that is connected cannot take what it advertises: pages that were lost for good, or
/// landing arenas that cannot be made, perhaps because writers which are gone still map old ones. It degrades admission, and no page is used again
/// for it.
fn degraded(facts: &Facts, context: u32, capacity: Option<Capacity>) -> Option<String> {
    let Quarantine {
        dropped, arenas, ..
    } = facts.quarantine;
    let capacity = capacity?;
    let pool = u64::from(capacity.pages);
    let left = pool.saturating_sub(dropped.count) * u64::from(capacity.page_size);
    if dropped.count > 0 && left < u64::from(context) {
        return Some(format!(
            "{} of {pool} pages are lost for good, and what is left does not hold one context of \
             {context} tokens: restart this worker",
            dropped.count
        ));
    }
    facts.no_arena.then(|| match arenas.count {
        0 => {
            "no landing arena could be made (this worker's log says why); it is tried again".into()
        }
        held => format!(
            "no landing arena can be made: {held} dropped ones, {} bytes, are still mapped by \
             writers that are gone or stopped",
            facts.quarantine.arena_bytes
        ),
    })
}

fn hex(fingerprint: &[u8; 32]) -> String {
    fingerprint
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
