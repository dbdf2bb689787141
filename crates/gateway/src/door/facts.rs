//! What the door says about the engines behind it.

use handoff::door::{Door, Serves};

use super::actor::Place;
use super::counters::Counters;
use super::dialect::NO_TEXT_PATH;
use crate::engine::{
    EngineFacts, LengthLimit, ModelFacts, PageCounts, Quarantine, Readiness, TextPath, WorkerFacts,
    WorkerRole,
};

/// A snapshot of now.
pub(super) fn snapshot(
    models: &[ModelFacts],
    machine: &Door,
    draining: bool,
    places: &[Place],
    counters: &Counters,
) -> EngineFacts {
    let workers: Vec<WorkerFacts> = places.iter().map(|place| worker(machine, place)).collect();
    let derivation: Vec<String> = places.iter().flat_map(derived).collect();
    let limits = machine.lengths().into_iter().map(|lengths| LengthLimit {
        max_model_len: lengths.max_model_len,
        max_prompt_tokens: lengths.max_prompt,
        derivation: derivation.clone(),
    });
    let limits: Vec<LengthLimit> = limits.collect();
    let readiness = match (draining, limits.is_empty()) {
        (true, _) => Readiness::Draining,
        (false, true) => Readiness::NotReady(missing(places)),
        (false, false) => Readiness::Ready,
    };
    EngineFacts {
        models: models.to_vec(),
        limits,
        readiness,
        text_path: text_path(places),
        workers,
        counters: counters.named(),
    }
}

/// What can be asked of all that are there: which of them a request goes to is not known yet.
fn text_path(places: &[Place]) -> TextPath {
    let mut paths = places.iter().filter_map(|place| {
        let found = place.found.as_ref().ok()?;
        Some(found.dialect.text_path())
    });
    let first = paths.next().unwrap_or(NO_TEXT_PATH);
    match paths.all(|path| path == first) {
        true => first,
        false => NO_TEXT_PATH,
    }
}

fn derived(place: &Place) -> Vec<String> {
    let name = &place.upstream.name;
    match &place.found {
        Ok(found) => {
            let lines = found.derivation.iter();
            lines.map(|line| format!("{name}: {line}")).collect()
        }
        Err(why) => vec![format!("{name}: {why}")],
    }
}

/// What stands between now and an answer.
fn missing(places: &[Place]) -> String {
    let unknown = places.iter().filter(|place| {
        let lengths = place.found.as_ref().ok().and_then(|found| found.lengths);
        lengths.is_none()
    });
    let unknown: Vec<String> = unknown.flat_map(derived).collect();
    match unknown.is_empty() {
        true => "no engines that go together are up".into(),
        false => format!("limits are not known: {}", unknown.join("; ")),
    }
}

fn worker(machine: &Door, place: &Place) -> WorkerFacts {
    let found = place.found.as_ref().ok();
    let lengths = found.and_then(|found| found.lengths);
    let role = found.map_or(WorkerRole::Unified, |it| {
        match it.dialect.serves(it.group) {
            Serves::Alone | Serves::Router => WorkerRole::Unified,
            Serves::Prefill(..) => WorkerRole::Prefill,
            Serves::Decode(..) => WorkerRole::Decode,
        }
    });
    let resting = place
        .id
        .is_some_and(|id| machine.resting().any(|it| it == id));
    let readiness = match &place.found {
        Err(why) => Readiness::NotReady(why.clone()),
        Ok(found) if found.lengths.is_none() => Readiness::NotReady(found.derivation.join("; ")),
        Ok(_) if resting => Readiness::NotReady("it has failed too often and rests".into()),
        Ok(_) => Readiness::Ready,
    };
    WorkerFacts {
        role,
        name: place.upstream.name.clone(),
        epoch: found.map(|it| it.life.clone()).unwrap_or_default(),
        readiness,
        pool_tokens: found.map_or(0, |it| it.pool_tokens),
        page_size: 0,
        max_model_len: lengths.map_or(0, |it| it.max_model_len),
        max_prompt_tokens: lengths.map_or(0, |it| it.max_prompt),
        model_fingerprint: None,
        layout_fingerprint: None,
        pages: PageCounts::default(),
        quarantine: Quarantine::default(),
        counters: Vec::new(),
    }
}
