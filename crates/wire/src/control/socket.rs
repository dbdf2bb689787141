//! The raw sockets below TLS.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::control::Addr;

/// A host whose kernel has not answered for so long is taken for lost.
const SILENCE: Duration = Duration::from_secs(10);
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;

/// A byte stream of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) type Socket = Box<dyn Stream>;

pub(crate) async fn connect(addr: &Addr) -> io::Result<Socket> {
    match addr {
        Addr::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Addr::Tcp(addr) => tcp(TcpStream::connect(addr).await?),
    }
}

fn tcp(stream: TcpStream) -> io::Result<Socket> {
    stream.set_nodelay(true)?; // control messages are small and somebody waits for each
    // A cable that is pulled says nothing: without probes both sides would wait for ever for a
    // host that cannot be reached. A process that is merely stopped has a kernel that answers.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(&stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(&stream, PROBES)?;
    sockopt::set_tcp_user_timeout(&stream, SILENCE.as_millis() as u32)?;
    Ok(Box::new(stream))
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// A living process listens there.
    #[error("{0} is in use by a living process")]
    InUse(Addr),
    /// Others could reach, replace or remove the socket.
    #[error(
        "{dir} has mode {mode:03o} or another owner: a control socket needs a directory of its \
             own user with mode 700"
    )]
    PublicDirectory {
        /// The socket's directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Something that is not a socket stands at the path; it is left alone.
    #[error("{0} exists and is not a socket: it is not replaced")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {addr}: {source}")]
    Io {
        /// Where.
        addr: Addr,
        /// What the system said.
        source: io::Error,
    },
    /// This side's own certificate or limits cannot be used.
    #[error("own configuration: {0}")]
    Own(String),
}

/// A bound socket. Dropping it removes a Unix socket's file.
pub(crate) enum Bound {
    Unix(UnixListener, UnixFile),
    Tcp(TcpListener),
}

impl Bound {
    pub(crate) async fn new(addr: &Addr) -> Result<Self, BindError> {
        let failed = |source| BindError::Io {
            addr: addr.clone(),
            source,
        };
        match addr {
            Addr::Tcp(tcp) => match TcpListener::bind(tcp).await {
                Ok(listener) => Ok(Bound::Tcp(listener)),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    Err(BindError::InUse(addr.clone()))
                }
                Err(error) => Err(failed(error)),
            },
            Addr::Unix(path) => {
                let file = UnixFile::claim(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                // Nobody can have connected before: the directory is private.
                std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
                Ok(Bound::Unix(listener, file))
            }
        }
    }

    /// The address as bound, with the port that the system chose.
    pub(crate) fn addr(&self) -> io::Result<Addr> {
        match self {
            Bound::Unix(_, file) => Ok(Addr::Unix(file.path.clone())),
            Bound::Tcp(listener) => Ok(Addr::Tcp(listener.local_addr()?)),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Bound::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::new(stream), "unix".to_owned()))
            }
            Bound::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((tcp(stream)?, from.to_string()))
            }
        }
    }
}

/// The right to a socket path: a lock on `PATH.lock`, held as long as this process listens.
///
/// The lock and not the socket says whether somebody lives there: a process that dies leaves its
/// socket file behind and loses the lock, and two processes that both find a stale file cannot
/// remove each other's new one.
pub(crate) struct UnixFile {
    path: PathBuf,
    _lock: File,
}

impl UnixFile {
    fn claim(path: &Path) -> Result<Self, BindError> {
        let addr = || Addr::Unix(path.to_owned());
        let failed = |source| BindError::Io {
            addr: addr(),
            source,
        };
        private_directory(path)?;

        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(lock_path)
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(BindError::InUse(addr())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(BindError::NotASocket(path.to_owned()));
            }
            // Somebody may listen without our lock: another program, or another version.
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                return Err(BindError::InUse(addr()));
            }
            Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        // The lock is still held, so what stands there is ours.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn private_directory(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io {
        addr: Addr::Unix(path.to_owned()),
        source,
    };
    let dir = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed)?;
    let metadata = std::fs::metadata(dir).map_err(failed)?;
    let mode = metadata.mode() & 0o7777;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if mode & 0o077 == 0 && own {
        Ok(())
    } else {
        Err(BindError::PublicDirectory {
            dir: dir.to_owned(),
            mode,
        })
    }
}
