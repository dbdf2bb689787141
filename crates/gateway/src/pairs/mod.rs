//! The engine over pairs of prefill and decode workers: one task owns the request machine of the
//! handoff and the control connections, and carries out what the machine decides.
//!
//! ```text
//! submit, stop, dropped answers ─┐
//! frames of workers ─────────────┼─▶ inbox ─▶ one task: machine ─▶ effects ─▶ workers, answers
//! timers, facts ─────────────────┘
//! ```
//! Nothing here decides what happens to a request: that is [`handoff::gateway::Gateway`]. What is
//! decided here is only when a peer or a reader is given up: a worker whose message is none, or
//! that does not take ours, loses its connection; a reader that falls behind loses its answer.
//!
//! Everything that waits is bounded. Submissions hold a place until the machine has judged them,
//! frames hold their bytes of the connection's room until they are processed, an answer has room
//! for a fixed number of events, and what a reader can still say (stop, gone) is at most one
//! message for each choice and one for the request.

mod actor;
mod counters;
mod dial;
mod facts;
mod links;
mod requests;
mod tenants;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use handoff::{Broken, Decisions, Hello, RequestId, codec};
use pages::{Epoch, Sound};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use wire::control::{Addr, Identity, Limits};

use crate::engine::{
    Answer, Code, Engine, EngineFacts, Fault, InFlight, Job, Lookout, ModelFacts, Steering,
};
use actor::{Actor, Input};
use requests::Submission;

pub(crate) use facts::Board;
pub(crate) use tenants::Domains;

pub use requests::sampling_bytes;

/// A message of the core and the byte that says that it is one.
const FRAME_BYTES_MAX: usize = codec::MAX_BYTES + 1;
/// Room in an Expect for everything that is neither prompt nor sampling, in bytes.
const SPEC_SLACK_BYTES: usize = 1024;
/// Most bytes of one token id in a message.
const TOKEN_BYTES_MAX: usize = 5;

/// What the engine is started with. Every queue and wait has a limit (H-15, H-16).
#[derive(Clone)]
pub struct Config {
    /// Prefill workers to dial. The n-th is `prefill-n` in facts and logs.
    pub prefill: Vec<Addr>,
    /// Decode workers to dial.
    pub decode: Vec<Addr>,
    /// This gateway's certificates.
    pub identity: Identity,
    /// Fingerprint of the model file; a worker with another one is refused.
    pub model: [u8; 32],
    /// Names under which the model is served; the first is the default.
    pub names: Vec<String>,
    /// Whether a prompt's beginning may come from, and go to, the workers' caches of its tenant.
    pub cache: bool,
    /// Bounds of the request machine.
    pub machine: handoff::gateway::Config,
    /// Submissions that wait to be judged, at most; above it `queue_full`.
    pub unjudged_max: usize,
    /// Events that an answer holds for its reader; above it the request is cancelled.
    pub answer_events_max: usize,
    /// How often workers are asked for their facts.
    pub facts_every: Duration,
    /// How long a worker may owe an answer: its facts here, Hello and what decode answers in the
    /// machine, whose `answer_ms` this becomes. Its engine answers between two steps, so this must be
    /// longer than the longest step of a busy machine; above it the worker counts as lost.
    pub silence_max: Duration,
    /// Pause before a worker is dialled again: the first, and the longest.
    pub redial: (Duration, Duration),
    /// Limits of every control connection.
    pub limits: Limits,
    /// Where a trace of the machine is written; the file must not exist.
    pub trace: Option<PathBuf>,
    /// File that the audit log is appended to; standard error if not given.
    pub audit: Option<PathBuf>,
    /// Directory in which it is written down which attempt belongs to which request.
    pub owners: Option<PathBuf>,
}

