//! What the suite writes, and sources that hold a transfer in mid-batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;

/// Words that differ from slot to slot and from seed to seed, and are never zero.
pub(crate) fn pattern(seed: u64, words: usize) -> Vec<u16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u16 | 1
    };
    (0..words).map(|_| next()).collect()
}

/// The checksum that a writer would state for these words.
pub(crate) fn checksum(words: &[u16]) -> u32 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    crc32c::crc32c(&bytes)
}

/// A door that is closed until it is opened, for good.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

/// A source that says when a transfer reads it, and lets it wait at a gate. Reads by the thread
/// that made it (which submits) pass and are not counted.
pub(crate) struct Gated {
    words: Vec<u16>,
    owner: ThreadId,
    gate: Arc<Gate>,
    reads: AtomicUsize,
    reading: Box<dyn Fn() + Send + Sync>,
}

impl Gated {
    pub(crate) fn new(
        words: Vec<u16>,
        gate: Arc<Gate>,
        reading: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        let owner = std::thread::current().id();
        let (reads, reading) = (AtomicUsize::new(0), Box::new(reading));
        Arc::new(Self {
            words,
            owner,
            gate,
            reads,
            reading,
        })
    }

    /// How often a transfer has read it.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }
}

impl AsRef<[u16]> for Gated {
    fn as_ref(&self) -> &[u16] {
        if std::thread::current().id() != self.owner {
            self.reads.fetch_add(1, Ordering::SeqCst);
            (self.reading)();
            self.gate.pass();
        }
        &self.words
    }
}
