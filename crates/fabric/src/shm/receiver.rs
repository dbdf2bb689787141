//! The receiver's side of shared memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pages::{FenceMint, WriterLife};

use crate::arena::{ArenaId, Landing, Shape};
use crate::arenas::{Arenas, Limits};
use crate::claim::{Offers, draw_token};
use crate::receiver::{FenceError, Fenced, OpenError, Reader, Receiver, Refusals};
use crate::shm::handover::{DescriptorServer, Given, Notice};
use crate::shm::landing::ShmLanding;

/// Owns landing arenas in shared memory.
pub struct ShmReceiver {
    socket: PathBuf,
    arenas: Arenas,
    offers: Offers<Given>,
    /// Of each open arena, how its writer hears that it is dropped.
    notices: BTreeMap<ArenaId, Arc<Notice>>,
    _desk: DescriptorServer,
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
        let descriptors = DescriptorServer::open(&socket, offers.clone())?;
        Ok(Self {
            socket,
            arenas: Arenas::new(mint, limits),
            offers,
            notices: BTreeMap::new(),
            _desk: descriptors,
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
        let notice = Arc::<Notice>::default();
        self.notices.insert(arena, notice.clone());
        self.offers.put(arena, writer, token, (descriptor, notice));
        Ok(landing)
    }

    fn reader(&self, arena: ArenaId) -> Result<Arc<dyn Reader>, FenceError> {
        self.arenas.reader(arena)
    }

    fn fence(&mut self, arena: ArenaId) -> Result<Fenced, FenceError> {
        self.offers.withdraw(arena);
        let fenced = self.arenas.fence(arena)?;
        if let Some(notice) = self.notices.remove(&arena) {
            notice.tell();
        }
        Ok(fenced)
    }

    fn arenas(&self) -> Vec<ArenaId> {
        self.arenas.ids()
    }

    fn lingering(&mut self) -> (usize, u64) {
        ShmReceiver::lingering(self)
    }

    fn is_given_back(&mut self, arena: ArenaId) -> bool {
        self.arenas.is_given_back(arena)
    }

    fn refusals(&self) -> Refusals {
        self.offers.refusals()
    }
}

/// Held locked for as long as the directory is used.
const LOCK: &str = "lock";
const PREFIX: &str = "fabric-";

/// A directory of mode 0700 with an unguessable name, removed on drop; those of receivers that were
/// killed are removed by the next one beside them.
struct PrivateDirectory(PathBuf, File);

impl PrivateDirectory {
    fn new(parent: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name: String = draw_token()?[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let parent = std::path::absolute(parent)?;
        remove_abandoned(&parent);
        let path = parent.join(format!("{PREFIX}{name}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        // Locked before it gets its name: a directory with an unlocked lock is abandoned.
        let unnamed = path.join("lock.new");
        let lock = File::create_new(&unnamed)?;
        lock.try_lock()?;
        std::fs::rename(&unnamed, path.join(LOCK))?;
        Ok(Self(path, lock))
    }
}

/// Removes what killed receivers of this user left in `parent`; a failure only leaves it there.
fn remove_abandoned(parent: &Path) {
    use std::os::unix::fs::MetadataExt;
    let mine = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            // Not followed if it is a link: DirEntry::metadata looks at the entry itself.
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == mine);
        let lock = File::options().write(true).open(entry.path().join(LOCK));
        if is_ours && lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let Self(path, _lock) = self;
        let _ = std::fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_receiver_left_is_removed_and_what_is_used_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let used = PrivateDirectory::new(parent.path()).unwrap();
        let killed = PrivateDirectory::new(parent.path()).unwrap();
        let left = killed.0.clone();
        // As after SIGKILL: the lock is gone, the files are not.
        let lock = killed.1.try_clone().unwrap();
        std::mem::forget(killed);
        lock.unlock().unwrap();
        let next = PrivateDirectory::new(parent.path()).unwrap();
        assert!(!left.exists());
        assert!(used.0.exists() && next.0.exists());
        drop((used, next));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
