//! The task that applies one writer's frames to its arena, and how it is ended.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pages::WriterLife;
use rustls::{ServerConnection, StreamOwned};

use crate::arena::{ArenaId, OutOfRange, WordRun};
use crate::claim::GRANTED;
use crate::layout::{BATCH_WORD, Layout};
use crate::map::WriteMap;
use crate::sender::Refusal;
use crate::tcp::socket::Buffered;
use crate::tcp::wire::{Answer, Breach, FRAME_WORDS_MAX, Header};

/// Where one arena's writes are applied.
pub(crate) struct Site {
    arena: ArenaId,
    writer: WriterLife,
    layout: Layout,
    state: Mutex<State>,
    /// Tells the task to apply nothing more, also not what it has read already.
    closing: Arc<AtomicBool>,
}

enum State {
    /// Nobody has come. The map is the only writable one there will ever be.
    Waiting(WriteMap),
    /// The task owns the map.
    Applying {
        socket: TcpStream,
        task: JoinHandle<()>,
    },
    Closed,
}

impl Site {
    pub(crate) fn new(arena: ArenaId, writer: WriterLife, layout: Layout, map: WriteMap) -> Self {
        Self {
            arena,
            writer,
            layout,
            state: Mutex::new(State::Waiting(map)),
            closing: Arc::default(),
        }
    }

    /// Hands the connection of the arena's writer to a task of its own, which says that it may go
    /// on. The inner error is the answer to a writer that came too late.
    pub(crate) fn begin(
        &self,
        tls: ServerConnection,
        socket: TcpStream,
    ) -> io::Result<Result<(), (ServerConnection, TcpStream, Refusal)>> {
        let mut state = self.lock();
        if !matches!(*state, State::Waiting(_)) {
            return Ok(Err((tls, socket, Refusal::NotOpen)));
        }
        let handle = socket.try_clone()?;
        let stream = StreamOwned::new(tls, Buffered::new(socket)?);
        let State::Waiting(map) = std::mem::replace(&mut *state, State::Closed) else {
            unreachable!("looked at above, under the same lock");
        };
        let task = Task {
            arena: self.arena,
            writer: self.writer,
            layout: self.layout,
            map,
            stream,
            closing: self.closing.clone(),
            batches: 0,
        };
        let thread = std::thread::Builder::new().name("fabric-apply".to_owned());
        *state = State::Applying {
            socket: handle,
            task: thread.spawn(move || task.run())?,
        };
        Ok(Ok(()))
    }

    /// Ends the task and waits for it; from here on nobody on this side can write to the arena.
    /// Does not wait for the writer: the task is woken from every wait for it.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        let state = std::mem::replace(&mut *self.lock(), State::Closed);
        if let State::Applying { socket, task } = state {
            let _ = socket.shutdown(Shutdown::Both); // fails if it is cut already
            if task.join().is_err() {
                tracing::error!(arena = %self.arena, "the task that applies writes panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What runs under this lock leaves a state behind, whatever becomes of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a task ended before it was told to.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection ended: {0}")]
    Io(#[from] io::Error),
    #[error("the writer breaks the protocol: {0}")]
    Protocol(#[from] Breach),
    #[error("the writer breaks the protocol: {0}")]
    OutOfRange(#[from] OutOfRange),
}

struct Task {
    arena: ArenaId,
    writer: WriterLife,
    layout: Layout,
    map: WriteMap,
    stream: StreamOwned<ServerConnection, Buffered>,
    closing: Arc<AtomicBool>,
    batches: u64,
}

impl Task {
    fn run(mut self) {
        let ended = self.apply();
        // The socket outlives the task in the site's state; its writer hears of the end now.
        let _ = self.stream.sock.socket().shutdown(Shutdown::Both);
        let (arena, writer, batches) = (self.arena, self.writer, self.batches);
        match ended {
            Ok(()) => tracing::debug!(%arena, ?writer, batches, "stopped applying writes"),
            Err(Broken::Io(error)) => {
                tracing::info!(%arena, ?writer, batches, %error, "a data connection ended");
            }
            Err(error) => tracing::error!(%arena, ?writer, batches, %error, "a writer is broken"),
        }
    }

    fn apply(&mut self) -> Result<(), Broken> {
        let granted = Answer::encode(GRANTED, self.arena, self.writer);
        self.stream.write_all(&granted)?;
        self.stream.flush()?;
        let mut frame = vec![0; FRAME_WORDS_MAX];
        let mut order = Order::default();
        loop {
            let mut header = [0; Header::BYTES];
            self.stream.read_exact(&mut header)?;
            match Header::decode(&header)? {
                Header::Words {
                    submission,
                    slot,
                    offset,
                    words,
                } => {
                    order.frame(submission)?;
                    let (offset, words) = (offset as usize, words as usize);
                    self.layout
                        .shape
                        .check(slot, &[WordRun { offset, words }])?;
                    let frame = &mut frame[..words];
                    self.stream.read_exact(bytemuck::cast_slice_mut(frame))?;
                    if self.closing.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    self.map.write(self.layout.offset(slot, offset), frame);
                }
                Header::End { submission, frames } => {
                    order.end(submission, frames)?;
                    self.batches += 1;
                    self.map.store_release(BATCH_WORD, self.batches);
                    self.stream.write_all(&submission.to_le_bytes())?;
                    self.stream.flush()?;
                }
            }
        }
    }
}

/// Submissions come one after another, under ids that grow, each with all its frames.
#[derive(Default)]
struct Order {
    /// Under way, and its frames so far.
    current: Option<(u64, u32)>,
    last: Option<u64>,
}

impl Order {
    fn frame(&mut self, submission: u64) -> Result<(), Broken> {
        let frames = match self.current {
            Some((current, frames)) if current == submission => frames,
            Some(_) => return Err(Breach::OtherFrame.into()),
            None => self.fresh(submission)?,
        };
        let frames = frames.checked_add(1);
        let frames = frames.ok_or(Breach::TooManyFrames)?;
        self.current = Some((submission, frames));
        Ok(())
    }

    fn end(&mut self, submission: u64, stated: u32) -> Result<(), Broken> {
        let frames = match self.current.take() {
            Some((current, frames)) if current == submission => frames,
            Some(_) => return Err(Breach::OtherEnd.into()),
            None => self.fresh(submission)?, // a batch without writes
        };
        if frames != stated {
            return Err(Breach::FrameCount.into());
        }
        self.last = Some(submission);
        Ok(())
    }

    fn fresh(&self, submission: u64) -> Result<u32, Broken> {
        match self.last.is_some_and(|last| submission <= last) {
            true => Err(Breach::Again.into()),
            false => Ok(0),
        }
    }
}
