//! The thread that carries out one endpoint's submissions, so that transfer overlaps compute; what
//! it does with them is the fabric's.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::arena::{ArenaId, Shape, check_runs};
use crate::sender::{
    Completion, Endpoint, OnCompletion, SlotWrite, SourcesReleased, SubmissionId, SubmitError,
    WriteEnding,
};

/// Submissions that may wait for the mover.
const QUEUE_MAX: usize = 256;

/// A submission that was accepted.
pub(crate) struct Job {
    pub(crate) id: SubmissionId,
    pub(crate) writes: Vec<SlotWrite>,
}

/// Wakes a mover that waits for something else than its queue.
pub(crate) type Wake = Box<dyn Fn() + Send>;

/// Handle of the thread. Dropping it stops and joins it.
pub(crate) struct Mover {
    queue: Option<SyncSender<Job>>,
    stop: Stop,
    wake: Wake,
    thread: Option<JoinHandle<Vec<SubmissionId>>>,
}

/// Nothing more may land through an endpoint that has stopped.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Tells how submissions ended, each once, and remembers those that are unsettled.
pub(crate) struct Teller {
    arena: ArenaId,
    on_completion: OnCompletion,
    stop: Stop,
    unsettled: Vec<SubmissionId>,
}

impl Teller {
    /// Ends a submission. Anything but landed stops the endpoint: what follows must not land
    /// either, because it may depend on what did not.
    pub(crate) fn end(&mut self, job: Job, landed: bool) {
        let Job { id, writes } = job;
        if !landed {
            self.stop.set();
            self.unsettled.push(id);
        }
        drop(writes); // whoever hears of the completion may write to the sources again
        let ending = if landed {
            WriteEnding::Landed
        } else {
            WriteEnding::Failed
        };
        let arena = self.arena;
        let completion = Completion { arena, id, ending };
        let told = catch_unwind(AssertUnwindSafe(|| (self.on_completion)(completion)));
        if told.is_err() {
            tracing::error!(%arena, ?id, "the completion's receiver panicked");
            self.stop.set();
        }
    }

    /// Fails whatever is still accepted, until the endpoint is dropped: each has an ending.
    pub(crate) fn fail_the_rest(mut self, jobs: &Receiver<Job>) -> Vec<SubmissionId> {
        self.stop.set();
        while let Ok(job) = jobs.recv() {
            self.end(job, false);
        }
        self.unsettled
    }
}

impl Mover {
    /// Starts the thread with what it needs to carry submissions out. It ends by
    /// [`Teller::fail_the_rest`].
    pub(crate) fn start(
        arena: ArenaId,
        on_completion: OnCompletion,
        wake: Wake,
        work: impl FnOnce(Receiver<Job>, Stop, Teller) -> Vec<SubmissionId> + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let stop = Stop::default();
        let teller = Teller {
            arena,
            on_completion,
            stop: stop.clone(),
            unsettled: Vec::new(),
        };
        let own = stop.clone();
        let thread = std::thread::Builder::new().name("fabric-mover".to_owned());
        let thread = thread.spawn(move || work(jobs, own, teller))?;
        Ok(Self {
            queue: Some(queue),
            stop,
            wake,
            thread: Some(thread),
        })
    }

    fn submit(&self, id: SubmissionId, writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        let queue = self.queue.as_ref().filter(|_| !self.stop.is_set());
        let queue = queue.ok_or(SubmitError::EndpointFailed)?;
        queue
            .try_send(Job { id, writes })
            .map_err(|error| match error {
                TrySendError::Full(_) => SubmitError::Full(QUEUE_MAX),
                TrySendError::Disconnected(_) => SubmitError::EndpointFailed,
            })?;
        (self.wake)();
        Ok(())
    }

    /// Stops after the write under way, waits for the thread and says what did not land.
    fn join(mut self) -> Vec<SubmissionId> {
        match self.stop_and_join() {
            Some(Ok(unsettled)) => unsettled,
            // A panic that got past the thread's own nets is a fault of this crate. Nothing is
            // known about the submissions then, and nobody may believe anything about them.
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("joined once, by value"),
        }
    }

    fn stop_and_join(&mut self) -> Option<std::thread::Result<Vec<SubmissionId>>> {
        self.stop.set();
        drop(self.queue.take()); // ends the thread's wait for the next job
        (self.wake)();
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.stop_and_join();
    }
}

/// An endpoint whose submissions a mover carries out.
pub(crate) struct MovedEndpoint {
    arena: ArenaId,
    shape: Shape,
    last: Option<SubmissionId>,
    mover: Mover,
}

impl MovedEndpoint {
    pub(crate) fn new(arena: ArenaId, shape: Shape, mover: Mover) -> Self {
        Self {
            arena,
            shape,
            last: None,
            mover,
        }
    }
}

impl Endpoint for MovedEndpoint {
    fn arena(&self) -> ArenaId {
        self.arena
    }

    fn submit(&mut self, id: SubmissionId, writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        if let Some(last) = self.last.filter(|&last| id <= last) {
            return Err(SubmitError::Reused { got: id, last });
        }
        for write in &writes {
            self.shape.check(write.slot, &write.runs)?;
            check_runs(&write.runs, (*write.source).as_ref().len())?;
        }
        self.mover.submit(id, writes)?;
        self.last = Some(id);
        Ok(())
    }

    fn destroy(self: Box<Self>) -> SourcesReleased {
        let unsettled = self.mover.join();
        SourcesReleased {
            arena: self.arena,
            unsettled,
        }
    }
}
