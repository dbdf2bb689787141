//! The connection, into which a second response can be slipped that nobody asked for.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What waits to be written behind the next response.
#[derive(Clone, Default)]
pub(crate) struct Extra(Arc<Mutex<Pending>>);

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    /// The response before it has begun to leave.
    begun: bool,
}

impl Extra {
    /// A whole response with this body.
    pub(crate) fn queue(&self, body: &str) {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
        let bytes = format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes();
        *self.0.lock().expect("nobody panics with it") = Pending {
            bytes,
            begun: false,
        };
    }
}

/// A connection with [`Extra`].
pub(crate) struct Wire {
    stream: TcpStream,
    extra: Extra,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, extra: Extra) -> Self {
        Self { stream, extra }
    }

    fn begun(&self) {
        let mut pending = self.extra.0.lock().expect("nobody panics with it");
        pending.begun = !pending.bytes.is_empty();
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begun();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begun();
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        let this = &mut *self;
        let mut pending = this.extra.0.lock().expect("nobody panics with it");
        while pending.begun && !pending.bytes.is_empty() {
            let wrote = Pin::new(&mut this.stream).poll_write(context, &pending.bytes);
            let wrote = ready!(wrote)?;
            pending.bytes.drain(..wrote);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
