//! Who may write where, and that what has landed is seen.

use std::sync::Arc;

use super::source::{checksum, pattern};
use super::world::{SHAPE, WHOLE, World, expect_slot, life, whole};
use super::{Case, Fabric};
use fabric::{
    AttachError, CopyError, Landing, OpenError, OutOfRange, Refusal, Shape, SlotWrite,
    SubmissionId, SubmitError, WordRun, WriteEnding,
};

pub(crate) const CASES: &[Case] = &[
    ("what_has_landed_is_visible", what_has_landed_is_visible),
    (
        "only_the_words_that_are_named_travel",
        only_the_words_that_are_named_travel,
    ),
    (
        "what_is_out_of_range_is_refused_by_both_sides",
        out_of_range_is_refused,
    ),
    (
        "a_landing_serves_one_life_once",
        a_landing_serves_one_life_once,
    ),
    (
        "a_fenced_arena_cannot_be_attached_to",
        a_fenced_arena_cannot_be_attached_to,
    ),
    (
        "bytes_that_are_no_landing_are_refused",
        bytes_that_are_no_landing_are_refused,
    ),
    (
        "arenas_have_one_life_and_one_name",
        arenas_have_one_life_and_one_name,
    ),
];

fn what_has_landed_is_visible(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    for round in 0..50u64 {
        p.land(round, &[(0, round), (4, round + 100), (2, round + 200)]);
        // Copies run on other threads than the receiver's.
        std::thread::scope(|scope| {
            for (slot, seed) in [(0, round), (4, round + 100), (2, round + 200)] {
                let reader = p.reader.clone();
                scope.spawn(move || expect_slot(&*reader, slot, seed));
            }
        });
    }
}

fn only_the_words_that_are_named_travel(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    p.land(1, &[(1, 7)]);
    let run = |offset, words| WordRun { offset, words };
    let runs = [
        run(3, 5),
        run(1000, 0),
        run(5001, 4099),
        run(SHAPE.slot_words - 1, 1),
    ];
    let source = pattern(8, SHAPE.slot_words);
    let write = SlotWrite {
        source: Arc::new(source.clone()),
        runs: Arc::new(runs),
        slot: 1,
    };
    p.endpoint.submit(SubmissionId(2), vec![write]).unwrap();
    p.expect(2, WriteEnding::Landed);

    let mut expected = pattern(7, SHAPE.slot_words);
    for run in runs {
        let range = run.offset..run.offset + run.words;
        expected[range.clone()].copy_from_slice(&source[range]);
    }
    let mut all = vec![0; SHAPE.slot_words];
    p.reader.copy_out(1, &[WHOLE], &mut all).unwrap();
    assert!(
        all == expected,
        "a word that was not named changed, or one that was did not"
    );

    // The same on the reader's side; the checksum is of exactly these words, in this order.
    let mut copy = vec![0xffff; SHAPE.slot_words];
    let stated = p.reader.copy_out(1, &runs, &mut copy).unwrap();
    let named: Vec<u16> = runs
        .iter()
        .flat_map(|run| source[run.offset..run.offset + run.words].to_vec())
        .collect();
    assert_eq!(stated, checksum(&named));
    let touched = |word| {
        runs.iter()
            .any(|run| (run.offset..run.offset + run.words).contains(&word))
    };
    for (word, &value) in copy.iter().enumerate() {
        assert_eq!(
            value,
            if touched(word) { source[word] } else { 0xffff },
            "word {word}"
        );
    }
}

fn out_of_range_is_refused(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let mut p = world.attached(life(1));
    let slots = SHAPE.slots;
    let refused = p
        .endpoint
        .submit(SubmissionId(1), vec![whole(0, 1), whole(slots, 1)]);
    let no_slot = OutOfRange::Slot { slot: slots, slots };
    assert_eq!(refused, Err(SubmitError::OutOfRange(no_slot.clone())));
    let mut dst = vec![9; SHAPE.slot_words];
    let copied = p.reader.copy_out(slots, &[WHOLE], &mut dst);
    assert_eq!(copied, Err(CopyError::OutOfRange(no_slot)));

    let words = SHAPE.slot_words;
    let behind = [(0, words + 1), (words, 1), (usize::MAX, 1), (1, usize::MAX)];
    for (offset, count) in behind {
        let run = WordRun {
            offset,
            words: count,
        };
        let source = Arc::new(pattern(1, words + 10));
        let write = SlotWrite {
            source,
            runs: Arc::new([WHOLE, run]),
            slot: 0,
        };
        let outside = OutOfRange::Run { run, words };
        let refused = p.endpoint.submit(SubmissionId(1), vec![write]);
        assert_eq!(refused, Err(SubmitError::OutOfRange(outside.clone())));
        let copied = p.reader.copy_out(0, &[WHOLE, run], &mut dst);
        assert_eq!(copied, Err(CopyError::OutOfRange(outside)));
    }
    // A source and a destination that are shorter than the run.
    let short = SlotWrite {
        source: Arc::new(vec![1; 10]),
        ..whole(0, 1)
    };
    let outside = OutOfRange::Run {
        run: WHOLE,
        words: 10,
    };
    let refused = p.endpoint.submit(SubmissionId(1), vec![short]);
    assert_eq!(refused, Err(SubmitError::OutOfRange(outside.clone())));
    let copied = p.reader.copy_out(0, &[WHOLE], &mut dst[..10]);
    assert_eq!(copied, Err(CopyError::OutOfRange(outside)));

    // Nothing was begun by any of it: no completion, nothing written, nothing copied, id unused.
    assert!(dst.iter().all(|&word| word == 9));
    p.land(1, &[(3, 5)]);
    let mut slot = vec![9; words];
    p.reader.copy_out(0, &[WHOLE], &mut slot).unwrap();
    assert!(slot.iter().all(|&word| word == 0));
    assert!(p.completions.try_recv().is_err());
}

