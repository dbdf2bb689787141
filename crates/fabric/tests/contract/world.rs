//! A receiver with a pool's capability, writers' lives, and short ways to use them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver as Completions, channel};

use pages::{Config, Epoch, Pool, ProofScope, WriterLife};

use super::Fabric;
use super::source::{checksum, pattern};
use fabric::{
    ArenaId, Completion, Endpoint, Evidence, FenceError, Fenced, Landing, Reader, Receiver, Shape,
    SlotWrite, SubmissionId, WordRun, WriteEnding,
};

/// Small and odd on purpose: no power of two, no multiple of eight words.
pub(crate) const SHAPE: Shape = Shape {
    slots: 5,
    slot_words: 10_003,
};
pub(crate) const WHOLE: WordRun = WordRun {
    offset: 0,
    words: SHAPE.slot_words,
};

pub(crate) struct World<'a> {
    pub(crate) fabric: &'a dyn Fabric,
    pub(crate) receiver: Box<dyn Receiver>,
    pool: Pool,
    next: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(fabric: &'a dyn Fabric) -> Self {
        let (pool, mint) = Pool::new(Config {
            pages: 1,
            page_size: 16,
            scrub: false,
        });
        Self {
            fabric,
            receiver: fabric.receiver(mint),
            pool,
            next: 0,
        }
    }

    /// A name for an arena that was not used yet.
    pub(crate) fn name(&mut self) -> ArenaId {
        self.next += 1;
        ArenaId {
            owner: Epoch::new(0xd * (u128::MAX / 255)),
            n: self.next,
        }
    }

    pub(crate) fn open(&mut self, writer: WriterLife) -> (ArenaId, Landing) {
        let arena = self.name();
        (
            arena,
            self.receiver
                .open_arena(arena, writer, SHAPE)
                .expect("opens"),
        )
    }

    /// An arena with a writer in this process.
    pub(crate) fn attached(&mut self, writer: WriterLife) -> Attached {
        let (arena, landing) = self.open(writer);
        // As it travels: bytes inside a ticket.
        let landing = Landing::from_bytes(landing.as_bytes().to_vec()).unwrap();
        let (told, completions) = channel();
        let told = Box::new(move |completion| {
            let _ = told.send(completion);
        });
        let endpoint = self
            .fabric
            .sender(writer)
            .attach(&landing, told)
            .expect("attaches");
        assert_eq!(endpoint.arena(), arena);
        let reader = self.receiver.reader(arena).unwrap();
        Attached {
            arena,
            endpoint,
            completions,
            reader,
        }
    }

    /// Fences, gives the proof to the pool whose memory it is about, and returns the evidence.
    pub(crate) fn fence(&mut self, arena: ArenaId, writer: WriterLife) -> Evidence {
        let Fenced { proof, evidence } = self.receiver.fence(arena).expect("fences");
        assert_eq!((proof.writer(), proof.scope()), (writer, ProofScope::Life));
        self.pool.writer_gone(proof);
        let again = self.receiver.fence(arena).unwrap_err();
        assert_eq!(again, FenceError::NotOpen(arena), "a second proof was made");
        evidence
    }
}

pub(crate) struct Attached {
    pub(crate) arena: ArenaId,
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) completions: Completions<Completion>,
    pub(crate) reader: Arc<dyn Reader>,
}

impl Attached {
    /// Writes whole slots and waits until they have landed.
    pub(crate) fn land(&mut self, id: u64, slots: &[(u32, u64)]) {
        let writes = slots
            .iter()
            .map(|&(slot, seed)| whole(slot, seed))
            .collect();
        self.endpoint
            .submit(SubmissionId(id), writes)
            .expect("accepted");
        self.expect(id, WriteEnding::Landed);
    }

    /// The next completion is this one.
    pub(crate) fn expect(&self, id: u64, ending: WriteEnding) {
        let completion = self.completions.recv().expect("completes");
        let expected = Completion {
            arena: self.arena,
            id: SubmissionId(id),
            ending,
        };
        assert_eq!(completion, expected);
    }
}

/// A life that has no byte in common with that of another number.
pub(crate) fn life(n: u128) -> WriterLife {
    assert!(n < 256, "one byte");
    WriterLife {
        epoch: Epoch::new(n * (u128::MAX / 255)),
        rank: 0,
    }
}

/// A write of a whole slot with the pattern of `seed`.
pub(crate) fn whole(slot: u32, seed: u64) -> SlotWrite {
    let source = Arc::new(pattern(seed, SHAPE.slot_words));
    SlotWrite {
        source,
        runs: Arc::new([WHOLE]),
        slot,
    }
}

/// The slot holds exactly the pattern of `seed`, and the checksum says so.
pub(crate) fn expect_slot(reader: &dyn Reader, slot: u32, seed: u64) {
    let mut copy = vec![0; SHAPE.slot_words];
    let stated = reader.copy_out(slot, &[WHOLE], &mut copy).expect("copies");
    assert!(
        copy == pattern(seed, SHAPE.slot_words),
        "slot {slot} differs from seed {seed}"
    );
    assert_eq!(stated, checksum(&copy));
}
