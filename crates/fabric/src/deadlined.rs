//! Blocking sockets under one deadline over everything that is said on them: a peer that sends a byte
//! now and then does not get more time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A socket whose reads and writes can be given a time.
pub(crate) trait Timed {
    fn read_within(&self, left: Duration) -> io::Result<()>;
    fn write_within(&self, left: Duration) -> io::Result<()>;
}

macro_rules! timed {
    ($($socket:ty),*) => {$(
        impl Timed for $socket {
            fn read_within(&self, left: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(left))
            }

            fn write_within(&self, left: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(left))
            }
        }
    )*};
}

timed!(TcpStream, UnixStream);

/// A moment by which all must be said.
#[derive(Clone, Copy)]
pub(crate) struct Until(Instant);

impl Until {
    pub(crate) fn within(deadline: Duration) -> Self {
        Self(Instant::now() + deadline)
    }

    /// What is left of it; an error when it has passed.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(late())
        } else {
            Ok(left)
        }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "not within the deadline")
}

/// The system reports a timeout as if the socket did not block.
pub(crate) fn explain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => late(),
        _ => error,
    }
}

/// A blocking socket with one deadline over all reads and writes.
pub(crate) struct Deadlined<'a, S> {
    socket: &'a S,
    until: Until,
}

impl<'a, S: Timed> Deadlined<'a, S> {
    pub(crate) fn new(socket: &'a S, deadline: Duration) -> Self {
        Self::until(socket, Until::within(deadline))
    }

    pub(crate) fn until(socket: &'a S, until: Until) -> Self {
        Self { socket, until }
    }

    /// Gives the next read of the socket itself what is left.
    pub(crate) fn before_read(&self) -> io::Result<()> {
        self.socket.read_within(self.until.left()?)
    }

    /// The same for a write.
    pub(crate) fn before_write(&self) -> io::Result<()> {
        self.socket.write_within(self.until.left()?)
    }
}

impl<'a, S: Timed> Read for Deadlined<'a, S>
where
    &'a S: Read,
{
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.before_read()?;
        self.socket.read(buffer).map_err(explain)
    }
}

impl<'a, S: Timed> Write for Deadlined<'a, S>
where
    &'a S: Write,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.before_write()?;
        self.socket.write(bytes).map_err(explain)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
