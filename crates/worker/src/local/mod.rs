//! The engine in one process (`serve --in-process`): the same model, pool and scheduling as the
//! workers, without a handoff. It is the reference: what it answers, prefill and decode must
//! answer; what it takes longer or shorter is what the handoff costs.
//!
//! It verifies block tables every step like the workers do, and has no prefix cache, so that every
//! answer is computed from its prompt alone.

mod engine;
mod job;
mod step;

use crate::start::Loaded;
use crate::{EngineConfig, FailStop, Ready, WorkerError};
use engine::{Command, Engine};
use handoff::{Capacity, Ending, Finish, Refusal, Role, Spec};
use pages::Sound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use wire::{Facts, TokenOut};

/// Requests waiting or running, at most.
const REQUESTS_MAX: usize = 1024;

/// What happens to a request, in this order: `Committed`, `Tokens`…, `Ended`; or `Ended` at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt is computed: an answer may begin.
    Committed,
    /// A choice grew by one token.
    Token {
        /// The choice, from 0.
        choice: u16,
        /// The token.
        token: TokenOut,
        /// Set with its last.
        finish: Option<Finish>,
    },
    /// It is over. Nothing follows.
    Ended(Ending),
}

/// A running request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Running {
    /// The engine's number of it.
    pub id: u64,
    /// What happens. Has room for everything that can happen, so the engine never waits for it.
    pub events: mpsc::Receiver<Event>,
    /// The way back.
    pub steering: Steering,
}

/// The way back from the reader of a request to the engine.
#[derive(Clone, Debug)]
pub struct Steering {
    id: u64,
    commands: std_mpsc::Sender<Command>,
}

impl Steering {
    /// This choice needs no more tokens. Never blocks.
    pub fn stop_choice(&self, choice: u16) {
        // An engine that has ended stops every choice anyway.
        let _ = self.commands.send(Command::StopChoice {
            id: self.id,
            choice,
        });
    }
}

/// The engine: a thread that owns the pool, and the way to it.
#[derive(Debug)]
pub struct Local {
    commands: std_mpsc::Sender<Command>,
    shared: Arc<Shared>,
    next_id: AtomicU64,
    ready: Ready,
    capacity: Capacity,
    /// Closed when the thread has ended, however that was.
    alive: watch::Receiver<()>,
    thread: Mutex<Option<JoinHandle<Result<(), WorkerError>>>>,
}

/// What both sides look at.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    requests: AtomicUsize,
    facts: Mutex<Facts>,
}

impl Local {
    /// Loads the model, measures and populates the pool, and starts the engine's thread.
    pub fn start(config: &EngineConfig) -> Result<Self, WorkerError> {
        // Decode's capacity is the one of a pool that holds prompt and output together.
        let loaded = Loaded::load(config, Role::Decode, Sound, |_| 0)?;
        let ready = loaded.ready("unified", String::new());
        let capacity = Capacity::of(&loaded.pool, Role::Decode, loaded.context);
        let (commands, received) = std_mpsc::channel();
        let shared = Arc::new(Shared::default());
        let engine = Engine::new(loaded, config, (commands.clone(), received), shared.clone())?;
        let (living, alive) = watch::channel(());
        let thread = std::thread::Builder::new().name("engine".into());
        let thread = thread
            .spawn(move || {
                let _until_here = living;
                engine.run()
            })
            .map_err(|source| WorkerError::System {
                what: "cannot start the engine's thread",
                source,
            })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self {
            commands,
            shared,
            next_id: AtomicU64::new(1),
            ready,
            capacity,
            alive,
            thread,
        })
    }

    /// What it says of itself: measured.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// What it takes.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Its present state.
    pub fn facts(&self) -> Facts {
        *self
            .shared
            .facts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request or refuses it at once; never blocks. A refusal has held nothing.
    ///
    /// # Errors
    /// `Rejected` for good, or `Refused` for now.
    pub fn submit(&self, spec: Spec, deadline: Instant) -> Result<Running, Ending> {
        self.capacity.admits(&spec).map_err(Ending::Rejected)?;
        if self.shared.requests.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            self.shared.requests.fetch_sub(1, Ordering::Relaxed);
            return Err(Ending::Refused(Refusal::QueueFull));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let tokens = usize::from(spec.choices).saturating_mul(spec.max_new as usize);
        let room = tokens
            .saturating_add(2)
            .min(tokio::sync::Semaphore::MAX_PERMITS);
        let (sender, events) = mpsc::channel(room);
        let steering = Steering {
            id,
            commands: self.commands.clone(),
        };
        let submit = Command::Submit {
            id,
            spec,
            deadline,
            events: sender,
        };
        if self.commands.send(submit).is_err() {
            self.shared.requests.fetch_sub(1, Ordering::Relaxed);
            return Err(Ending::Refused(Refusal::Draining));
        }
        Ok(Running {
            id,
            events,
            steering,
        })
    }

    /// Waits until the engine's thread has ended, which it does unasked only if it must.
    pub async fn ended(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// Takes nothing new; what runs may finish.
    pub fn drain(&self) {
        let _ = self.commands.send(Command::Drain);
    }

    /// Ends the engine, and with it what still runs. Says how its thread ended.
    pub fn stop(&self) -> Result<(), WorkerError> {
        let _ = self.commands.send(Command::Stop);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match thread.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(FailStop::Thread("the engine's thread").into()),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the engine ended badly");
        }
    }
}
