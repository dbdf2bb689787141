//! Canaries for ever: what a step says it has found is what that step has found.

use super::*;
use probe::vigil::{Convicted, Vigil, VigilStep};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const SOUND: u8 = 0;
const MIXED_UP: u8 = 1;
const LEAKS: u8 = 2;

/// A server whose answers to B are B's own words, those of B's request before, or A's, as it is set.
async fn vigil() -> (Vigil, Arc<AtomicU8>) {
    let set = Arc::new(AtomicU8::new(SOUND));
    let is = set.clone();
    let script = move |asked: &Asked| {
        let foreign = match is.load(Relaxed) {
            MIXED_UP if asked.key.contains("key-of-b") => asked.of_before(),
            LEAKS if asked.key.contains("key-of-b") => asked.foreign(),
            _ => None,
        };
        Reply::Text(foreign.unwrap_or_else(|| asked.copied()))
    };
    let url = serve(Form::Plain, |it| it, script).await;
    let vigil = Vigil::new(two(&url), Duration::from_secs(60), || SEED);
    (vigil, set)
}

async fn step(vigil: &mut Vigil) -> Vec<Convicted> {
    vigil.step(VigilStep::Short, &[], Some(LIMIT)).await.found
}

/// A leak closes a model, a mix-up one pair: a leak that comes after a mix-up is still called a leak.
#[tokio::test]
async fn a_leak_after_a_mixup_is_a_leak() {
    let (mut vigil, set) = vigil().await;
    assert_eq!(step(&mut vigil).await, []);
    for (is, kind) in [
        (MIXED_UP, Kind::Mixup),
        (LEAKS, Kind::Leak),
        (MIXED_UP, Kind::Mixup),
    ] {
        set.store(is, Relaxed);
        let found = step(&mut vigil).await;
        let kinds: Vec<_> = found.iter().map(|it| it.kind).collect();
        assert_eq!(kinds, [kind], "{found:?}");
    }
    set.store(SOUND, Relaxed);
    assert_eq!(step(&mut vigil).await, [], "what was told is told once");
}

/// However many there were before: a finding names the requests that have shown it, and no older ones.
#[tokio::test]
async fn every_finding_is_the_newest() {
    let (mut vigil, set) = vigil().await;
    set.store(LEAKS, Relaxed);
    let mut told = BTreeSet::new();
    for n in 0..12 {
        let found = step(&mut vigil).await;
        assert_eq!(found.len(), 1, "step {n}: {found:?}");
        let says = found[0].says.clone();
        assert!(told.insert(says.clone()), "step {n} tells again: {says}");
    }
}
