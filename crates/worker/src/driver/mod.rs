//! What both workers have around their machine: one engine thread that owns machine, pool, model
//! and KV memory, fed by a small I/O runtime.
//!
//! ```text
//! control connections ──frames──┐
//! copier, movers ────endings────┼─▶ inbox ─▶ engine thread: machine ─▶ effects
//! signals ──────────────────────┘            between steps; timers kept here
//! ```
//! Inputs are applied between steps. A connection's unread bytes are bounded; what a worker's own
//! threads report is bounded by what was asked of them.

mod links;
mod net;
mod stages;
mod state;
mod stop;

pub(crate) use links::Links;
pub(crate) use net::{Inbox, Net};
pub(crate) use stages::Stages;
pub(crate) use state::DriverState;
pub use stop::Stop;

use crate::{FailStop, WorkerError};
use bytes::Bytes;
use handoff::{AttemptId, Conn, Ending, Failure, Fault, Machine};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use wire::control::Role;
use wire::trace::{AuditEvent, AuditRecord, Driver};

/// What reaches the engine thread. `Own` is what this worker's other threads report.
pub(crate) enum Input<Own> {
    /// A peer of this role, as its certificate says, is connected.
    Up(Conn, Role, wire::control::Sender),
    /// It sent a frame; its bytes count against the connection's room until they are processed.
    Frame(Conn, Bytes, OwnedSemaphorePermit),
    /// The connection is gone; nothing more arrives on it.
    Down(Conn),
    /// Another thread of this worker has ended something.
    Own(Own),
    /// There may be something to compute.
    Wake,
    /// Take nothing new; end when what runs has ended.
    Drain,
    /// End now.
    Stop,
}

/// How long a worker waits for others (H-15). A deadline ends ownership; it proves nothing about
/// writes that may still land: that takes a certificate or a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For a lost peer to come back.
    pub peer: Duration,
    /// For the next answer of a peer that is connected: at prefill decode's to Hello, Sync, an offer,
    /// a statement or a certificate; at decode prefill's Sync, and its next offer for an attempt whose
    /// turn is kept. A peer answers between two steps.
    pub answer: Duration,
    /// Decode: for prefill's answer to a Cancel; then its arena is dropped and it is refused until
    /// it says Hello again.
    pub cancel: Duration,
    /// Decode: for an arena with unsettled writes that other handoffs still use.
    pub unsettled: Duration,
    /// Prefill: until an attempt's turn has come and it has its ticket; none: its whole time.
    pub queue: Option<Duration>,
    /// Prefill: from the ticket to the prompt's last chunk.
    pub prefill: Option<Duration>,
    /// Decode: from the first batch that has landed to the commit. Before the first batch prefill's
    /// time counts as well.
    pub transfer: Option<Duration>,
    /// Decode: from the commit to the last token.
    pub decode: Option<Duration>,
    /// No wait: after this time at the latest, and after half of it at the earliest, a cached page
    /// that nobody has used is given up. None: when its room is needed.
    pub cache: Option<Duration>,
}

impl Deadlines {
    /// How often cached pages grow older: a page that was used in neither of two such times is given
    /// up, so that none stays longer than both together.
    pub(crate) fn cache_age_ms(&self) -> Option<u64> {
        self.cache.map(|ttl| milliseconds(ttl / 2).max(1))
    }
}

/// What others may hold of a worker at one time (H-16). None: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Tokens of one tenant: at prefill of prompts waiting or computed, at decode of prompts and
    /// most output of everything that is not over.
    pub tenant_tokens: Option<u64>,
    /// Decode: tokens granted to one prefill life and not committed. One handoff is always let in.
    pub prefill_tokens: Option<u64>,
}

impl Default for Deadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            peer: seconds(10),
            answer: seconds(10),
            cancel: seconds(5),
            unsettled: seconds(2),
            queue: None,
            prefill: None,
            transfer: None,
            decode: None,
            cache: None,
        }
    }
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Inputs applied between two steps, at most: a flood of messages must not starve the steps.
const INPUTS_MAX: usize = 256;

/// One worker's engine: what carries out its machine's effects, and computes between them.
pub(crate) trait Engine: Driver<Error = WorkerError> {
    /// What it is called.
    const ROLE: &'static str;
    /// What its other threads report.
    type Own;
    /// Its machine's timers.
    type Timer: Ord + Copy;

