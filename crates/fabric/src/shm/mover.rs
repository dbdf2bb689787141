//! The thread that carries out one endpoint's writes, so that transfer overlaps compute.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::arena::{ArenaId, check_runs};
use crate::map::WriteMap;
use crate::sender::{Completion, Ending, OnCompletion, SubmissionId, SubmitError, Write};
use crate::shm::layout::{BATCH_WORD, Layout};

/// Submissions that may wait for the mover.
const QUEUE_MAX: usize = 256;

struct Job {
    id: SubmissionId,
    writes: Vec<Write>,
}

/// Handle of the thread. Dropping it stops and joins it.
pub(crate) struct Mover {
    queue: Option<SyncSender<Job>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<SubmissionId>>>,
}

impl Mover {
    pub(crate) fn start(
        arena: ArenaId,
        map: WriteMap,
        layout: Layout,
        on_completion: OnCompletion,
    ) -> io::Result<Self> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            arena,
            map,
            layout,
            on_completion,
            stop: stop.clone(),
            landed: 0,
            unsettled: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("fabric-mover".to_owned());
        let thread = thread.spawn(move || worker.run(&jobs))?;
        Ok(Self {
            queue: Some(queue),
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn submit(&self, id: SubmissionId, writes: Vec<Write>) -> Result<(), SubmitError> {
        let stopped = self.stop.load(Ordering::Relaxed);
        let queue = self
            .queue
            .as_ref()
            .filter(|_| !stopped)
            .ok_or(SubmitError::EndpointFailed)?;
        queue
            .try_send(Job { id, writes })
            .map_err(|error| match error {
                TrySendError::Full(_) => SubmitError::Full(QUEUE_MAX),
                TrySendError::Disconnected(_) => SubmitError::EndpointFailed,
            })
    }

    /// Stops after the write under way, waits for the thread and says what did not land.
    pub(crate) fn join(mut self) -> Vec<SubmissionId> {
        match self.stop_and_join() {
            Some(Ok(unsettled)) => unsettled,
            // A panic that got past the thread's own nets is a fault of this crate. Nothing is
            // known about the submissions then, and nobody may believe anything about them.
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("joined once, by value"),
        }
    }

    fn stop_and_join(&mut self) -> Option<std::thread::Result<Vec<SubmissionId>>> {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.queue.take()); // ends the thread's wait for the next job
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.stop_and_join();
    }
}

struct Worker {
    arena: ArenaId,
    map: WriteMap,
    layout: Layout,
    on_completion: OnCompletion,
    stop: Arc<AtomicBool>,
    landed: u64,
    unsettled: Vec<SubmissionId>,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Job>) -> Vec<SubmissionId> {
        while let Ok(Job { id, writes }) = jobs.recv() {
            // A source that panics when it is read fails its submission and with it the endpoint.
            let done = catch_unwind(AssertUnwindSafe(|| self.carry_out(&writes)));
            let landed = done.unwrap_or(false);
            if landed {
                self.landed += 1;
                self.map.store_release(BATCH_WORD, self.landed);
            } else {
                // What follows must not land either: it may depend on what did not.
                self.stop.store(true, Ordering::Relaxed);
                self.unsettled.push(id);
            }
            drop(writes); // whoever hears of the completion may write to the sources again
            let ending = if landed {
                Ending::Landed
            } else {
                Ending::Failed
            };
            let completion = Completion {
                arena: self.arena,
                id,
                ending,
            };
            let told = catch_unwind(AssertUnwindSafe(|| (self.on_completion)(completion)));
            if told.is_err() {
                tracing::error!(arena = %self.arena, ?id, "the completion's receiver panicked");
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        self.unsettled
    }

    /// True if every write was carried out.
    fn carry_out(&self, writes: &[Write]) -> bool {
        let stopped = || self.stop.load(Ordering::Relaxed);
        if stopped() {
            return false; // a batch without writes, too
        }
        for write in writes {
            if stopped() {
                return false;
            }
            let source: &[u16] = (*write.source).as_ref();
            // A source may give another slice than it gave when the batch was submitted.
            if check_runs(&write.runs, source.len()).is_err() {
                return false;
            }
            for run in write.runs.iter() {
                self.map.write(
                    self.layout.offset(write.slot, run.offset),
                    &source[run.range()],
                );
            }
        }
        true
    }
}
