//! The engine: the decode machine, and everything that its effects need.

use super::copier::{Copied, Copier};
use crate::WorkerError;
use crate::choose::ChoiceState;
use crate::driver::{self, Deadlines, DriverState, Stages};
use crate::facts::pages_of;
use crate::masks::Masks;
use crate::quarantine::Ages;
use crate::start::{EngineConfig, Loaded};
use fabric::Receiver;
use handoff::decode::{Config, Decode, Event, Lane, Timer};
use handoff::{ArenaId, AttemptId, Conn, Decisions, DecodeToGateway, Ending, HandoffId, codec};
use model::sampling::Sampler;
use model::{KvMemory, Model, Scratch};
use pages::StatedTag;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tokenizer::Tokenizer;
use wire::control::Role;
use wire::trace::{Driver, OwnersLog, Recorded, Writer};
use wire::{Counters, Facts};

/// See the module's documentation.
pub(super) struct Engine<J: Decisions> {
    pub(super) machine: Recorded<Decode<J>>,
    pub(super) driver: DriverState<Copied, Timer>,
    pub(super) model: Model,
    pub(super) tokenizer: Tokenizer,
    pub(super) kv: KvMemory,
    pub(super) scratch: Scratch,
    pub(super) sampler: Sampler,
    pub(super) receiver: Box<dyn Receiver>,
    pub(super) copier: Copier,
    /// What is sampled, by sequence; exactly those that may run.
    pub(super) choice_states: BTreeMap<Lane, ChoiceState>,
    pub(super) masks: Masks,
    pub(super) max_batch: usize,
    /// Where the next step begins to choose among more sequences than it can take.
    pub(super) turn: usize,
    /// How long each stage of an attempt may take.
    pub(super) deadlines: Deadlines,
    pub(super) stages: Stages,
    pub(super) ages: Ages,
    /// Dropped arenas that somebody still maps, and when that is looked at next.
    pub(super) lingering: BTreeSet<ArenaId>,
    pub(super) next_look: Instant,
    /// What the ticket of every handoff that is not over has granted.
    pub(super) granted: BTreeMap<HandoffId, Granted>,
    /// Which page goes from whom to whom.
    pub(super) owners: Option<OwnersLog>,
    epoch: u128,
}

/// What a ticket has granted: for the audit log, and to know whose stage begins.
pub(super) struct Granted {
    pub(super) attempt: AttemptId,
    pub(super) tags: Vec<StatedTag>,
    /// Whether a batch of it has landed.
    pub(super) landing: bool,
}

impl<J: Decisions> Engine<J> {
    pub(super) fn new(
        loaded: Loaded<J>,
        config: &EngineConfig,
        deadlines: Deadlines,
        machine: Config,
        trace: Option<Writer>,
        driver: DriverState<Copied, Timer>,
        receiver: Box<dyn Receiver>,
        inbox: driver::Inbox<Copied>,
    ) -> Result<Self, WorkerError> {
        let Loaded {
            model,
            tokenizer,
            kv,
            pool,
            decisions,
            mint,
            hello,
            ..
        } = loaded;
        let owners = crate::open_owners(config, "decode", hello.epoch)?;
        let epoch = hello.epoch.bits();
        let machine = Decode::with_decisions(machine, hello, pool, mint, decisions);
        let waker = inbox.clone();
        Ok(Self {
            masks: Masks::start(&tokenizer, move || waker.wake())?,
            machine: Recorded::new(machine, trace),
            driver,
            model,
            tokenizer,
            copier: Copier::start(*kv.layout(), inbox)?,
            kv,
            scratch: Scratch::default(),
            sampler: Sampler::default(),
            receiver,
            choice_states: BTreeMap::new(),
            max_batch: config.max_batch,
            turn: 0,
            deadlines,
            stages: Stages::default(),
            ages: Ages::default(),
            lingering: BTreeSet::new(),
            next_look: Instant::now(),
            granted: BTreeMap::new(),
            owners,
            epoch,
        })
    }

    /// What is kept of attempts and handoffs although there are none.
    pub(super) fn kept_at_rest(&self) -> Vec<&'static str> {
        let of_attempts = |timer: &Timer| match timer {
            Timer::Attempt(_) | Timer::Cancel(_) | Timer::Turn(_) => true,
            Timer::Unsettled(_) | Timer::Peer(_) | Timer::Greeting(_) | Timer::Arena(_) => false,
            Timer::Cache => false,
        };
        if self.machine.load() != (0, 0) {
            return Vec::new();
        }
        let kept = [
            ("choice_states", !self.choice_states.is_empty()),
            ("grants", !self.granted.is_empty()),
            ("stages", self.stages.attempts().next().is_some()),
            ("timers", self.driver.timers.armed().any(of_attempts)),
        ];
        let kept = kept.into_iter().filter(|(_, kept)| *kept);
        kept.map(|(what, _)| what).collect()
    }
}

impl<J: Decisions> driver::Engine for Engine<J> {
    const ROLE: &'static str = "decode";
    type Own = Copied;
    type Timer = Timer;

    fn driver(&mut self) -> &mut DriverState<Copied, Timer> {
        &mut self.driver
    }

    /// The peer begins: nothing is said before its Hello.
    fn up(&mut self, conn: Conn, role: Role) -> Result<(), WorkerError> {
        tracing::debug!(conn = conn.0, %role, "connected");
        Ok(())
    }

    fn message(
        &mut self,
        conn: Conn,
        role: Role,
        bytes: &[u8],
    ) -> Result<Result<(), String>, WorkerError> {
        let event = match role {
            Role::Gateway => codec::decode(bytes).map(|message| Event::FromGateway(conn, message)),
            _ => {
                codec::decode(bytes).map(|message| Event::FromPrefill(conn, self.readable(message)))
            }
        };
        match event {
            Ok(event) => self.tell(event).map(Ok),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn down(&mut self, conn: Conn) -> Result<(), WorkerError> {
        self.tell(Event::Disconnected(conn))
    }

    fn own(&mut self, copied: Copied) -> Result<(), WorkerError> {
        self.take_copied(copied)
    }

    fn fired(&mut self, timer: Timer) -> Result<(), WorkerError> {
        self.tell(Event::Fired(timer))
    }

    fn drain(&mut self) -> Result<(), WorkerError> {
        self.tell(Event::Drain)
    }

    fn busy(&self) -> bool {
        !self.lanes().is_empty()
    }

    fn step(&mut self) -> Result<(), WorkerError> {
        self.look_at_dropped()?;
        self.end_lost()?;
        self.say_late()?;
        self.decode_step()
    }

    fn say_ended(&mut self, conn: Conn, attempt: AttemptId, ending: Ending) {
        let ended = DecodeToGateway::Ended { attempt, ending };
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
        let arenas = self.receiver.lingering();
        let quarantine = self.ages.look(Instant::now(), &holders, arenas);
        Facts {
            epoch: self.epoch,
            draining: self.driver.draining(),
            peers: self.machine.peers(),
            pages: pages_of(counts),
            no_arena: self.machine.without_arena() > 0 && self.receiver.arenas().is_empty(),
            quarantine,
            counters: Counters {
                attaches_refused: self.receiver.refusals().total(),
                ..self.driver.counters
            },
        }
    }
}
