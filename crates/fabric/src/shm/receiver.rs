//! The receiver's side of shared memory.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pages::{FenceMint, WriterLife};

use crate::arena::{ArenaId, Landing, Shape};
use crate::arenas::{Arenas, Limits};
use crate::claim::{Offers, draw_token};
use crate::receiver::{FenceError, Fenced, OpenError, Reader, Receiver, Refusals};
use crate::shm::handover::Desk;
use crate::shm::landing::ShmLanding;

/// Owns landing arenas in shared memory.
pub struct ShmReceiver {
    socket: PathBuf,
    arenas: Arenas,
    offers: Offers<Arc<OwnedFd>>,
    _desk: Desk,
    _directory: PrivateDirectory,
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
            arenas: Arenas::new(mint, limits),
            offers,
            _desk: desk,
            _directory: directory,
        })
    }

    /// Dropped arenas that a writer still maps: their number and bytes (counted apart, H-10).
    pub fn lingering(&mut self) -> (usize, u64) {
        self.arenas.lingering()
    }
}

impl Receiver for ShmReceiver {
    fn open_arena(
        &mut self,
        arena: ArenaId,
        writer: WriterLife,
        shape: Shape,
    ) -> Result<Landing, OpenError> {
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
        let descriptor = self.arenas.open(arena, writer, shape)?.descriptor();
        self.offers.put(arena, writer, token, descriptor);
        Ok(landing)
    }

    fn reader(&self, arena: ArenaId) -> Result<Arc<dyn Reader>, FenceError> {
        self.arenas.reader(arena)
    }

    fn fence(&mut self, arena: ArenaId) -> Result<Fenced, FenceError> {
        self.offers.withdraw(arena);
        self.arenas.fence(arena)
    }

    fn arenas(&self) -> Vec<ArenaId> {
        self.arenas.ids()
    }

    fn refusals(&self) -> Refusals {
        self.offers.refusals()
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
