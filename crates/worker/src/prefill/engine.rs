//! The engine: the prefill machine, and everything that its effects need.

use super::endpoints::{Endpoints, Moved};
use crate::WorkerError;
use crate::choose::Rules;
use crate::driver::{self, Deadlines, DriverState, Inbox, Stages};
use crate::facts::pages_of;
use crate::masks::{Masks, Next, Seat};
use crate::quarantine::Ages;
use crate::start::{EngineConfig, Loaded};
use fabric::Sender;
use handoff::prefill::{Config, Event, Prefill, Timer};
use handoff::{AttemptId, Conn, Decisions, Ending, OfferId, PrefillToGateway, Spec, codec};
use model::sampling::Sampler;
use model::{KvMemory, Model, Scratch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokenizer::Tokenizer;
use wire::Facts;
use wire::control::Role;
use wire::trace::{Driver, Recorded, Writer};

/// See the module's documentation.
pub(super) struct Engine<J: Decisions> {
    pub(super) machine: Recorded<Prefill<J>>,
    pub(super) driver: DriverState<Moved, Timer>,
    pub(super) model: Model,
    pub(super) tokenizer: Tokenizer,
    pub(super) kv: KvMemory,
    pub(super) scratch: Scratch,
    pub(super) sampler: Sampler,
    pub(super) endpoints: Endpoints,
    /// Jobs that have their ticket.
    pub(super) jobs: BTreeMap<OfferId, Job>,
    pub(super) masks: Masks,
    pub(super) chunk: u32,
    /// The chunk that the machine has begun.
    pub(super) computing: Option<Chunk>,
    /// The job that was computed last: its neighbours are next.
    pub(super) last: Option<OfferId>,
    /// How long each stage of an attempt may take.
    pub(super) deadlines: Deadlines,
    pub(super) stages: Stages,
    pub(super) ages: Ages,
    /// Which page goes from whom to whom.
    pub(super) owners: Option<wire::trace::OwnersLog>,
    epoch: u128,
}

/// A job as the engine computes it.
pub(super) struct Job {
    pub(super) attempt: AttemptId,
    pub(super) spec: Spec,
    /// How its first tokens are sampled; none if nobody can.
    pub(super) rules: Option<Arc<Rules>>,
    /// Where its choices begin in the form that they are held to.
    pub(super) seat: Option<Arc<Seat>>,
    /// Tokens of its prompt that are cached or computed.
    pub(super) computed: u32,
}

impl Job {
    /// Whether its next chunk of at most so many tokens is the last, whose first tokens need a mask
    /// that is not there yet.
    pub(super) fn waits(&self, chunk: u32) -> bool {
        let last = (self.computed + chunk) as usize >= self.spec.tokens.len();
        let next = self.seat.as_ref().filter(|_| last).map(|seat| seat.next());
        matches!(next, Some(Next::Coming))
    }
}

/// Tokens `from..to` of a job's prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) offer: OfferId,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) last: bool,
}

impl<J: Decisions> Engine<J> {
    pub(super) fn new(
        loaded: Loaded<J>,
        config: &EngineConfig,
        deadlines: Deadlines,
        machine: Config,
        trace: Option<Writer>,
        driver: DriverState<Moved, Timer>,
        sender: Arc<dyn Sender>,
        inbox: Inbox<Moved>,
    ) -> Result<Self, WorkerError> {
        let Loaded {
            model,
            tokenizer,
            kv,
            pool,
            decisions,
            hello,
            ..
        } = loaded;
        let epoch = hello.epoch;
        let waker = inbox.clone();
        let owners = crate::open_owners(config, "prefill", epoch)?;
        Ok(Self {
            masks: Masks::start(&tokenizer, move || waker.wake())?,
            machine: Recorded::new(
                Prefill::with_decisions(machine, hello, pool, decisions),
                trace,
            ),
            driver,
            model,
            tokenizer,
            endpoints: Endpoints::new(*kv.layout(), sender, inbox),
            kv,
            scratch: Scratch::default(),
            sampler: Sampler::default(),
            jobs: BTreeMap::new(),
            chunk: config.chunk,
            computing: None,
            last: None,
            deadlines,
            stages: Stages::default(),
            ages: Ages::default(),
            owners,
            epoch: epoch.bits(),
        })
    }

    /// What is kept of jobs and attempts although there are none.
    pub(super) fn kept_at_rest(&mut self) -> Vec<&'static str> {
        let of_attempts = |timer: &Timer| match timer {
            Timer::Attempt(_) | Timer::Retry(_) | Timer::Answer(_) => true,
            Timer::Peer(_) | Timer::Greeting(_) | Timer::Cache => false,
        };
        let no_jobs = self.machine.load() == (0, 0);
        let rest = self.machine.at_rest();
        let kept = [
            ("jobs", no_jobs && !self.jobs.is_empty()),
            ("stages", rest && self.stages.attempts().next().is_some()),
            (
                "timers",
                rest && self.driver.timers.armed().any(of_attempts),
            ),
        ];
        let kept = kept.into_iter().filter(|(_, kept)| *kept);
        kept.map(|(what, _)| what).collect()
    }
}

impl<J: Decisions> driver::Engine for Engine<J> {
    const ROLE: &'static str = "prefill";
    type Own = Moved;
    type Timer = Timer;

    fn driver(&mut self) -> &mut DriverState<Moved, Timer> {
        &mut self.driver
    }

    fn up(&mut self, conn: Conn, role: Role) -> Result<(), WorkerError> {
        tracing::debug!(conn = conn.0, %role, "connected");
        match role {
            Role::Decode => self.tell(Event::Dialled(conn)),
            _ => Ok(()),
        }
    }

    fn message(
        &mut self,
        conn: Conn,
        role: Role,
        bytes: &[u8],
    ) -> Result<Result<(), String>, WorkerError> {
        let event = match role {
            Role::Gateway => codec::decode(bytes).map(|message| Event::FromGateway(conn, message)),
            _ => codec::decode(bytes).map(|message| Event::FromDecode(conn, message)),
        };
        match event {
            Ok(event) => self.tell(event).map(Ok),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn down(&mut self, conn: Conn) -> Result<(), WorkerError> {
        self.tell(Event::Disconnected(conn))
    }

    fn own(&mut self, moved: Moved) -> Result<(), WorkerError> {
        self.take_moved(moved)
    }

    fn fired(&mut self, timer: Timer) -> Result<(), WorkerError> {
        self.tell(Event::Fired(timer))
    }

    fn drain(&mut self) -> Result<(), WorkerError> {
        self.tell(Event::Drain)
    }

    fn busy(&self) -> bool {
        !self.able().is_empty()
    }

    fn step(&mut self) -> Result<(), WorkerError> {
        self.prefill_step()
    }

    fn say_ended(&mut self, conn: Conn, attempt: AttemptId, ending: Ending) {
        let ended = PrefillToGateway::Ended { attempt, ending };
        self.driver.links.send(conn, &ended);
    }

    fn facts(&mut self) -> Facts {
        let counts = self.machine.counts();
        let holders = match counts.quarantined {
            0 => Vec::new(),
            _ => self.machine.holders(),
        };
        self.driver.counters.dropped_grants = self.machine.dropped_grants();
        self.driver.counters.pages_scrubbed = self.kv.scrubbed();
        let arenas = (0, 0);
        let quarantine = self.ages.look(Instant::now(), &holders, arenas);
        Facts {
            epoch: self.epoch,
            draining: self.driver.draining(),
            peers: self.machine.peers(),
            pages: pages_of(counts),
            no_arena: false,
            quarantine,
            counters: self.driver.counters,
        }
    }
}
