//! One arena's memory: a memfd that is populated and sealed against a change of its size, and the
//! map through which this side copies out of it.
//!
//! This side reads through a read-only re-open, so that at the fence the kernel can attest that
//! nobody maps the memory writable any more (`F_SEAL_WRITE`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::arena::{ArenaId, WordRun, check_runs};
use crate::layout::{BATCH_WORD, Layout};
use crate::map::{ReadMap, bytes_of};
use crate::receiver::{CopyError, Evidence, Reader};

/// Words copied before their checksum is computed: they are still in the first-level cache then.
const CHUNK_WORDS: usize = 4096;

/// See the module's documentation.
pub(crate) struct ArenaMemory {
    layout: Layout,
    descriptor: Arc<OwnedFd>,
    copies: Arc<Copies>,
}

impl ArenaMemory {
    pub(crate) fn new(arena: ArenaId, layout: Layout) -> io::Result<Self> {
        let descriptor = Arc::new(allocate(layout.len())?);
        let map = ReadMap::new(read_only(&descriptor)?.as_fd(), layout.len())?;
        let copies = Arc::new(Copies {
            arena,
            layout,
            map: RwLock::new(Some(map)),
        });
        Ok(Self {
            layout,
            descriptor,
            copies,
        })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.len() as u64
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// What whoever may write maps.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        self.descriptor.clone()
    }

    pub(crate) fn reader(&self) -> Arc<dyn Reader> {
        self.copies.clone()
    }

    /// Waits for every copy under way (each holds the lock for reading), then unmaps: the next
    /// copy finds nothing to read.
    pub(crate) fn end_copies(&self) {
        // A copy that panicked has changed nothing here.
        let mut map = self
            .copies
            .map
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        drop(map.take());
    }

    /// Asks the kernel whether anybody maps the memory writable.
    pub(crate) fn attest(&self) -> Evidence {
        match rustix::fs::fcntl_add_seals(&self.descriptor, SealFlags::WRITE) {
            Ok(()) => Evidence::NoWriterMaps,
            Err(Errno::BUSY) => Evidence::WriterMaps,
            // Sealed before: only this function does that.
            Err(Errno::PERM) => Evidence::NoWriterMaps,
            Err(error) => Evidence::Unknown(error.to_string()),
        }
    }
}

/// The readers' side of one arena. The map is there until the fence takes it away.
struct Copies {
    arena: ArenaId,
    layout: Layout,
    map: RwLock<Option<ReadMap>>,
}

impl Reader for Copies {
    fn copy_out(&self, slot: u32, runs: &[WordRun], dst: &mut [u16]) -> Result<u32, CopyError> {
        self.layout.shape.check(slot, runs)?;
        check_runs(runs, dst.len())?;
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let map = map.as_ref().ok_or(CopyError::Fenced(self.arena))?;
        // Pairs with the release behind a batch: what was said to have landed is visible from here.
        map.load_acquire(BATCH_WORD);
        let mut checksum = 0;
        for run in runs {
            let mut word = run.offset;
            for chunk in dst[run.range()].chunks_mut(CHUNK_WORDS) {
                map.read(self.layout.offset(slot, word), chunk);
                checksum = crc32c::crc32c_append(checksum, bytes_of(chunk));
                word += chunk.len();
            }
        }
        Ok(checksum)
    }
}

/// A sealed, populated memfd of `len` bytes.
fn allocate(len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("cofferdam-arena", flags)?;
    // Allocates every page now: neither side can meet a page that the machine does not have.
    rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, len as u64)?;
    // Not F_SEAL_SEAL: the fence adds F_SEAL_WRITE.
    rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(descriptor)
}

