//! The engine's thread: commands, admission, deadlines. What a step does is in `step`.

use super::job::Job;
use super::{Event, Shared};
use crate::choose::Rules;
use crate::facts::pages_of;
use crate::masks::Masks;
use crate::start::Loaded;
use crate::{EngineConfig, FailStop, WorkerError};
use handoff::{Broken, Capacity, Ending, Failure, Refusal, Rejection, Role, Spec, Stage};
use model::sampling::Sampler;
use model::{KvMemory, Model, Scratch};
use pages::{Misuse, Pool, Sound};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokenizer::Tokenizer;
use tokio::sync::mpsc;
use wire::{Counters, Facts, Quarantine};

/// What the handle asks of the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Submit {
        id: u64,
        spec: Spec,
        deadline: Instant,
        events: mpsc::Sender<Event>,
    },
    StopChoice {
        id: u64,
        choice: u16,
    },
    /// A mask has come.
    Wake,
    Drain,
    Stop,
}

/// A request that holds no page yet.
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) spec: Spec,
    pub(super) rules: Arc<Rules>,
    pub(super) deadline: Instant,
    pub(super) events: mpsc::Sender<Event>,
}

pub(super) struct Engine {
    pub(super) model: Model,
    pub(super) tokenizer: Tokenizer,
    pub(super) kv: KvMemory,
    pub(super) pool: Pool,
    pub(super) scratch: Scratch,
    pub(super) sampler: Sampler,
    pub(super) capacity: Capacity,
    pub(super) chunk: u32,
    pub(super) max_batch: usize,
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) counters: Counters,
    pub(super) masks: Masks,
    queue: VecDeque<Waiting>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    /// Which page goes from whom to whom.
    pub(super) owners: Option<wire::trace::OwnersLog>,
    pub(super) epoch: pages::Epoch,
    draining: bool,
    stopped: bool,
}

/// Longest sleep while nothing runs: a client that left is noticed by then.
const IDLE: Duration = Duration::from_millis(200);

impl Engine {
    pub(super) fn new(
        loaded: Loaded<Sound>,
        config: &EngineConfig,
        (waker, commands): (Sender<Command>, Receiver<Command>),
        shared: Arc<Shared>,
    ) -> Result<Self, WorkerError> {
        let capacity = Capacity::of(&loaded.pool, Role::Decode, loaded.context);
        let owners = crate::open_owners(config, "unified", loaded.hello.epoch)?;
        let wake = move || {
            let _ = waker.send(Command::Wake); // an engine that has ended needs none
        };
        let mut engine = Self {
            masks: Masks::start(&loaded.tokenizer, wake)?,
            model: loaded.model,
            tokenizer: loaded.tokenizer,
            kv: loaded.kv,
            pool: loaded.pool,
            scratch: Scratch::default(),
            sampler: Sampler::default(),
            capacity,
            chunk: config.chunk,
            max_batch: config.max_batch,
            jobs: BTreeMap::new(),
            counters: Counters::default(),
            queue: VecDeque::new(),
            commands,
            shared,
            owners,
            epoch: loaded.hello.epoch,
            draining: false,
            stopped: false,
        };
        engine.publish_facts();
        Ok(engine)
    }

    pub(super) fn run(mut self) -> Result<(), WorkerError> {
        let ended = self.work();
        if let Err(error) = &ended {
            tracing::error!(%error, "the engine ends (fail-stop)");
        }
        let failure = Ending::Failed(Failure::Compute);
        for (_, job) in std::mem::take(&mut self.jobs) {
            job.say(Event::Ended(failure.clone()));
            self.forget_one();
        }
        for waiting in std::mem::take(&mut self.queue) {
            let _ = waiting.events.try_send(Event::Ended(failure.clone()));
            self.forget_one();
        }
        ended
    }

    fn work(&mut self) -> Result<(), WorkerError> {
        let mut idle = true;
        loop {
            self.take_commands(idle);
            self.end_overdue()?;
            if self.stopped {
                return Ok(());
            }
            self.admit()?;
            idle = self.jobs.is_empty() && self.queue.is_empty();
            if !self.jobs.is_empty() {
                idle = !self.step()?;
            }
            self.publish_facts();
        }
    }