    fn driver(&mut self) -> &mut DriverState<Self::Own, Self::Timer>;
    /// A peer is connected.
    fn up(&mut self, conn: Conn, role: Role) -> Result<(), WorkerError>;
    /// A message of the core arrived. The inner error says that it is none.
    fn message(
        &mut self,
        conn: Conn,
        role: Role,
        bytes: &[u8],
    ) -> Result<Result<(), String>, WorkerError>;
    fn down(&mut self, conn: Conn) -> Result<(), WorkerError>;
    fn own(&mut self, own: Self::Own) -> Result<(), WorkerError>;
    fn fired(&mut self, timer: Self::Timer) -> Result<(), WorkerError>;
    fn drain(&mut self) -> Result<(), WorkerError>;
    /// Whether there is something to compute.
    fn busy(&self) -> bool;
    /// Computes something, if there is something.
    fn step(&mut self) -> Result<(), WorkerError>;
    /// What it says about itself.
    fn facts(&mut self) -> wire::Facts;
    /// Tells a gateway how an attempt ended.
    fn say_ended(&mut self, conn: Conn, attempt: AttemptId, ending: Ending);
}

/// Runs an engine until it is told to end, or must (fail-stop).
pub(crate) fn run<E: Engine>(engine: &mut E) -> Result<(), WorkerError> {
    let ended = run_until_over(engine);
    if let Err(WorkerError::FailStop(found)) = &ended {
        last_words(engine, found);
    }
    ended
}

/// Whoever waits hears why at once, and does not have to guess from a lost connection; the evidence
/// goes to the audit log.
fn last_words<E: Engine>(engine: &mut E, found: &FailStop) {
    let epoch = engine.machine().epoch();
    let unended = engine.driver().unended();
    engine.driver().audit(&AuditRecord {
        evidence: Some(found.to_string()),
        ..AuditRecord::new(AuditEvent::FailStop, E::ROLE, epoch.to_string())
    });
    for (attempt, conn) in unended {
        let ending = Ending::Failed(Failure::Integrity(Fault::FailStop));
        engine.say_ended(conn, attempt, ending);
    }
    engine.driver().links.close_all();
}

fn run_until_over<E: Engine>(engine: &mut E) -> Result<(), WorkerError> {
    loop {
        let mut input = engine.driver().next();
        if input.is_none() && !engine.busy() {
            engine.flush_trace()?;
            input = engine.driver().wait()?;
        }
        let mut taken = 0;
        while let Some(next) = input {
            take(engine, next)?;
            taken += 1;
            input = if taken < INPUTS_MAX {
                engine.driver().next()
            } else {
                None
            };
        }
        while let Some(timer) = engine.driver().timers.pop_due(Instant::now()) {
            engine.fired(timer)?;
        }
        if engine.driver().draining() {
            let at_rest = engine.machine().at_rest();
            if engine.driver().is_over(at_rest) {
                engine.driver().links.close_all();
                return engine.flush_trace();
            }
        }
        engine.step()?;
    }
}

fn take<E: Engine>(engine: &mut E, input: Input<E::Own>) -> Result<(), WorkerError> {
    match input {
        Input::Up(conn, role, sender) => {
            engine.driver().links.up(conn, role, sender);
            engine.up(conn, role)
        }
        Input::Frame(conn, bytes, _room) => take_frame(engine, conn, &bytes),
        Input::Down(conn) => {
            engine.driver().links.down(conn);
            engine.down(conn)
        }
        Input::Own(own) => engine.own(own),
        Input::Wake => Ok(()), // a step is next
        Input::Drain => {
            tracing::info!("draining: no new attempts");
            engine.driver().begin_draining();
            engine.drain()
        }
        Input::Stop => {
            engine.driver().stop_now();
            Ok(())
        }
    }
}

/// Garbage costs its connection, and never more.
fn take_frame<E: Engine>(engine: &mut E, conn: Conn, bytes: &[u8]) -> Result<(), WorkerError> {
    // A connection that was closed here: what was unprocessed on it is discarded.
    let Some(role) = engine.driver().links.role(conn) else {
        return Ok(());
    };
    let problem = match wire::Frame::decode(bytes) {
        Ok(wire::Frame::Core(message)) => match engine.message(conn, role, message)? {
            Ok(()) => return Ok(()),
            Err(problem) => problem,
        },
        Ok(wire::Frame::AskFacts) => {
            let facts = wire::Frame::Facts(Box::new(engine.facts()));
            engine.driver().links.send_frame(conn, facts.encode());
            return Ok(());
        }
        Ok(wire::Frame::Facts(_)) => "facts that nobody asked for".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(conn = conn.0, %role, %problem, "a peer sent what is no message: closed");
    engine.driver().counters.malformed_messages += 1;
    engine.driver().links.close(conn);
    Ok(())
}