/// Opens the same memory read-only. A map through it does not count as a writable one.
fn read_only(descriptor: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok(rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Shape;
    use crate::map::WriteMap;
    use pages::Epoch;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SHAPE: Shape = Shape {
        slots: 1,
        slot_words: 3 * CHUNK_WORDS + 5,
    };

    fn memory() -> (ArenaMemory, WriteMap) {
        let layout = Layout::new(SHAPE).unwrap();
        let owner = Epoch::new(9);
        let memory = ArenaMemory::new(ArenaId { owner, n: 1 }, layout).unwrap();
        let map = WriteMap::new(memory.descriptor().as_fd(), layout.len()).unwrap();
        (memory, map)
    }

    /// H-1: whatever a writer does to the slot meanwhile, the checksum is that of the words that are
    /// in the private copy, for these are what is attended to. A checksum of what a second look at
    /// the slot finds would be that of other words.
    #[test]
    fn h1_a_checksum_is_of_the_private_copy_while_the_slot_is_written_on() {
        let (memory, map) = memory();
        let reader = memory.reader();
        let run = WordRun {
            offset: 0,
            words: SHAPE.slot_words,
        };
        let at = memory.layout().offset(0, 0);
        let done = AtomicBool::new(false);
        let torn = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut word = 0_u16;
                while !done.load(Ordering::Relaxed) {
                    word = word.wrapping_add(1);
                    map.write(at, &[word; SHAPE.slot_words]);
                }
            });
            let (mut copy, mut torn) = (vec![0; SHAPE.slot_words], 0);
            for round in 0..50_000 {
                let stated = reader.copy_out(0, &[run], &mut copy);
                let of_copy = crc32c::crc32c(bytes_of(&copy));
                if stated != Ok(of_copy) {
                    done.store(true, Ordering::Relaxed);
                }
                assert_eq!(stated, Ok(of_copy));
                torn += usize::from(copy.iter().any(|word| *word != copy[0]));
                if round >= 500 && torn >= 100 {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
            torn
        });
        println!("{torn} copies were torn"); // none, if the two threads never ran at one time
    }

    /// Every word of every run goes into the checksum, in the order of the runs, and none besides.
    #[test]
    fn a_checksum_is_of_every_word_that_is_named() {
        let (memory, map) = memory();
        let reader = memory.reader();
        let words: Vec<u16> = (0..SHAPE.slot_words as u16).collect();
        map.write(memory.layout().offset(0, 0), &words);
        let run = |offset, words| WordRun { offset, words };
        let end = SHAPE.slot_words;
        for runs in [
            vec![run(0, end)],
            vec![run(0, CHUNK_WORDS), run(CHUNK_WORDS, 1)],
            vec![run(CHUNK_WORDS - 1, 2), run(0, 3)],
            vec![run(end - 1, 1), run(0, 1)],
            vec![run(7, 2 * CHUNK_WORDS + 1)],
        ] {
            let mut copy = vec![0xffff; end];
            let stated = reader.copy_out(0, &runs, &mut copy).unwrap();
            let named = runs.iter().flat_map(|run| words[run.range()].to_vec());
            let named: Vec<u16> = named.collect();
            assert_eq!(stated, crc32c::crc32c(bytes_of(&named)), "{runs:?}");
            let mut changed = runs.clone();
            changed.reverse();
            let other = reader.copy_out(0, &changed, &mut copy).unwrap();
            assert_eq!(other == stated, changed == runs, "the order of {runs:?}");
        }
    }

    /// The fence waits for a copy that is under way: nothing is read once it has returned.
    #[test]
    fn the_end_of_copies_waits_for_those_that_have_begun() {
        let (memory, _map) = memory();
        let copies = memory.copies.clone();
        let held = copies.map.read().unwrap(); // as a copy holds it
        let ended = AtomicBool::new(false);
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.send(()).unwrap();
                memory.end_copies();
                ended.store(true, Ordering::SeqCst);
            });
            has_begun.recv().unwrap();
            // It cannot take the map away while this copy reads, however long that takes.
            for _ in 0..1000 {
                assert!(held.is_some() && !ended.load(Ordering::SeqCst));
                std::thread::yield_now();
            }
            drop(held);
        });
        assert!(ended.load(Ordering::SeqCst));
        assert!(copies.map.read().unwrap().is_none(), "and then it is gone");
    }
}
