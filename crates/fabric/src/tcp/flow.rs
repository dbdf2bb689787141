//! What a mover does over TCP: frames go out, acknowledgements come back, in one thread that waits
//! for both.

use std::collections::VecDeque;
use std::io::{self, Read, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustls::ClientConnection;

use crate::arena::{ArenaId, check_runs};
use crate::map::bytes_of;
use crate::mover::{Job, Stop, Teller};
use crate::sender::{SlotWrite, SubmissionId};
use crate::tcp::wire::{ACK_BYTES, FRAME_WORDS_MAX, Header};

/// Submissions on their way at one time; others wait in the endpoint's queue.
const FLYING_MAX: usize = 64;
/// Bytes encrypted at once, about; small frames share them.
const STAGE_BYTES: usize = 64 * 1024;

/// An attached connection.
pub(crate) struct Line {
    pub(crate) tls: ClientConnection,
    /// Not blocking.
    pub(crate) socket: TcpStream,
    pub(crate) waker: Waker,
    /// Longest time without progress while something is under way.
    pub(crate) progress: Duration,
}

/// Wakes a flow that waits for its socket.
#[derive(Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(eventfd(0, flags)?)))
    }

    pub(crate) fn wake(&self) {
        // Fails only when it is as awake as can be.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Why a flow ended before it was told to.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection ended: {0}")]
    Io(#[from] io::Error),
    #[error("the receiver closed the connection")]
    Closed,
    #[error("nothing moved for {0:?}")]
    NoProgress(Duration),
    #[error("the receiver acknowledged submission {0}, which was not sent")]
    Acknowledged(u64),
    #[error("a source changed its size or panicked")]
    Source,
}

/// Carries out submissions until the endpoint is dropped; what did not land.
pub(crate) fn carry_out(
    line: Line,
    arena: ArenaId,
    jobs: &Receiver<Job>,
    stop: Stop,
    teller: Teller,
) -> Vec<SubmissionId> {
    let mut flow = Flow {
        moved: Instant::now(),
        line,
        stop,
        teller,
        flying: VecDeque::new(),
        at: Cursor::default(),
        staged: Vec::with_capacity(STAGE_BYTES + FRAME_WORDS_MAX * 2),
        acks: VecDeque::new(),
    };
    let ended = flow.run(jobs);
    // Also what a forked child kept of this socket carries nothing from here on.
    let _ = flow.line.socket.shutdown(Shutdown::Both);
    if let Err(error) = ended {
        let unsettled = flow.flying.len();
        tracing::warn!(%arena, unsettled, %error, "a data connection is lost");
    }
    let Flow {
        flying, mut teller, ..
    } = flow;
    for job in flying {
        teller.end(job, false);
    }
    teller.fail_the_rest(jobs)
}

struct Flow {
    line: Line,
    stop: Stop,
    teller: Teller,
    /// Accepted and not acknowledged, oldest first.
    flying: VecDeque<Job>,
    at: Cursor,
    /// Frames that are encrypted next.
    staged: Vec<u8>,
    /// Bytes of acknowledgements.
    acks: VecDeque<u8>,
    /// When a byte went out or came in.
    moved: Instant,
}

/// The next words to send.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Index in `flying`: all before it are sent.
    job: usize,
    write: usize,
    run: usize,
    /// Words of the run that are sent.
    words: usize,
    /// Frames of the submission so far.
    frames: u32,
}

impl Flow {
    fn run(&mut self, jobs: &Receiver<Job>) -> Result<(), Broken> {
        while !self.stop.is_set() {
            while self.flying.len() < FLYING_MAX {
                let Ok(job) = jobs.try_recv() else { break };
                if self.flying.is_empty() {
                    self.moved = Instant::now(); // there was nothing to move before
                }
                self.flying.push_back(job);
            }
            self.send()?;
            self.wait()?;
        }
        Ok(())
    }

