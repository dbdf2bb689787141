//! Sockets of the data plane: options, and blocking use in large pieces.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// Bytes taken from the system at once.
const READ_BYTES: usize = 256 * 1024;

/// How a dead or unreachable host is noticed although nobody sends: after this long without an
/// answer of its kernel. A peer that is merely stopped still has a kernel that answers.
const SILENCE: Duration = Duration::from_secs(10);
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;

/// Sets what every data connection has.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?; // acknowledgements and ends are small, and somebody waits for each
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// A blocking socket without a deadline, read in large pieces. Shutting the socket down ends every
/// wait.
pub(crate) struct Buffered(BufReader<TcpStream>);

impl Buffered {
    pub(crate) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        Ok(Self(BufReader::with_capacity(READ_BYTES, socket)))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.get_ref()
    }
}

impl Read for Buffered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Not through `BufReader::read`, which passes large reads by its buffer.
        let mut ready = self.0.fill_buf()?;
        let taken = ready.read(buffer)?;
        self.0.consume(taken);
        Ok(taken)
    }
}

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_ref().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
