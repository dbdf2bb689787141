//! The thread that writes. What it is given waits in memory until it is on disk: while a disk is full
//! nothing is lost that there is room for, and whoever looks is told.

use crate::entry::Dated;
use crate::journal::{Journal, JournalError, drawn};
use crate::served::{Canaried, Served};
use crate::times;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Things that may wait for the thread to take them.
const INBOX_MAX: usize = 65_536;
/// Entries that wait for a disk.
const ENTRIES_MAX: usize = 10_000;
/// Requests that wait for a disk; further ones are not kept, and counted.
const SERVED_MAX: usize = 100_000;
/// How long rows are gathered before they are written together.
const GATHER: Duration = Duration::from_millis(200);
/// Time between two tries while it cannot be written.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked at what other processes wrote, and what is too old.
const LOOK: Duration = Duration::from_secs(1);
const FORGET: Duration = Duration::from_secs(600);

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Entries that are not on disk yet.
    pub pending: u64,
    /// Why not.
    pub trouble: Option<String>,
    /// SHA-256 of the last line.
    pub head: Option<String>,
    /// Entries that were lost, because nothing could be written for too long.
    pub lost: u64,
    /// Requests of which it is not known who answered them, for the same reason.
    pub served_lost: u64,
}

enum Work {
    Entry(Dated),
    Served(Served),
    Canaried(Canaried),
    /// Everything before it is written, or cannot be.
    Flush(SyncSender<()>),
}

/// See the module. Dropping it waits for what can be written.
pub struct Recorder {
    inbox: Option<SyncSender<Work>>,
    status: Arc<Mutex<Status>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Writes into this journal, and tells what others write there behind `seq`.
    pub fn start(journal: Journal, seq: u64, heard: impl FnMut(Dated) + Send + 'static) -> Self {
        let (inbox, received) = sync_channel(INBOX_MAX);
        let status = Arc::new(Mutex::new(Status::default()));
        let writer = Writer {
            journal,
            seq,
            heard: Box::new(heard),
            entries: VecDeque::new(),
            served: VecDeque::new(),
            canaries: Vec::new(),
            own: VecDeque::new(),
            status: status.clone(),
            failed: None,
        };
        let thread = std::thread::Builder::new().name("journal".into());
        let thread = thread.spawn(move || writer.run(&received));
        Self {
            inbox: Some(inbox),
            status,
            thread: thread.ok(),
        }
    }

    /// Takes down an entry; at once, whatever the disk does.
    pub fn entry(&self, dated: Dated) {
        self.put(Work::Entry(dated));
    }

    /// Takes down who was answered by whom; at once.
    pub fn served(&self, served: Served) {
        self.put(Work::Served(served));
    }

    /// Takes down counts of canaries.
    pub fn canaried(&self, canaried: Canaried) {
        self.put(Work::Canaried(canaried));
    }

    /// How it goes.
    pub fn status(&self) -> Status {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until everything so far was written, or cannot be.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if let Some(inbox) = &self.inbox
            && inbox.send(Work::Flush(done)).is_ok()
        {
            let _ = wait.recv(); // it ends with the thread, too
        }
    }

    fn put(&self, work: Work) {
        let Some(inbox) = &self.inbox else { return };
        let lost = match inbox.try_send(work) {
            Ok(()) => return,
            Err(TrySendError::Full(work) | TrySendError::Disconnected(work)) => work,
        };
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        match lost {
            Work::Entry(_) => status.lost += 1,
            Work::Served(_) => status.served_lost += 1,
            Work::Canaried(_) | Work::Flush(_) => {}
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.inbox.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has said on its own log what went wrong
        }
    }
}

struct Writer {
    journal: Journal,
    /// The last line that was heard of.
    seq: u64,
    heard: Box<dyn FnMut(Dated) + Send>,
    entries: VecDeque<(String, Dated)>,
    served: VecDeque<Served>,
    canaries: Vec<Canaried>,
    /// Entries of this process on disk, which are no news when they are read.
    own: VecDeque<Dated>,
    status: Arc<Mutex<Status>>,
    /// When it could not be written last.
    failed: Option<Instant>,
}

