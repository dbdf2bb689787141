//! The engine over servers that are not ours: SGLang and vLLM pairs, and single servers.
//!
//! ```text
//! submit, stop, dropped answers ─┐
//! parts and ends of legs ────────┼─▶ inbox ─▶ one task: machine ─▶ effects ─▶ legs, answers
//! timers, what was measured ─────┘
//! ```
//! Nothing here decides what happens to a request: that is [`handoff::door::Door`], specified in
//! `docs/door.md`. A leg is one HTTP request to one engine, and a task of its own, so that it
//! outlives its client; it ends when the machine says so. What is decided here is how a leg is
//! asked and read ([`dialect`]): what cannot be understood is a lost leg, never an answer.
//!
//! Tokens go in and tokens come out, so lengths are counted by us and compared with what each
//! engine says that it has counted.

mod actor;
mod affinity;
mod connect;
mod counters;
pub mod dialect;
mod facts;
mod leg;
mod requests;
mod sse;
mod verdict;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use handoff::{Broken, Lengths, RequestId};
use pages::Epoch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::engine::{
    Answer, Carried, Code, Engine, EngineFacts, Fault, InFlight, Job, Lookout, ModelFacts,
    Steering, Told,
};
use crate::pairs::{Board, EndError};
use actor::{Actor, Input};
use dialect::Protocol;
use leg::Client;
use requests::Submission;

/// What the engine is started with. Every queue and wait has a limit.
#[derive(Clone)]
pub struct Config {
    /// The engines; see [`Doors::engines`].
    pub engines: Vec<Upstream>,
    /// Names under which the model is served; the first is the default.
    pub names: Vec<String>,
    /// Bounds of the request machine.
    pub machine: handoff::door::Config,
    /// Attempts at one engine at once.
    pub legs_max: u32,
    /// Bytes of one engine's answer; above it the leg is lost.
    pub answer_bytes_max: usize,
    /// How long a connection to an engine may take to be made.
    pub connect: Duration,
    /// How long legs that nobody wants may go on at the end of this process.
    pub end_within: Duration,
    /// Whom to trust over TLS, and as whom to come; needed where an engine has it.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Submissions that wait to be judged, at most; above it `queue_full`.
    pub unjudged_max: usize,
    /// Events that an answer holds for its reader; above it the request is cancelled.
    pub answer_events_max: usize,
    /// Where a trace of the machine is written; the file must not exist.
    pub trace: Option<PathBuf>,
}

/// Where an engine is.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its name in logs and facts.
    pub name: String,
    /// `host:port` of its HTTP server.
    pub authority: String,
    /// Whether it speaks HTTPS.
    pub tls: bool,
    /// The key that goes with every request to it.
    pub key: Option<String>,
}

/// What was measured of an engine that is up.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// How it is spoken to, and what it does.
    pub dialect: Protocol,
    /// What it is, with its version.
    pub software: String,
    /// Whatever is different if another process has taken its place.
    pub life: String,
    /// The lengths that it takes; none: not known, and nothing goes to it.
    pub lengths: Option<Lengths>,
    /// How they came about, or why they are not known; a step a line.
    pub derivation: Vec<String>,
    /// Tokens of its pool, if they are known.
    pub pool_tokens: u64,
    /// Of a prefill with several data-parallel ranks: the longest prompt that each takes, by its number. Each
    /// attempt names one that holds its prompt. Empty: one rank, or whose pool is which is not known.
    pub ranks: Vec<u32>,
    /// Which engines it may be paired with: those of the same group.
    pub group: u32,
    /// How much it takes beside others.
    pub weight: u32,
    /// Whether it declares that a prefill may be aborted at any time.
    pub aborts_prefill: bool,
    /// Why it is asked for operators only, if it is.
    pub private: Option<String>,
}

