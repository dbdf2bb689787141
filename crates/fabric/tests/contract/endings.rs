//! Every submission ends exactly once; only success says that it has landed.

use std::sync::Arc;
use std::sync::mpsc::channel;

use super::source::{Gate, Gated, pattern};
use super::world::{SHAPE, WHOLE, World, expect_slot, life, whole};
use super::{Case, Fabric};
use fabric::{SlotWrite, SubmissionId, SubmitError, WriteEnding};

pub(crate) const CASES: &[Case] = &[
    (
        "a_source_is_free_when_its_landing_is_told",
        a_source_is_free_when_its_landing_is_told,
    ),
    (
        "the_queue_is_bounded_and_destroy_joins",
        the_queue_is_bounded_and_destroy_joins,
    ),
    (
        "a_dropped_endpoint_fails_what_is_unsettled",
        a_dropped_endpoint_fails_what_is_unsettled,
    ),
    ("ids_only_grow", ids_only_grow),
    (
        "a_source_that_panics_fails_its_endpoint",
        a_source_that_panics_fails_its_endpoint,
    ),
];

/// The engine writes to a page again through `Arc::get_mut` once its submission has landed.
fn a_source_is_free_when_its_landing_is_told(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (_, landing) = world.open(life(1));
    let source = Arc::new(pattern(1, SHAPE.slot_words));
    let seen = Arc::downgrade(&source);
    let (told, completions) = channel();
    let on_completion = move |completion: fabric::Completion| {
        let _ = told.send((completion.ending, seen.strong_count()));
    };
    let sender = fabric.sender(life(1));
    let mut endpoint = sender.attach(&landing, Box::new(on_completion)).unwrap();
    for round in 0..20 {
        let write = SlotWrite {
            source: source.clone(),
            runs: Arc::new([WHOLE]),
            slot: 0,
        };
        endpoint.submit(SubmissionId(round), vec![write]).unwrap();
        let only_this_one = 1;
        assert_eq!(
            completions.recv().unwrap(),
            (WriteEnding::Landed, only_this_one)
        );
    }
}

fn the_queue_is_bounded_and_destroy_joins(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    p.land(1, &[(0, 1)]);
    let gate = Arc::new(Gate::default());
    let (reading, is_reading) = channel();
    let reading = move || {
        let _ = reading.send(());
    };
    let held = Gated::new(pattern(2, SHAPE.slot_words), gate.clone(), reading);
    let write = |slot| SlotWrite {
        source: held.clone(),
        runs: Arc::new([WHOLE]),
        slot,
    };
    p.endpoint
        .submit(SubmissionId(2), vec![write(1), write(2)])
        .unwrap();
    is_reading.recv().unwrap(); // the transfer is in its first write and stays there

    let free = Arc::new(pattern(3, SHAPE.slot_words));
    let mut accepted = vec![SubmissionId(2)];
    let full = loop {
        let write = SlotWrite {
            source: free.clone(),
            runs: Arc::new([WHOLE]),
            slot: 3,
        };
        let id = SubmissionId(accepted.len() as u64 + 2);
        match p.endpoint.submit(id, vec![write]) {
            Ok(()) => accepted.push(id),
            Err(error) => break error,
        }
        assert!(accepted.len() < 100_000, "the queue has no end");
    };
    assert!(matches!(full, SubmitError::Full(_)), "{full}");

    // Destroying joins the transfer, so it cannot return before the source lets go.
    let (destroyed, is_destroyed) = channel();
    let endpoint = p.endpoint;
    let arena = p.arena;
    std::thread::scope(|scope| {
        scope.spawn(|| destroyed.send(endpoint.destroy()));
        // While the source is held no completion may say that it has ended.
        assert!(p.completions.try_recv().is_err());
        assert!(is_destroyed.try_recv().is_err());
        gate.open();
        let released = is_destroyed.recv().unwrap();
        assert_eq!(released.arena(), arena);
        let told: Vec<_> = p.completions.iter().collect();
        let ended: Vec<_> = told.iter().map(|completion| completion.id).collect();
        assert_eq!(ended, accepted, "each exactly once");
        let failed = told
            .iter()
            .filter(|completion| completion.ending == WriteEnding::Failed);
        let failed: Vec<_> = failed.map(|completion| completion.id).collect();
        assert_eq!(released.unsettled(), failed, "the value says what was told");
    });
    // Nothing is held, and nothing is read any more.
    assert_eq!((Arc::strong_count(&held), Arc::strong_count(&free)), (1, 1));
    assert!(held.reads() <= 2);
    expect_slot(&*p.reader, 0, 1); // what had landed has landed
}

fn a_dropped_endpoint_fails_what_is_unsettled(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    let gate = Arc::new(Gate::default());
    let (reading, is_reading) = channel();
    let opener = gate.clone();
    let held = Gated::new(pattern(2, SHAPE.slot_words), gate, move || {
        let _ = reading.send(());
    });
    let write = |slot| SlotWrite {
        source: held.clone(),
        runs: Arc::new([WHOLE]),
        slot,
    };
    p.endpoint
        .submit(SubmissionId(1), vec![write(1), write(2)])
        .unwrap();
    p.endpoint
        .submit(SubmissionId(2), vec![whole(3, 3)])
        .unwrap();
    is_reading.recv().unwrap();
    let endpoint = p.endpoint;
    std::thread::scope(|scope| {
        scope.spawn(move || drop(endpoint));
        opener.open();
    });
    let told: Vec<_> = p
        .completions
        .iter()
        .map(|completion| completion.id.0)
        .collect();
    assert_eq!(told, [1, 2], "each exactly once, and then nothing");
    assert_eq!(Arc::strong_count(&held), 1);
}

fn ids_only_grow(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    p.land(7, &[(0, 1)]);
    for id in [7, 6, 0] {
        let (got, last) = (SubmissionId(id), SubmissionId(7));
        let refused = p.endpoint.submit(got, vec![whole(1, 1)]);
        assert_eq!(refused, Err(SubmitError::Reused { got, last }));
    }
    p.land(8, &[]); // a batch without writes has landed, too
    assert!(p.endpoint.destroy().unsettled().is_empty());
    assert!(p.completions.recv().is_err(), "nothing else was told");
}

fn a_source_that_panics_fails_its_endpoint(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    let gate = Arc::new(Gate::default());
    gate.open();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // this one is meant
    let bad = Gated::new(pattern(2, SHAPE.slot_words), gate, || panic!("unreadable"));
    let write = SlotWrite {
        source: bad.clone(),
        runs: Arc::new([WHOLE]),
        slot: 2,
    };
    p.endpoint
        .submit(SubmissionId(1), vec![whole(1, 1), write])
        .unwrap();
    p.expect(1, WriteEnding::Failed);
    std::panic::set_hook(hook);
    // Nothing is written behind a failure under the same endpoint (H-7: it is never closed).
    match p.endpoint.submit(SubmissionId(2), vec![whole(3, 3)]) {
        Err(SubmitError::EndpointFailed) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(p.endpoint.destroy().unsettled(), [SubmissionId(1)]);
    assert_eq!(Arc::strong_count(&bad), 1);
    // The reader is not affected: it may copy what it likes until the fence.
    p.reader
        .copy_out(0, &[WHOLE], &mut vec![0; SHAPE.slot_words])
        .unwrap();
}
