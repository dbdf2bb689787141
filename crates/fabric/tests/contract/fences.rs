//! What a fence ends, and what it leaves alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use super::source::{Gate, Gated, pattern};
use super::world::{SHAPE, WHOLE, World, expect_slot, life, whole};
use super::{Case, Fabric};
use fabric::{CopyError, FenceError, SlotWrite, SubmissionId};

pub(crate) const CASES: &[Case] = &[
    (
        "a_fence_joins_the_copies_and_ends_them",
        a_fence_joins_the_copies_and_ends_them,
    ),
    (
        "late_writes_after_a_fence_are_never_seen",
        late_writes_after_a_fence_are_never_seen,
    ),
    (
        "a_fence_leaves_other_writers_alone",
        a_fence_leaves_other_writers_alone,
    ),
    (
        "a_proof_is_made_once_and_of_an_open_arena",
        a_proof_is_made_once_and_of_an_open_arena,
    ),
];

fn a_fence_joins_the_copies_and_ends_them(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    for round in 0..20 {
        let mut p = world.attached(life(round));
        p.land(1, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        let (fenced, copies) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (begun, has_begun) = channel();
        std::thread::scope(|scope| {
            for slot in 0..4u32 {
                let (reader, begun, fenced, copies) =
                    (p.reader.clone(), begun.clone(), &fenced, &copies);
                scope.spawn(move || {
                    let mut dst = vec![0; SHAPE.slot_words];
                    loop {
                        let after = fenced.load(Ordering::SeqCst);
                        match reader.copy_out(slot, &[WHOLE], &mut dst) {
                            Ok(_) => {
                                assert!(!after, "a copy was begun after the fence");
                                assert!(dst == pattern(u64::from(slot) + 1, SHAPE.slot_words));
                                copies.fetch_add(1, Ordering::SeqCst);
                                let _ = begun.send(());
                            }
                            Err(CopyError::Fenced(_)) => break,
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
            has_begun.recv().unwrap();
            world.fence(p.arena, life(round));
            fenced.store(true, Ordering::SeqCst);
        });
        assert!(copies.load(Ordering::SeqCst) > 0);
    }
}

/// The writer is in mid-batch when its arena is fenced, and carries on as if nothing were.
fn late_writes_after_a_fence_are_never_seen(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    let gate = Arc::new(Gate::default());
    let (reading, is_reading) = channel();
    let reading = move || {
        let _ = reading.send(());
    };
    let held = Gated::new(pattern(2, SHAPE.slot_words), gate.clone(), reading);
    let late = SlotWrite {
        source: held,
        runs: Arc::new([WHOLE]),
        slot: 1,
    };
    p.endpoint
        .submit(SubmissionId(1), vec![whole(0, 1), late, whole(2, 3)])
        .unwrap();
    is_reading.recv().unwrap();

    world.fence(p.arena, life(1));
    let mut next = world.attached(life(2));
    next.land(1, &[(0, 10), (1, 11), (2, 12)]);
    gate.open();
    p.expect(1, fabric.ending_after_a_fence());
    for slot in 0..SHAPE.slots {
        let mut dst = vec![9; SHAPE.slot_words];
        let copied = p.reader.copy_out(slot, &[WHOLE], &mut dst);
        assert_eq!(copied, Err(CopyError::Fenced(p.arena)));
        assert!(dst.iter().all(|&word| word == 9));
    }
    for (slot, seed) in [(0, 10), (1, 11), (2, 12)] {
        expect_slot(&*next.reader, slot, seed);
    }
}

fn a_fence_leaves_other_writers_alone(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (a, mut b) = (world.attached(life(1)), world.attached(life(2)));
    b.land(1, &[(0, 1)]);
    world.fence(a.arena, life(1));
    expect_slot(&*b.reader, 0, 1);
    b.land(2, &[(4, 2)]);
    expect_slot(&*b.reader, 4, 2);
    assert_eq!(world.receiver.arenas(), [b.arena]);
}

fn a_proof_is_made_once_and_of_an_open_arena(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let never = world.name();
    assert_eq!(
        world.receiver.fence(never).unwrap_err(),
        FenceError::NotOpen(never)
    );
    assert_eq!(
        world.receiver.reader(never).err(),
        Some(FenceError::NotOpen(never))
    );
    let (arena, _) = world.open(life(1));
    world.fence(arena, life(1)); // checks that a second one is refused
    assert_eq!(
        world.receiver.reader(arena).err(),
        Some(FenceError::NotOpen(arena))
    );
}
