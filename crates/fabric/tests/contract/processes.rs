//! Writers in processes of their own: killed, stopped, continued, restarted.

use super::peer::Peer;
use super::world::{SHAPE, WHOLE, World, expect_slot};
use super::{Case, Fabric};
use fabric::{ArenaId, CopyError, Reader, WriteEnding};

pub(crate) const CASES: &[Case] = &[
    (
        "another_process_writes_what_this_one_reads",
        another_process_writes_what_this_one_reads,
    ),
    (
        "a_writer_killed_in_mid_batch_is_fenced",
        a_writer_killed_in_mid_batch_is_fenced,
    ),
    (
        "a_stopped_writer_is_fenced_and_its_late_writes_are_never_seen",
        a_stopped_writer_is_fenced,
    ),
    (
        "a_restarted_writer_is_another_life",
        a_restarted_writer_is_another_life,
    ),
];

fn another_process_writes_what_this_one_reads(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = Peer::start(fabric, 1);
    let (arena, landing) = world.open(p.life);
    assert_eq!(p.attach(&landing), "attached");
    let reader = world.receiver.reader(arena).unwrap();
    for round in 1..=20 {
        p.submit(round, &[(0, round), (4, round + 50)], None);
        assert_eq!(p.hear(), format!("landed {round}"));
        expect_slot(&*reader, 0, round);
        expect_slot(&*reader, 4, round + 50);
    }
}

fn a_writer_killed_in_mid_batch_is_fenced(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (mut p, mut other) = (Peer::start(fabric, 1), Peer::start(fabric, 2));
    let (arena, landing) = world.open(p.life);
    let (neighbour, its_landing) = world.open(other.life);
    assert_eq!(p.attach(&landing), "attached");
    assert_eq!(other.attach(&its_landing), "attached");
    p.submit(1, &[(0, 1), (1, 2)], None);
    assert_eq!(p.hear(), "landed 1");
    p.submit(2, &[(2, 3), (3, 4), (4, 5)], Some(1));
    assert_eq!(p.hear(), "in mid-batch");
    p.kill();

    // What had landed before can still be copied; the fence is the receiver's own act.
    let reader = world.receiver.reader(arena).unwrap();
    expect_slot(&*reader, 0, 1);
    world.fence(arena, p.life);
    expect_fenced(&*reader, arena);

    // Its neighbour noticed nothing.
    other.submit(1, &[(0, 9)], None);
    assert_eq!(other.hear(), "landed 1");
    expect_slot(&*world.receiver.reader(neighbour).unwrap(), 0, 9);
}

/// The fence test: stop the writer in mid-batch, fence, reuse, continue the writer, see no change.
fn a_stopped_writer_is_fenced(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = Peer::start(fabric, 1);
    let (arena, landing) = world.open(p.life);
    assert_eq!(p.attach(&landing), "attached");
    let reader = world.receiver.reader(arena).unwrap();
    p.submit(1, &[(0, 1), (1, 2), (2, 3)], Some(1));
    assert_eq!(p.hear(), "in mid-batch");
    p.stop();

    world.fence(arena, p.life);
    expect_fenced(&*reader, arena);
    // Reuse: the memory that the batch was to be copied to belongs to somebody else now, and so
    // does a new arena.
    let mut q = Peer::start(fabric, 2);
    let (next, landing) = world.open(q.life);
    assert_eq!(q.attach(&landing), "attached");
    q.submit(1, &[(0, 10), (1, 11), (2, 12), (3, 13), (4, 14)], None);
    assert_eq!(q.hear(), "landed 1");
    let fresh = world.receiver.reader(next).unwrap();
    let mut private = vec![0; SHAPE.slot_words];
    let before = fresh.copy_out(1, &[WHOLE], &mut private).unwrap();
    let kept = private.clone();

    p.resume();
    p.release();
    let heard = match fabric.ending_after_a_fence() {
        WriteEnding::Landed => "landed 1", // the late writes were carried out, as far as P can tell
        WriteEnding::Failed => "failed 1",
        other => panic!("no fabric ends so: {other:?}"),
    };
    assert_eq!(p.hear(), heard);

    assert!(private == kept);
    expect_fenced(&*reader, arena);
    for (slot, seed) in [(0, 10), (1, 11), (2, 12), (3, 13), (4, 14)] {
        expect_slot(&*fresh, slot, seed);
    }
    assert_eq!(fresh.copy_out(1, &[WHOLE], &mut private).unwrap(), before);
}

fn a_restarted_writer_is_another_life(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = Peer::start(fabric, 1);
    let (arena, landing) = world.open(p.life);
    p.kill();
    let mut p = Peer::start(fabric, 2);
    // A new epoch at the same place is no fence, and does not inherit the arena.
    let answer = p.attach(&landing);
    assert!(answer.contains("another life"), "{answer}");
    assert_eq!(world.receiver.arenas(), [arena]);
    let (fresh, landing) = world.open(p.life);
    assert_eq!(p.attach(&landing), "attached");
    p.submit(1, &[(0, 1)], None);
    assert_eq!(p.hear(), "landed 1");
    expect_slot(&*world.receiver.reader(fresh).unwrap(), 0, 1);
    world.fence(arena, super::world::life(1));
    expect_slot(&*world.receiver.reader(fresh).unwrap(), 0, 1);
}

fn expect_fenced(reader: &dyn Reader, arena: ArenaId) {
    for slot in 0..SHAPE.slots {
        let mut dst = vec![9; SHAPE.slot_words];
        let copied = reader.copy_out(slot, &[WHOLE], &mut dst);
        assert_eq!(copied, Err(CopyError::Fenced(arena)));
        assert!(dst.iter().all(|&word| word == 9));
    }
}