    /// Sends what the socket takes of what is encrypted, after encrypting more if nothing is.
    fn send(&mut self) -> Result<(), Broken> {
        if !self.line.tls.wants_write() && self.at.job < self.flying.len() {
            // A source that panics when it is read fails everything that is on the way.
            let staged = catch_unwind(AssertUnwindSafe(|| self.stage()));
            if !staged.unwrap_or(false) {
                return Err(Broken::Source);
            }
            if self.stop.is_set() {
                return Ok(()); // while a source was read
            }
            self.moved = Instant::now(); // a source that took its time held nobody else up
            self.line.tls.writer().write_all(&self.staged)?;
        }
        while self.line.tls.wants_write() {
            match self.line.tls.write_tls(&mut self.line.socket) {
                Ok(0) => return Err(Broken::Closed),
                Ok(_) => self.moved = Instant::now(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills the stage with the next frames; false if a source is not what it was.
    fn stage(&mut self) -> bool {
        self.staged.clear();
        while self.staged.len() < STAGE_BYTES {
            let Some(job) = self.flying.get(self.at.job) else {
                break;
            };
            let submission = job.id.0;
            let Some(write) = job.writes.get(self.at.write) else {
                let frames = self.at.frames;
                let end = Header::End { submission, frames };
                self.staged.extend(end.encode());
                self.at = Cursor {
                    job: self.at.job + 1,
                    ..Cursor::default()
                };
                continue;
            };
            if !stage_write(&mut self.staged, &mut self.at, submission, write) {
                return false;
            }
        }
        true
    }

    /// Waits until the socket or the endpoint has something, and takes what has come in.
    fn wait(&mut self) -> Result<(), Broken> {
        let wants_write = self.line.tls.wants_write();
        let has_more = self.at.job < self.flying.len();
        let left = if has_more && !wants_write {
            Some(Duration::ZERO)
        } else if self.flying.is_empty() {
            None
        } else {
            let left = self.line.progress.saturating_sub(self.moved.elapsed());
            if left.is_zero() {
                return Err(Broken::NoProgress(self.line.progress));
            }
            Some(left + Duration::from_millis(1)) // the system may round down
        };
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, wants_write);
        let mut fds = [
            PollFd::new(&self.line.socket, events),
            PollFd::new(&self.line.waker.0, PollFlags::IN),
        ];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Broken::Io(error.into())),
        }
        let [socket, waker] = fds.map(|fd| fd.revents());
        if !waker.is_empty() {
            self.line.waker.clear();
        }
        if socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.receive()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Broken> {
        loop {
            match self.line.tls.read_tls(&mut self.line.socket) {
                Ok(0) => return Err(Broken::Closed),
                Ok(_) => self.moved = Instant::now(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            let state = self.line.tls.process_new_packets();
            let state = state.map_err(io::Error::other)?;
            let mut come = vec![0; state.plaintext_bytes_to_read()];
            self.line.tls.reader().read_exact(&mut come)?;
            self.acks.extend(come);
            self.acknowledge()?;
        }
    }

    /// Submissions are acknowledged in their order, each after all of it was sent.
    fn acknowledge(&mut self) -> Result<(), Broken> {
        while self.acks.len() >= ACK_BYTES {
            let mut id = [0; ACK_BYTES];
            self.acks.read_exact(&mut id)?;
            let id = u64::from_le_bytes(id);
            let sent = self.at.job > 0;
            let job = self.flying.pop_front_if(|job| sent && job.id.0 == id);
            let job = job.ok_or(Broken::Acknowledged(id))?;
            self.at.job -= 1;
            self.teller.end(job, true);
        }
        Ok(())
    }
}

/// Stages one frame of a write, or steps over what has no words; false if the source is not what
/// it was when the batch was submitted.
fn stage_write(staged: &mut Vec<u8>, at: &mut Cursor, submission: u64, write: &SlotWrite) -> bool {
    let Some(run) = write.runs.get(at.run) else {
        (at.write, at.run, at.words) = (at.write + 1, 0, 0);
        return true;
    };
    let left = run.words - at.words;
    if left == 0 {
        (at.run, at.words) = (at.run + 1, 0);
        return true;
    }
    let source: &[u16] = (*write.source).as_ref();
    if check_runs(&write.runs, source.len()).is_err() {
        return false;
    }
    let words = left.min(FRAME_WORDS_MAX);
    let offset = run.offset + at.words;
    let header = Header::Words {
        submission,
        slot: write.slot,
        offset: offset as u32, // within a slot, whose words fit (checked on attaching)
        words: words as u32,
    };
    staged.extend(header.encode());
    staged.extend_from_slice(bytes_of(&source[offset..offset + words]));
    at.words += words;
    at.frames += 1;
    true
}
