//! The private directory in which one serving keeps sockets, certificates and keys.

use anyhow::{Context, ensure};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket, in bytes, with the terminating zero.
const SOCKET_PATH_MAX: usize = 108;
/// Room for the names of sockets in the directory, with the slash before them.
const SOCKET_NAME_MAX: usize = 24;
const PREFIX: &str = "cofferdam-";
/// Held locked for as long as the directory is used.
const LOCK: &str = "lock";

/// A directory that only this user can enter; removed when dropped.
#[derive(Debug)]
pub struct RuntimeDir {
    directory: tempfile::TempDir,
    _lock: File,
}

impl RuntimeDir {
    /// Makes one in `XDG_RUNTIME_DIR`, or in the directory for temporary files, and removes those
    /// that commands which were killed have left there.
    pub fn new() -> anyhow::Result<RuntimeDir> {
        let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            Some(base) if base.is_dir() => base,
            _ => std::env::temp_dir(),
        };
        RuntimeDir::new_in(&base)
            .with_context(|| format!("cannot make a private directory in {}", base.display()))
    }

    /// [`RuntimeDir::new`] in a given directory.
    pub fn new_in(base: &Path) -> anyhow::Result<RuntimeDir> {
        remove_abandoned(base);
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(private)
            .tempdir_in(base)?;
        let path_bytes = directory.path().as_os_str().as_bytes().len();
        ensure!(
            path_bytes + SOCKET_NAME_MAX < SOCKET_PATH_MAX,
            "its path of {path_bytes} bytes is too long for the sockets in it (at most {}): set \
             XDG_RUNTIME_DIR or TMPDIR to a shorter one",
            SOCKET_PATH_MAX - SOCKET_NAME_MAX - 1
        );
        // Locked before it gets its name: a directory with an unlocked lock is abandoned.
        let unnamed = directory.path().join("lock.new");
        let lock = File::create_new(&unnamed)?;
        lock.try_lock()
            .context("cannot lock a file that was just made")?;
        fs::rename(&unnamed, directory.path().join(LOCK))?;
        Ok(RuntimeDir {
            directory,
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Makes a directory in it.
    pub fn subdirectory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }

    /// Writes a file that only this user can read.
    pub fn write_private(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path().join(name);
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }

    /// Removes it now, and says if that fails.
    pub fn remove(self) -> anyhow::Result<()> {
        let path = self.path().to_owned();
        self.directory
            .close()
            .with_context(|| format!("cannot remove {}", path.display()))
    }
}

/// Removes what killed commands of this user left in `base`; failures only leave it there.
fn remove_abandoned(base: &Path) {
    let mine = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes())
            // Not followed if it is a link: DirEntry::metadata looks at the entry itself.
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == mine);
        if is_ours && is_abandoned(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(directory: &Path) -> bool {
    let lock = File::options().write(true).open(directory.join(LOCK));
    lock.is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(base: &Path) -> usize {
        fs::read_dir(base).unwrap().count()
    }

    #[test]
    fn it_is_private_and_gone_after_use() {
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new_in(base.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(dir.path()), 0o700);
        assert_eq!(mode(&dir.subdirectory("certs").unwrap()), 0o700);
        assert_eq!(mode(&dir.write_private("api-keys", "k\n").unwrap()), 0o600);
        dir.remove().unwrap();
        assert_eq!(entries(base.path()), 0);
    }

    #[test]
    fn abandoned_ones_are_removed_and_those_in_use_are_not() {
        let base = tempfile::tempdir().unwrap();
        let in_use = RuntimeDir::new_in(base.path()).unwrap();
        let killed = RuntimeDir::new_in(base.path()).unwrap();
        let left = killed.path().to_owned();
        let RuntimeDir { directory, _lock } = killed;
        let _ = directory.keep(); // as after SIGKILL: the lock is gone, the files are not
        drop(_lock);
        fs::create_dir(base.path().join("cofferdam-without-lock")).unwrap();
        fs::create_dir(base.path().join("somebody-else")).unwrap();

        let next = RuntimeDir::new_in(base.path()).unwrap();
        assert!(!left.exists());
        assert!(in_use.path().exists() && next.path().exists());
        assert_eq!(entries(base.path()), 4);
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("x".repeat(100));
        fs::create_dir(&long).unwrap();
        let text = RuntimeDir::new_in(&long).unwrap_err().to_string();
        assert!(text.contains("set XDG_RUNTIME_DIR or TMPDIR"), "{text}");
        assert_eq!(entries(&long), 0, "nothing is left behind");
    }
}
