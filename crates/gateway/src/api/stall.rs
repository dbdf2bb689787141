//! A socket that gives up when its peer stops reading, and shows what comes in to who judges heads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::heads::Heads;

/// A TCP stream whose writes fail when the peer has taken no byte for a while. Without it a client
/// that never reads holds a connection for as long as it likes.
///
/// At the end it reads what a client goes on sending of a body that was refused, for a while: a socket
/// that is closed with something unread is reset, and with it goes the answer that said why.
pub(super) struct StallGuard<S> {
    stream: S,
    patience: Duration,
    heads: Arc<Heads>,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that are still read and thrown away, once all was said.
    lingering: Option<usize>,
}

/// How much is read and thrown away, and for how long.
const LINGER_BYTES: usize = 32 << 20;
const LINGER: Duration = Duration::from_secs(10);

impl<S: AsyncRead + Unpin> StallGuard<S> {
    /// Guards a stream.
    pub(super) fn new(stream: S, patience: Duration, heads: Arc<Heads>) -> Self {
        Self {
            stream,
            patience,
            heads,
            timer: None,
            lingering: None,
        }
    }

    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waste = [0; 16 << 10];
        let mut left = self.lingering.unwrap_or_default();
        loop {
            let mut waste = ReadBuf::new(&mut waste);
            match Pin::new(&mut self.stream).poll_read(cx, &mut waste) {
                Poll::Ready(Ok(())) if (1..left).contains(&waste.filled().len()) => {
                    left -= waste.filled().len();
                    self.lingering = Some(left);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                    return timer.as_mut().poll(cx).map(Ok);
                }
            }
        }
    }

    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.timer = None;
            return result;
        }
        let deadline = Instant::now() + self.patience;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer has stopped reading",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if !self.heads.is_broken() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            let good = self.heads.came(&buf.filled()[before..]);
            buf.set_filled(before + good);
        }
        // Nothing more, and not as if this were the end.
        match self.heads.is_broken() && buf.filled().len() == before {
            true => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            false => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.judge(cx, shut))?;
            self.timer = None;
            self.lingering = Some(LINGER_BYTES);
        }
        if self.heads.is_at_end() {
            return Poll::Ready(Ok(()));
        }
        self.linger(cx)
    }
}
