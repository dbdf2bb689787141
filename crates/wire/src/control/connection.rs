//! Ordered frames over an authenticated stream.
//!
//! A frame is its length (u32, big endian) and its body. The sending half has a bounded queue and
//! a task that writes; the receiving half reads when it is asked, so that a slow reader is felt by
//! the sender and not by memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, watch};
use tokio_rustls::TlsStream;

use crate::control::Role;
use crate::control::socket::Socket;

/// Bytes of a frame's length.
const HEADER: usize = 4;
/// Read at once where no frame has begun.
const READ_CHUNK: usize = 16 * 1024;

/// What one connection may hold. The same value serves [`crate::control::dial`] and [`crate::control::Listener`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest body of a frame in bytes, in both directions.
    pub frame_bytes_max: usize,
    /// Frames that may wait to be sent.
    pub queue_frames_max: usize,
    /// Bytes of bodies that may wait to be sent; at least `frame_bytes_max`.
    pub queue_bytes_max: usize,
    /// Time for connecting, TLS and the welcome together.
    pub handshake: Duration,
}

impl Default for Limits {
    /// 4 MiB frames, 1,024 of them and 16 MiB queued, 5 s of handshake.
    fn default() -> Self {
        Self {
            frame_bytes_max: 4 << 20,
            queue_frames_max: 1024,
            queue_bytes_max: 16 << 20,
            handshake: Duration::from_secs(5),
        }
    }
}

impl Limits {
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self {
            frame_bytes_max,
            queue_frames_max,
            queue_bytes_max,
            ..
        } = *self;
        if frame_bytes_max == 0 || queue_frames_max == 0 {
            return Err("limits of zero frames or bytes let nothing through".to_owned());
        }
        if queue_bytes_max < frame_bytes_max {
            return Err(format!(
                "queue_bytes_max {queue_bytes_max} is below frame_bytes_max {frame_bytes_max}"
            ));
        }
        if queue_bytes_max > u32::MAX as usize || queue_frames_max > Semaphore::MAX_PERMITS {
            return Err("limits above 4 GiB or of that many frames limit nothing".to_owned());
        }
        Ok(())
    }
}

/// Who is on the other side, as proven by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its role: one of those that were allowed.
    pub role: Role,
    /// SHA-256 of its certificate, for logs.
    pub fingerprint: [u8; 32],
}

impl Peer {
    pub(crate) fn new(role: Role, certificate: &CertificateDer<'_>) -> Self {
        Self {
            role,
            fingerprint: Sha256::digest(certificate).into(),
        }
    }
}

/// An open connection: use its halves where they are needed.
pub struct Connection {
    /// Who is on the other side.
    pub peer: Peer,
    /// Queues frames to the peer.
    pub sender: Sender,
    /// Yields frames of the peer.
    pub receiver: Receiver,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(peer: Peer, stream: TlsStream<Socket>, limits: &Limits) -> Self {
        let (read, write) = tokio::io::split(stream);
        let (queue, queued) = mpsc::channel(limits.queue_frames_max);
        let end = Arc::new(watch::Sender::new(false));
        let room = Arc::new(Semaphore::new(limits.queue_bytes_max));
        let frame_bytes_max = limits.frame_bytes_max;
        tokio::spawn(write_frames(write, queued, room.clone(), end.clone()));
        let receiver = Receiver {
            read,
            buffer: BytesMut::new(),
            frame_bytes_max,
            failed: false,
            end: end.clone(),
        };
        let sender = Sender {
            queue,
            room,
            frame_bytes_max,
            end,
        };
        Self {
            peer,
            sender,
            receiver,
        }
    }
}

/// Why a frame was not queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The peer reads too slowly: the queue is full. Nothing was queued; the usual answer is to
    /// end the connection, because a message that is left out breaks the order of the others.
    #[error("the peer is too slow: the send queue is full")]
    Full,
    /// The frame is larger than the limit of this connection.
    #[error("a frame of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// Bytes of the refused frame.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
}

struct Queued {
    body: Bytes,
    _room: OwnedSemaphorePermit,
}

/// The sending half. Clones share one queue. When all are dropped, what is queued is still sent
/// and the stream is closed in order.
#[derive(Clone)]
pub struct Sender {
    queue: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    frame_bytes_max: usize,
    end: Arc<watch::Sender<bool>>,
}