impl Config {
    /// The defaults.
    pub fn new(engines: Vec<Upstream>, names: Vec<String>) -> Self {
        Self {
            engines,
            names,
            machine: handoff::door::Config::default(),
            legs_max: 1024,
            answer_bytes_max: 64 << 20,
            connect: Duration::from_secs(3),
            end_within: Duration::from_secs(10),
            tls: None,
            unjudged_max: 256,
            answer_events_max: 1024,
            trace: None,
        }
    }
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Nothing could ever be answered.
    #[error("no engine to ask: give at least one address")]
    NoEngine,
    /// No name to serve the model under.
    #[error("the model needs a name to be served under")]
    NoName,
    /// The system gave no random bits for this life's epoch.
    #[error("the system gives no random bits: {0}")]
    Random(io::Error),
    /// The trace cannot be begun.
    #[error(transparent)]
    Trace(#[from] wire::trace::TraceError),
}

/// The engine. Dropping it ends every leg and every request.
pub struct Doors {
    inbox: mpsc::UnboundedSender<Input>,
    /// The next request's number: given out and sent under one lock, so that the machine, which
    /// counts for itself, gives the same.
    next: Mutex<u64>,
    epoch: Epoch,
    board: Arc<Board>,
    lookout: Arc<Lookout>,
    unjudged: Arc<Semaphore>,
    answer_events_max: usize,
    /// The engines, and how each that is up is spoken to.
    known: Mutex<Vec<(Upstream, Option<Protocol>)>>,
    client: Client,
    how: Arc<OnceLock<Result<(), Broken>>>,
    _tasks: JoinSet<()>,
}

impl Doors {
    /// Starts the task. Must be called inside a tokio runtime. No engine is asked before something
    /// was measured of it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        if config.engines.is_empty() {
            return Err(StartError::NoEngine);
        }
        if config.names.is_empty() {
            return Err(StartError::NoName);
        }
        let bits = || crate::pairs::random().map_err(StartError::Random);
        let epoch = Epoch::new(u128::from_le_bytes(bits()?));
        let secret = crate::pairs::random().map_err(StartError::Random)?;
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
            &config,
            epoch,
            secret,
            models,
            (inbox.clone(), received),
            (board.clone(), lookout.clone()),
        )?;
        let how = actor.how();
        let mut tasks = JoinSet::new();
        tasks.spawn(actor.run());
        Ok(Self {
            inbox,
            next: Mutex::new(1),
            epoch,
            board,
            lookout,
            unjudged: Arc::new(Semaphore::new(config.unjudged_max)),
            answer_events_max: config.answer_events_max.max(1),
            client: Client::new(&config),
            known: Mutex::new(config.engines.into_iter().map(|it| (it, None)).collect()),
            how,
            _tasks: tasks,
        })
    }

    /// This life of the gateway.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The engines from now on. To one that is not among them any more nothing new goes; what it
    /// does is brought to its end.
    pub fn engines(&self, engines: Vec<Upstream>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let spoken = |name: &str| {
            let before = known.iter().find(|(it, _)| it.name == name);
            before.and_then(|(_, dialect)| dialect.clone())
        };
        let now = engines.iter().map(|it| (it.clone(), spoken(&it.name)));
        *known = now.collect();
        drop(known);
        self.put(Input::Engines(engines));
    }

    /// What was measured of the engine of this name, or that it is not there.
    pub fn measured(&self, name: &str, found: Result<Found, String>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let dialect = found.as_ref().ok().map(|found| found.dialect.clone());
        if let Some((_, at)) = known.iter_mut().find(|(it, _)| it.name == name) {
            *at = dialect;
        }
        drop(known);
        self.put(Input::Measured(name.to_owned(), Box::new(found)));
    }

    /// What this engine's tokenizer makes of a text; none if it has none to ask.
    pub async fn tokenize(
        &self,
        engine: &Upstream,
        dialect: &Protocol,
        text: &str,
    ) -> Option<Vec<u32>> {
        let call = dialect.tokenize(text);
        let body = self.client.body_of(engine, call).await?;
        dialect::tokens_of(&body)
    }

    fn known(&self) -> Vec<(Upstream, Option<Protocol>)> {
        let known = self.known.lock();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on nothing new is taken; what runs may finish.
    pub fn drain(&self) {
        self.put(Input::Drain);
    }

    /// Ends what still runs, each request with `draining`, and returns when all have been told and no
    /// leg is in the middle of a transfer any more, or has had its time.
    ///
    /// # Errors
    /// As [`Doors::ended`].
    pub async fn end(&self) -> Result<(), EndError> {
        self.put(Input::End);
        self.ended().await
    }

    /// Waits until the engine has ended, by [`Doors::end`] or of itself.
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
}

/// What an engine of the other kind could not do, said before anything is asked of one.
fn unsupported(job: &Job) -> Result<(), Fault> {
    if job.choices != 1 {
        let why = "one answer a job is generated";
        return Err(Fault::new(Code::Internal, why));
    }
    if job.sampling.logprobs.is_some() {
        let why = "log-probabilities are not handed on from these engines; leave `logprobs` out";
        return Err(Fault::new(Code::UnsupportedParameter, why).on("logprobs"));
    }
    Ok(())
}

impl Doors {
    /// Of the first engine that has any: they were compared when they came up.
    async fn written_by_them(&self, carried: &Carried) -> Result<Option<Vec<u32>>, Fault> {
        let mut asked = false;
        for (upstream, dialect) in self.known() {
            let Some(call) = dialect.and_then(|it| it.tokens_of(carried)) else {
                continue;
            };
            asked = true;
            let body = self.client.body_of(&upstream, call).await;
            if let Some(tokens) = body.and_then(|body| dialect::tokens_of(&body)) {
                return Ok(Some(tokens));
            }
        }
        match asked {
            true => Err(dialect::untold()),
            false => Ok(None),
        }
    }
}

impl Engine for Doors {
    fn tokens_of<'a>(&'a self, carried: &'a Carried) -> Told<'a> {
        Box::pin(self.written_by_them(carried))
    }

    fn facts(&self) -> Arc<EngineFacts> {
        self.board.read()
    }

    fn in_flight(&self) -> Arc<[InFlight]> {
        self.lookout.look(|| {
            self.put(Input::Look);
        })
    }

    fn submit(&self, job: Job) -> Result<Answer, Fault> {
        unsupported(&job)?;
        let room = self.unjudged.clone().try_acquire_owned();
        let room: OwnedSemaphorePermit =
            room.map_err(|_| crate::verdict::of_refusal(handoff::Refusal::QueueFull))?;
        // One place is kept for the last event, which must never be lost.
        let (events, reader) = mpsc::channel(self.answer_events_max + 1);
        let last = events.clone().try_reserve_owned();
        let last = last.expect("a channel of at least two places is new and empty");
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let request = RequestId {
            epoch: self.epoch,
            n: *next,
        };
        let submission = Submission {
            request,
            job,
            events,
            last,
            _room: room,
        };
        if !self.put(Input::Submit(Box::new(submission))) {
            return Err(Fault::new(Code::Draining, "the engine has ended"));
        }
        *next += 1;
        drop(next);
        let inbox = self.inbox.clone();
        Ok(Answer {
            request: request.to_string(),
            events: reader,
            steering: Box::new(Handle { request, inbox }),
        })
    }
}

/// The way back from one reader. Dropping it says that the reader has left.
struct Handle {
    request: RequestId,
    inbox: mpsc::UnboundedSender<Input>,
}

impl Steering for Handle {
    fn stop_choice(&self, _: u16) {
        // An engine that has ended has ended the request.
        let _ = self.inbox.send(Input::Stop(self.request));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.inbox.send(Input::Gone(self.request));
    }
}