impl Config {
    /// The defaults.
    pub fn new(
        prefill: Vec<Addr>,
        decode: Vec<Addr>,
        identity: Identity,
        model: [u8; 32],
        names: Vec<String>,
    ) -> Self {
        Self {
            prefill,
            decode,
            identity,
            model,
            names,
            cache: true,
            machine: handoff::gateway::Config::default(),
            unjudged_max: 256,
            answer_events_max: 1024,
            facts_every: Duration::from_secs(1),
            silence_max: Duration::from_secs(20),
            redial: (Duration::from_millis(20), Duration::from_secs(2)),
            limits: Limits {
                frame_bytes_max: FRAME_BYTES_MAX,
                queue_frames_max: 16_384,
                queue_bytes_max: 4 * FRAME_BYTES_MAX,
                ..Limits::default()
            },
            trace: None,
            audit: None,
            owners: None,
        }
    }
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No address of a role: nothing could ever be answered.
    #[error("no {0} worker to dial: give at least one address")]
    NoWorker(&'static str),
    /// No name to serve the model under.
    #[error("the model needs a name to be served under")]
    NoName,
    /// The system gave no random bits for this life's epoch.
    #[error("the system gives no random bits: {0}")]
    Random(io::Error),
    /// The audit log cannot be opened.
    #[error("cannot open the audit log: {0}")]
    Audit(io::Error),
    /// Which attempt belongs to which request cannot be written down.
    #[error("cannot begin the file of owners: {0}")]
    Owners(io::Error),
    /// The trace cannot be begun.
    #[error(transparent)]
    Trace(#[from] wire::trace::TraceError),
}

/// Why the engine has ended, where nobody asked it to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    /// The request machine has found one of its own rules broken.
    #[error("fail-stop: {0}")]
    Broken(#[from] Broken),
    /// The task that owns the machine has panicked; what it said is on standard error.
    #[error("fail-stop: the task of the request machine has panicked")]
    Panicked,
}

/// The engine. Dropping it ends every connection and every request.
pub struct Pairs {
    inbox: mpsc::UnboundedSender<Input>,
    /// The next request's number: given out and sent under one lock, so that the machine, which
    /// counts for itself, gives the same (H-8: ids are the gateway's).
    next: Mutex<u64>,
    epoch: Epoch,
    board: Arc<Board>,
    lookout: Arc<Lookout>,
    how: Arc<OnceLock<Result<(), Broken>>>,
    unjudged: Arc<Semaphore>,
    answer_events_max: usize,
    _tasks: JoinSet<()>,
}

impl Pairs {
    /// Starts the task and begins to dial. Must be called inside a tokio runtime; returns before
    /// any worker is connected.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_by(Sound, config)
    }

    /// [`Pairs::start`] under other decisions, for a laboratory. The product calls `start`.
    ///
    /// # Errors
    /// As [`Pairs::start`].
    pub fn start_by(decisions: impl Decisions, config: Config) -> Result<Self, StartError> {
        for (role, addrs) in [("prefill", &config.prefill), ("decode", &config.decode)] {
            if addrs.is_empty() {
                return Err(StartError::NoWorker(role));
            }
        }
        if config.names.is_empty() {
            return Err(StartError::NoName);
        }
        let epoch = Epoch::new(u128::from_le_bytes(random().map_err(StartError::Random)?));
        let hello = Hello {
            epoch,
            role: handoff::Role::Gateway,
            model: config.model,
            layout: [0; 32], // a gateway holds no pages
            capacity: None,
            ranks: 1,
        };
        let secret = random().map_err(StartError::Random)?;
        let board = Arc::new(Board::default());
        let lookout = Arc::new(Lookout::default());
        let (inbox, received) = mpsc::unbounded_channel();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let created = since.unwrap_or_default().as_secs();
        let model = |id: &String| ModelFacts {
            id: id.clone(),
            created,
        };
        let models = config.names.iter().map(model).collect();
        let actor = Actor::new(
            decisions,
            &config,
            hello,
            secret,
            models,
            received,
            (board.clone(), lookout.clone()),
        )?;
        let mut tasks = JoinSet::new();
        dial::keep_all_dialled(&config, &inbox, &mut tasks);
        let how = actor.how();
        tasks.spawn(actor.run());
        Ok(Self {
            inbox,
            next: Mutex::new(1),
            epoch,
            board,
            lookout,
            how,
            unjudged: Arc::new(Semaphore::new(config.unjudged_max)),
            answer_events_max: config.answer_events_max.max(1),
            _tasks: tasks,
        })
    }

    /// This life of the gateway.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What [`Engine::facts`] gives, and each time it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<EngineFacts>> {
        self.board.watch()
    }