impl Writer {
    fn run(mut self, inbox: &Receiver<Work>) {
        let (mut looked, mut forgot) = (Instant::now(), Instant::now());
        loop {
            let mut flushed = None;
            let wait = match self.failed {
                Some(_) => AGAIN,
                None => LOOK,
            };
            let first = inbox.recv_timeout(wait);
            let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
            let gather = Instant::now() + GATHER;
            let mut next = first.ok();
            while let Some(work) = next.take() {
                match work {
                    Work::Flush(done) => {
                        flushed = Some(done);
                        break;
                    }
                    // What was found out is written at once.
                    work => {
                        let urgent = matches!(work, Work::Entry(_));
                        self.take(work);
                        next = match urgent {
                            true => inbox.try_recv().ok(),
                            false => inbox
                                .recv_timeout(gather.saturating_duration_since(Instant::now()))
                                .ok(),
                        };
                    }
                }
            }
            let rests = self.failed.is_some_and(|at| at.elapsed() < AGAIN);
            if !rests || flushed.is_some() || ended {
                self.write();
            }
            if looked.elapsed() >= LOOK || flushed.is_some() {
                looked = Instant::now();
                self.look();
            }
            if forgot.elapsed() >= FORGET {
                forgot = Instant::now();
                let done = self.journal.forget(times::now());
                self.note(done);
            }
            drop(flushed);
            if ended {
                return;
            }
        }
    }

    fn take(&mut self, work: Work) {
        match work {
            Work::Entry(dated) => {
                // Its name is drawn now, so that a second try writes the same.
                match drawn() {
                    Ok(name) if self.entries.len() < ENTRIES_MAX => {
                        self.entries.push_back((name, dated));
                    }
                    _ => self.status().lost += 1,
                }
            }
            Work::Served(served) => {
                if self.served.len() >= SERVED_MAX {
                    self.served.pop_front();
                    self.status().served_lost += 1;
                }
                self.served.push_back(served);
            }
            Work::Canaried(canaried) => {
                let same = |it: &&mut Canaried| {
                    (it.minute, &it.pair, &it.life)
                        == (canaried.minute, &canaried.pair, &canaried.life)
                };
                match self.canaries.iter_mut().find(same) {
                    None => self.canaries.push(canaried),
                    Some(known) => known.add(&canaried),
                }
            }
            Work::Flush(_) => {}
        }
        self.status().pending = self.entries.len() as u64;
    }

    fn write(&mut self) {
        let done = self.try_to_write();
        self.note(done);
    }

    fn note(&mut self, done: Result<(), JournalError>) {
        let trouble = done.err().map(|why| why.to_string());
        self.failed = trouble.is_some().then(Instant::now);
        let pending = self.entries.len() as u64;
        let mut status = self.status();
        status.pending = pending;
        if trouble.is_some() && status.trouble != trouble {
            let why = trouble.as_deref().unwrap_or_default();
            tracing::error!("the journal of incidents cannot be written: {why}");
        }
        status.trouble = trouble;
    }

    fn try_to_write(&mut self) -> Result<(), JournalError> {
        if !self.entries.is_empty() {
            let (_, head) = self.journal.append(self.entries.make_contiguous())?;
            self.own.extend(self.entries.drain(..).map(|(_, it)| it));
            self.status().head = Some(head);
        }
        if !self.served.is_empty() {
            self.journal.serve(self.served.make_contiguous())?;
            self.served.clear();
        }
        if !self.canaries.is_empty() {
            self.journal.canaried(&self.canaries)?;
            self.canaries.clear();
        }
        Ok(())
    }

    /// What others have written.
    fn look(&mut self) {
        let new = match self.journal.after(self.seq) {
            Ok(new) => new,
            Err(why) => return self.note(Err(why)),
        };
        for (seq, dated) in new {
            self.seq = seq;
            match self.own.front() {
                Some(own) if *own == dated => {
                    self.own.pop_front();
                }
                _ => (self.heard)(dated),
            }
        }
    }

    fn status(&self) -> std::sync::MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Canaried {
    fn add(&mut self, more: &Self) {
        self.sent += more.sent;
        self.telling += more.telling;
        self.seen += more.seen;
        self.foreign += more.foreign;
        self.tokens += more.tokens;
    }
}
