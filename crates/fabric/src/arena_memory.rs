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

use crate::arena::{ArenaId, Run, check_runs};
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
    fn copy_out(&self, slot: u32, runs: &[Run], dst: &mut [u16]) -> Result<u32, CopyError> {
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