    /// From now on nothing new is taken; what runs may finish.
    pub fn drain(&self) {
        self.put(Input::Drain);
    }

    /// Ends what still runs, each request with `draining`, and returns when all have been told and
    /// the trace is written.
    ///
    /// # Errors
    /// As [`Pairs::ended`].
    pub async fn end(&self) -> Result<(), EndError> {
        self.put(Input::End);
        self.ended().await
    }

    /// Waits until the engine has ended, which it does unasked only if it must.
    ///
    /// # Errors
    /// What it found.
    pub async fn ended(&self) -> Result<(), EndError> {
        self.inbox.closed().await;
        match self.how.get() {
            Some(how) => Ok(how.clone()?),
            None => Err(EndError::Panicked),
        }
    }

    fn put(&self, input: Input) -> bool {
        self.inbox.send(input).is_ok()
    }

    /// A message that no connection carries would cost the connection, and with it other requests.
    fn refuse_oversized(job: &Job, sampling: &[u8]) -> Result<(), Fault> {
        let most = codec::MAX_BYTES - SPEC_SLACK_BYTES;
        let bytes = job.prompt.len() * TOKEN_BYTES_MAX + sampling.len();
        if bytes <= most {
            return Ok(());
        }
        let (tokens, most) = (job.prompt.len(), most / TOKEN_BYTES_MAX);
        Err(Fault::new(
            Code::ContextLengthExceeded,
            format!("the prompt has {tokens} tokens; no message to a worker carries above {most}"),
        ))
    }
}

impl Engine for Pairs {
    fn facts(&self) -> Arc<EngineFacts> {
        self.board.read()
    }

    fn in_flight(&self) -> Arc<[InFlight]> {
        self.lookout.look(|| {
            self.put(Input::Look);
        })
    }

    fn submit(&self, job: Job) -> Result<Answer, Fault> {
        let sampling = sampling_bytes(&job)?;
        Self::refuse_oversized(&job, &sampling)?;
        let room = self.unjudged.clone().try_acquire_owned();
        let room: OwnedSemaphorePermit =
            room.map_err(|_| crate::verdict::of_refusal(handoff::Refusal::QueueFull))?;
        // One place is kept for the last event, which must never be lost.
        let (events, reader) = mpsc::channel(self.answer_events_max + 1);
        let last = events.clone().try_reserve_owned();
        let last = last.expect("a channel of at least two places is new and empty");
        let choices = job.choices;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let request = RequestId {
            epoch: self.epoch,
            n: *next,
        };
        let submission = Submission {
            request,
            job,
            sampling,
            events,
            last,
            _room: room,
        };
        if !self.put(Input::Submit(Box::new(submission))) {
            return Err(Fault::new(Code::Draining, "the engine has ended"));
        }
        *next += 1;
        drop(next);
        let stopped = (0..choices).map(|_| AtomicBool::new(false)).collect();
        let inbox = self.inbox.clone();
        Ok(Answer {
            request: request.to_string(),
            events: reader,
            steering: Box::new(Handle {
                request,
                inbox,
                stopped,
            }),
        })
    }
}

/// The way back from one reader. Dropping it says that the reader has left.
struct Handle {
    request: RequestId,
    inbox: mpsc::UnboundedSender<Input>,
    /// Choices that were stopped: each is said once, whatever the reader does.
    stopped: Vec<AtomicBool>,
}

impl Steering for Handle {
    fn stop_choice(&self, choice: u16) {
        let flag = self.stopped.get(usize::from(choice));
        if flag.is_some_and(|stopped| !stopped.swap(true, Ordering::Relaxed)) {
            // An engine that has ended has ended every choice.
            let _ = self.inbox.send(Input::StopChoice(self.request, choice));
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.inbox.send(Input::Gone(self.request));
    }
}

/// Bits from the system, drawn at the edge: the core itself draws nothing.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