    /// Takes what is there; waits only if there is nothing else to do.
    fn take_commands(&mut self, idle: bool) {
        if idle {
            match self.commands.recv_timeout(IDLE) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.stopped = true,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit {
                id,
                spec,
                deadline,
                events,
            } => {
                self.counters.attempts_seen += 1;
                match self.judge(&spec) {
                    Ok(rules) => {
                        let rules = Arc::new(rules);
                        self.queue.push_back(Waiting {
                            id,
                            spec,
                            rules,
                            deadline,
                            events,
                        });
                    }
                    Err(ending) => {
                        self.count(&ending);
                        let _ = events.try_send(Event::Ended(ending));
                        self.forget_one();
                    }
                }
            }
            Command::StopChoice { id, choice } => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.stop_choice(choice);
                }
            }
            Command::Wake => {}
            Command::Drain => self.draining = true,
            Command::Stop => self.stopped = true,
        }
    }

    fn judge(&self, spec: &Spec) -> Result<Rules, Ending> {
        if self.draining {
            return Err(Ending::Refused(Refusal::Draining));
        }
        self.capacity.admits(spec).map_err(Ending::Rejected)?;
        Rules::new(spec, &self.tokenizer, self.model.config().vocab).map_err(|error| {
            tracing::warn!(%error, "a request that cannot be sampled");
            Ending::Rejected(Rejection::Empty)
        })
    }

    /// Takes every page that the oldest requests can ever need, so that nothing is preempted.
    fn admit(&mut self) -> Result<(), WorkerError> {
        while let Some(waiting) = self.queue.pop_front() {
            match Job::admit(&mut self.pool, &self.capacity, &self.masks, waiting) {
                Ok(job) => {
                    self.jobs.insert(job.id, job);
                }
                Err(waiting) if self.jobs.is_empty() => {
                    // An idle pool without room for what its capacity admits is a broken ledger.
                    let pages = self.capacity.pages_needed(&waiting.spec);
                    return Err(FailStop::IdlePoolFull(pages).into());
                }
                Err(waiting) => {
                    self.queue.push_front(*waiting);
                    break;
                }
            }
        }
        Ok(())
    }

    /// A deadline, or a client that has left, ends ownership. Between steps nothing reads a page.
    fn end_overdue(&mut self) -> Result<(), WorkerError> {
        let now = Instant::now();
        let waiting = self.queue.len();
        self.queue.retain(|waiting| {
            let late = now >= waiting.deadline;
            if late {
                let failure = Failure::Deadline(Stage::Queue);
                let _ = waiting
                    .events
                    .try_send(Event::Ended(Ending::Failed(failure)));
            }
            !late && !waiting.events.is_closed()
        });
        for _ in self.queue.len()..waiting {
            self.forget_one();
        }
        let over: Vec<(u64, Ending)> = self
            .jobs
            .values()
            .filter_map(|job| job.must_end(now).map(|ending| (job.id, ending)))
            .collect();
        for (id, ending) in over {
            self.end(id, ending)?;
        }
        Ok(())
    }

    /// Gives the pages of a job back and says how it ended.
    pub(super) fn end(&mut self, id: u64, ending: Ending) -> Result<(), WorkerError> {
        let Some(mut job) = self.jobs.remove(&id) else {
            return Ok(());
        };
        self.count(&ending);
        for grant in job.take_pages() {
            self.pool
                .release(grant)
                .map_err(|(_, misuse)| broken(misuse))?;
        }
        for page in self.pool.to_scrub() {
            self.kv.scrub(page)?;
            self.pool.scrubbed(page).map_err(broken)?;
        }
        // Whoever learns of the end finds it in the figures already.
        self.publish_facts();
        job.say(Event::Ended(ending));
        self.forget_one();
        Ok(())
    }

    fn count(&mut self, ending: &Ending) {
        crate::facts::count_ending(&mut self.counters, ending);
    }

    fn forget_one(&self) {
        self.shared.requests.fetch_sub(1, Ordering::Relaxed);
    }

    fn publish_facts(&mut self) {
        self.counters.dropped_grants = self.pool.dropped().0;
        let facts = Facts {
            epoch: self.epoch.bits(),
            draining: self.draining,
            peers: 0,
            pages: pages_of(self.pool.counts()),
            no_arena: false,
            quarantine: Quarantine::default(),
            counters: self.counters,
        };
        *self
            .shared
            .facts
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = facts;
    }
}

/// The ledger says that somebody broke its rules; here that can only be this engine.
pub(super) fn broken(misuse: Misuse) -> WorkerError {
    FailStop::from(Broken::from(misuse)).into()
}