fn a_landing_serves_one_life_once(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (_, landing) = world.open(life(1));
    let attach = |life| fabric.sender(life).attach(&landing, Box::new(drop)).err();
    // Another life, and lives and ranks that differ in one bit, be it the highest.
    let other_bit = |bit: u32| pages::WriterLife {
        epoch: pages::Epoch::new(life(1).epoch.bits() ^ (1 << bit)),
        ..life(1)
    };
    let other_rank = |rank| pages::WriterLife { rank, ..life(1) };
    let mut strangers = vec![life(2)];
    strangers.extend([0, 31, 32, 63, 64, 100, 127].map(other_bit));
    strangers.extend([1, 1 << 8, 1 << 15].map(other_rank));
    for stranger in strangers {
        let error = attach(stranger);
        assert!(
            matches!(error, Some(AttachError::Refused(Refusal::OtherLife))),
            "{error:?}"
        );
    }
    // The refusals did not use it up; the one that it is for does.
    let endpoint = fabric
        .sender(life(1))
        .attach(&landing, Box::new(drop))
        .expect("attaches");
    for again in [life(1), life(2)] {
        assert!(matches!(attach(again), Some(AttachError::Refused(_))));
    }
    assert!(matches!(
        attach(life(1)),
        Some(AttachError::Refused(Refusal::Used))
    ));
    drop(endpoint);
    assert!(matches!(
        attach(life(1)),
        Some(AttachError::Refused(Refusal::Used))
    ));
}

fn a_fenced_arena_cannot_be_attached_to(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (arena, landing) = world.open(life(1));
    world.fence(arena, life(1));
    let error = fabric
        .sender(life(1))
        .attach(&landing, Box::new(drop))
        .err();
    assert!(
        matches!(error, Some(AttachError::Refused(Refusal::NotOpen))),
        "{error:?}"
    );
    // Nor can an arena of a receiver that is gone.
    let (_, landing) = world.open(life(1));
    drop(world);
    assert!(
        fabric
            .sender(life(1))
            .attach(&landing, Box::new(drop))
            .is_err()
    );
}

fn bytes_that_are_no_landing_are_refused(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (_, landing) = world.open(life(1));
    let good = landing.as_bytes();
    let attach = |bytes: &[u8]| {
        let landing = Landing::from_bytes(bytes.to_vec()).unwrap();
        fabric
            .sender(life(1))
            .attach(&landing, Box::new(drop))
            .is_err()
    };
    for cut in 0..good.len() {
        assert!(
            attach(&good[..cut]),
            "a landing cut after {cut} bytes was accepted"
        );
    }
    for at in 0..good.len() {
        let mut bytes = good.to_vec();
        bytes[at] ^= 0x40;
        assert!(
            attach(&bytes),
            "a landing with byte {at} changed was accepted"
        );
    }
    assert!(Landing::from_bytes(vec![0; Landing::BYTES_MAX + 1]).is_err());
}

fn arenas_have_one_life_and_one_name(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (first, _) = world.open(life(1));
    let second = world.name();
    let error = world
        .receiver
        .open_arena(second, life(1), SHAPE)
        .unwrap_err();
    assert!(
        matches!(error, OpenError::WriterHasArena { open, .. } if open == first),
        "{error}"
    );
    let (third, _) = world.open(life(2));
    assert_eq!(world.receiver.arenas(), [first, third]);

    for used in [first, second] {
        let error = world.receiver.open_arena(used, life(3), SHAPE).unwrap_err();
        assert!(matches!(error, OpenError::Reused(_)), "{error}");
    }
    for shape in [
        Shape { slots: 0, ..SHAPE },
        Shape {
            slot_words: 0,
            ..SHAPE
        },
    ] {
        let name = world.name();
        let error = world.receiver.open_arena(name, life(3), shape).unwrap_err();
        assert!(matches!(error, OpenError::Shape(_)), "{error}");
    }
    let huge = Shape {
        slots: 1 << 20,
        slot_words: 1 << 30,
    };
    let name = world.name();
    let error = world.receiver.open_arena(name, life(3), huge).unwrap_err();
    assert!(
        matches!(error, OpenError::Limit { .. } | OpenError::Memory(_)),
        "{error}"
    );
    assert_eq!(world.receiver.arenas(), [first, third]);

    // After the fence the life may have another one, under another name.
    world.fence(first, life(1));
    let mut again = world.attached(life(1));
    again.land(1, &[(0, 1)]);
    expect_slot(&*again.reader, 0, 1);
}