impl Sender {
    /// Queues one frame; never waits. May be called from any thread.
    ///
    /// `Ok` says that the frame is queued, not that it arrived: only an answer says that.
    pub fn send(&self, body: impl Into<Bytes>) -> Result<(), SendError> {
        let body = self.sized(body.into())?;
        let room = self.room.clone().try_acquire_many_owned(body.len() as u32);
        let room = room.map_err(|error| match error {
            TryAcquireError::NoPermits => SendError::Full,
            TryAcquireError::Closed => SendError::Closed,
        })?;
        self.queue
            .try_send(Queued { body, _room: room })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SendError::Full,
                mpsc::error::TrySendError::Closed(_) => SendError::Closed,
            })
    }

    /// Queues one frame, waiting for room.
    pub async fn send_when_free(&self, body: impl Into<Bytes>) -> Result<(), SendError> {
        let body = self.sized(body.into())?;
        let room = self
            .room
            .clone()
            .acquire_many_owned(body.len() as u32)
            .await;
        let room = room.map_err(|_| SendError::Closed)?;
        self.queue
            .send(Queued { body, _room: room })
            .await
            .map_err(|_| SendError::Closed)
    }

    /// Ends the connection at once, both halves and all clones; what is queued is discarded
    /// ("effects die with their connection").
    pub fn abort(&self) {
        self.end.send_replace(true);
    }

    /// True once the connection cannot send any more.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    fn sized(&self, body: Bytes) -> Result<Bytes, SendError> {
        if *self.end.borrow() {
            return Err(SendError::Closed);
        }
        let (len, max) = (body.len(), self.frame_bytes_max);
        if len > max {
            Err(SendError::TooLarge { len, max })
        } else {
            Ok(body)
        }
    }
}

/// Writes until the queue ends, the stream fails or the connection is aborted.
async fn write_frames(
    mut write: WriteHalf<TlsStream<Socket>>,
    mut queued: mpsc::Receiver<Queued>,
    room: Arc<Semaphore>,
    end: Arc<watch::Sender<bool>>,
) {
    let mut ended = end.subscribe();
    let work = async {
        while let Some(first) = queued.recv().await {
            let mut next = Some(first);
            while let Some(frame) = next {
                write.write_u32(frame.body.len() as u32).await?;
                write.write_all(&frame.body).await?;
                drop(frame);
                next = queued.try_recv().ok();
            }
            write.flush().await?;
        }
        write.shutdown().await
    };
    let result = tokio::select! {
        biased; // an abort comes before what is queued
        _ = ended.wait_for(|ended| *ended) => Err(io::ErrorKind::ConnectionAborted.into()),
        result = work => result,
    };
    room.close();
    if let Err(error) = result {
        tracing::debug!(%error, "a control connection can send no more");
        end.send_replace(true);
    }
}

/// Why no further frame can be received. After an error the connection is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The peer announced a frame above the limit; nothing was allocated for it.
    #[error("the peer announced a frame of {len} bytes, the limit is {max}")]
    TooLarge {
        /// Bytes announced.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The stream ended inside a frame, or without TLS's own end: cut, not closed.
    #[error("the connection was cut after {0} bytes of a frame")]
    Cut(usize),
    /// The socket or TLS failed.
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// This side ended the connection ([`Sender::abort`], or a failed write).
    #[error("the connection was ended on this side")]
    Ended,
}

/// The receiving half.
pub struct Receiver {
    read: ReadHalf<TlsStream<Socket>>,
    buffer: BytesMut,
    frame_bytes_max: usize,
    failed: bool,
    end: Arc<watch::Sender<bool>>,
}

impl Receiver {
    /// The next frame; `None` when the peer has closed in order. Safe to cancel.
    ///
    /// # Errors
    /// After any error the connection is over, in both directions.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ReceiveError> {
        if self.failed {
            return Err(ReceiveError::Ended);
        }
        let mut ended = self.end.subscribe();
        let result = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => Err(ReceiveError::Ended),
            result = self.next_frame() => result,
        };
        if result.is_err() {
            self.failed = true;
            self.end.send_replace(true);
        }
        result
    }

    async fn next_frame(&mut self) -> Result<Option<Bytes>, ReceiveError> {
        loop {
            let wanted = match self.buffer.first_chunk::<HEADER>() {
                None => READ_CHUNK,
                Some(header) => {
                    let len = u32::from_be_bytes(*header) as usize;
                    let max = self.frame_bytes_max;
                    if len > max {
                        return Err(ReceiveError::TooLarge { len, max });
                    }
                    if self.buffer.len() >= HEADER + len {
                        self.buffer.advance(HEADER);
                        return Ok(Some(self.buffer.split_to(len).freeze()));
                    }
                    HEADER + len
                }
            };
            self.buffer
                .reserve(wanted.saturating_sub(self.buffer.len()));
            match self.read.read_buf(&mut self.buffer).await {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err(ReceiveError::Cut(self.buffer.len())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(ReceiveError::Cut(self.buffer.len()));
                }
                Err(error) => return Err(ReceiveError::Io(error)),
            }
        }
    }
}
