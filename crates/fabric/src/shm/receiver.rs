//! The receiver's side of shared memory.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use pages::{FenceMint, WriterLife};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::arena::{ArenaId, Landing, Run, Shape, check_runs};
use crate::map::{ReadMap, bytes_of};
use crate::memory;
use crate::receiver::{CopyError, Evidence, FenceError, Fenced, OpenError, Reader, Receiver};
use crate::shm::handover::{Desk, Offers};
use crate::shm::landing::{ShmLanding, Token};
use crate::shm::layout::{BATCH_WORD, Layout};

/// Words copied before their checksum is computed: they are still in the first-level cache then.
const CHUNK_WORDS: usize = 4096;

/// What a receiver may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all arenas: open ones, and dropped ones that a writer still maps.
    pub bytes_max: u64,
}

/// Owns landing arenas in shared memory.
pub struct ShmReceiver {
    socket: PathBuf,
    mint: FenceMint,
    limits: Limits,
    /// The last id opened: they are counters of one owner, so a larger one is new.
    last: Option<ArenaId>,
    open: BTreeMap<ArenaId, Arena>,
    lingering: Vec<Lingering>,
    offers: Offers,
    _desk: Desk,
    _directory: PrivateDirectory,
}

struct Arena {
    writer: WriterLife,
    layout: Layout,
    descriptor: Arc<OwnedFd>,
    copies: Arc<ShmReader>,
}

/// A dropped arena whose memory a writer still holds.
struct Lingering {
    bytes: u64,
    descriptor: Arc<OwnedFd>,
}

impl ShmReceiver {
    /// A receiver whose handover socket lies in a new private directory inside `parent`.
    ///
    /// The mint is the capability to prove fences; the receiver is the only one who uses it.
    ///
    /// # Errors
    /// The directory or the socket cannot be made (a path beyond 107 bytes, for one).
    pub fn new(parent: &Path, mint: FenceMint, limits: Limits) -> io::Result<Self> {
        let directory = PrivateDirectory::new(parent)?;
        let socket = directory.0.join("arenas.sock");
        let offers = Offers::default();
        let desk = Desk::open(&socket, offers.clone())?;
        Ok(Self {
            socket,
            mint,
            limits,
            last: None,
            open: BTreeMap::new(),
            lingering: Vec::new(),
            offers,
            _desk: desk,
            _directory: directory,
        })
    }

    /// Dropped arenas that a writer still maps: their number and bytes (counted apart, H-10).
    pub fn lingering(&mut self) -> (usize, u64) {
        self.lingering
            .retain(|arena| attest(&arena.descriptor) == Evidence::WriterMaps);
        (
            self.lingering.len(),
            self.lingering.iter().map(|arena| arena.bytes).sum(),
        )
    }

    fn admit(&mut self, arena: ArenaId, writer: WriterLife, bytes: u64) -> Result<(), OpenError> {
        if self
            .last
            .is_some_and(|last| last.owner == arena.owner && arena.n <= last.n)
        {
            return Err(OpenError::Reused(arena));
        }
        if let Some((&open, _)) = self.open.iter().find(|(_, open)| open.writer == writer) {
            return Err(OpenError::WriterHasArena { writer, open });
        }
        let open: u64 = self
            .open
            .values()
            .map(|arena| arena.layout.len() as u64)
            .sum();
        let (_, lingering) = self.lingering();
        let limit = self.limits.bytes_max;
        let sum = open.saturating_add(lingering).saturating_add(bytes);
        if sum > limit {
            return Err(OpenError::Limit {
                wanted: bytes,
                open,
                lingering,
                limit,
            });
        }
        Ok(memory::require(bytes)?)
    }
}

impl Receiver for ShmReceiver {
    fn open_arena(
        &mut self,
        arena: ArenaId,
        writer: WriterLife,
        shape: Shape,
    ) -> Result<Landing, OpenError> {
        let layout = Layout::new(shape).ok_or(OpenError::Shape(shape))?;
        self.admit(arena, writer, layout.len() as u64)?;
        let token = draw_token()?;
        let socket = self.socket.clone();
        let landing = ShmLanding {
            arena,
            token,
            shape,
            socket,
        }
        .encode()
        .map_err(|bad| io::Error::new(io::ErrorKind::InvalidInput, bad.to_string()))?;

        let descriptor = Arc::new(allocate(layout.len())?);
        let map = ReadMap::new(read_only(&descriptor)?.as_fd(), layout.len())?;
        let copies = Arc::new(ShmReader {
            arena,
            layout,
            map: RwLock::new(Some(map)),
        });
        self.offers.put(arena, writer, token, descriptor.clone());
        self.open.insert(
            arena,
            Arena {
                writer,
                layout,
                descriptor,
                copies,
            },
        );
        self.last = Some(arena);
        Ok(landing)
    }

    fn reader(&self, arena: ArenaId) -> Result<Arc<dyn Reader>, FenceError> {
        let found = self.open.get(&arena).ok_or(FenceError::NotOpen(arena))?;
        Ok(found.copies.clone())
    }

    fn fence(&mut self, arena: ArenaId) -> Result<Fenced, FenceError> {
        let gone = self.open.remove(&arena).ok_or(FenceError::NotOpen(arena))?;
        self.offers.withdraw(arena);
        gone.copies.unmap();
        let evidence = attest(&gone.descriptor);
        if evidence == Evidence::WriterMaps {
            let bytes = gone.layout.len() as u64;
            self.lingering.push(Lingering {
                bytes,
                descriptor: gone.descriptor,
            });
        }
        Ok(Fenced {
            proof: self.mint.fenced(gone.writer),
            evidence,
        })
    }

    fn arenas(&self) -> Vec<ArenaId> {
        self.open.keys().copied().collect()
    }
}

/// The readers' side of one arena. The map is there until the fence takes it away.
struct ShmReader {
    arena: ArenaId,
    layout: Layout,
    map: RwLock<Option<ReadMap>>,
}

impl ShmReader {
    /// Waits for every copy under way (each holds the lock for reading), then unmaps: the next
    /// copy finds nothing to read.
    fn unmap(&self) {
        // A copy that panicked has changed nothing here.
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        drop(map.take());
    }
}

impl Reader for ShmReader {
    fn copy_out(&self, slot: u32, runs: &[Run], dst: &mut [u16]) -> Result<u32, CopyError> {
        self.layout.shape.check(slot, runs)?;
        check_runs(runs, dst.len())?;
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let map = map.as_ref().ok_or(CopyError::Fenced(self.arena))?;
        // Pairs with the mover's release: what was said to have landed is visible from here on.
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

/// Asks the kernel whether anybody maps the memory writable.
fn attest(descriptor: &OwnedFd) -> Evidence {
    match rustix::fs::fcntl_add_seals(descriptor, SealFlags::WRITE) {
        Ok(()) => Evidence::NoWriterMaps,
        Err(Errno::BUSY) => Evidence::WriterMaps,
        // Sealed before: only this function does that.
        Err(Errno::PERM) => Evidence::NoWriterMaps,
        Err(error) => Evidence::Unknown(error.to_string()),
    }
}

fn draw_token() -> io::Result<Token> {
    let mut token = [0; size_of::<Token>()];
    let drawn = rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())?;
    if drawn == token.len() {
        Ok(token)
    } else {
        Err(io::Error::other("short random read"))
    }
}

/// A directory of mode 0700 with an unguessable name, removed on drop.
struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    fn new(parent: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name: String = draw_token()?[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = std::path::absolute(parent)?.join(format!("fabric-{name}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
