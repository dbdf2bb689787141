//! The world around the three machines: connections, memory, writes that land when they like,
//! processes that end and begin again, clients. Everything that decides anything about a handoff
//! is the shipped code; here is only what a driver, a fabric and a kernel would do, as data.
//!
//! `state` is the data, `act` what can happen, `faults` what may go wrong; `links`, `fabric`,
//! `steps` let it happen; `gateway`, `prefill`, `decode` carry out the machines' effects.

mod act;
mod content;
mod decode;
mod fabric;
mod faults;
mod gateway;
mod links;
mod prefill;
mod said;
mod shared;
mod state;
mod steps;

pub use act::{Act, Deadline, End, Fault};
pub use content::{Cell, Cells, MAX_PROMPTS, MAX_RANKS, PAGE_SIZE, checksum, letter, show};
pub use shared::{Family, Fork, Kept, Shared, SharedMachine, View};
pub use state::{
    Arena, Chunk, Client, CopyInFlight, Counter, DecodeLife, Flight, FlightState, Link, Lost, Page,
    Pair, PrefillLife, Reading, Run, Slice, State,
};

use crate::encode::Canonical;
use crate::model::{Model, Notes};
use crate::scenario::{Mode, Prompt, Setup};
use crate::{properties, situations};
use handoff::decode::Decode;
use handoff::gateway::Gateway;
use handoff::prefill::Prefill;
use handoff::{Decisions, Hello, Role, Spec};
use pages::{Config, Domain, Epoch, Pool, Sound};
use shared::Families;
use std::sync::Arc;

// Lives of the gateway count from 1, those of prefill from 2^8, those of decode from 2^16.

/// A world that can be explored: a scenario's beginning, and the rules by which it goes on.
#[derive(Clone, Debug)]
pub struct World<J: Decisions = Sound> {
    /// What the machines decide with.
    pub decisions: J,
    /// What it consists of.
    pub setup: Setup,
    /// For every prompt and position the first prompt that has the same there.
    same: Vec<Vec<usize>>,
    families: Arc<Families<J>>,
}

impl World {
    /// A world of this setup, around the machines that ship.
    ///
    /// # Panics
    /// If the setup is larger than a world can be.
    pub fn new(setup: Setup) -> Self {
        Self::with_decisions(setup, Sound)
    }
}

impl<J: Decisions> World<J> {
    /// The same, with machines that decide otherwise.
    ///
    /// # Panics
    /// If the setup is larger than a world can be.
    pub fn with_decisions(setup: Setup, decisions: J) -> Self {
        assert!(setup.prompts.len() <= MAX_PROMPTS && usize::from(setup.ranks) <= MAX_RANKS);
        let first = |prompt: &Prompt, position: usize| {
            let alike = |other: &Prompt| {
                other.domain == prompt.domain
                    && other.tokens.get(..=position) == prompt.tokens.get(..=position)
            };
            setup.prompts.iter().position(alike).unwrap_or_default()
        };
        let positions = |prompt: &Prompt| {
            let positions = 0..prompt.tokens.len();
            positions.map(|position| first(prompt, position)).collect()
        };
        let same = setup.prompts.iter().map(positions).collect();
        Self {
            decisions,
            setup,
            same,
            families: Arc::default(),
        }
    }

    /// What a reader of this prompt must find at `position`: a token of the prompt, or one that was
    /// generated behind it.
    pub fn expected(&self, prompt: usize, choice: u16, position: usize) -> Cell {
        let same = &self.same[prompt];
        match same.get(position) {
            Some(first) => Cell::prompt(*first, position),
            None => Cell::generated(prompt, choice, (position - same.len()) as u32),
        }
    }

    /// The token that is generated as the `n`-th of a choice of this prompt: every model gives the
    /// same one there, whoever asks it.
    pub fn token(prompt: usize, choice: u16, n: u32) -> u32 {
        1000 + ((prompt as u32) << 12 | u32::from(choice) << 8 | n)
    }

    /// The first prompt that is computed from this spec, or of which it is a beginning.
    fn prompt_of(&self, spec: &Spec) -> Option<usize> {
        let of = |prompt: &Prompt| Domain::new(prompt.domain) == spec.domain;
        let prompts = &self.setup.prompts;
        let (asked, _) = spec.split();
        let whole = |prompt: &Prompt| of(prompt) && prompt.tokens == asked;
        let begins = |prompt: &Prompt| of(prompt) && prompt.tokens.starts_with(asked);
        let found = prompts.iter().position(whole);
        found.or_else(|| prompts.iter().position(begins))
    }

    /// By what a client knows its own answer: the first prompt that is the same as its own.
    pub fn mark(&self, client: usize) -> usize {
        self.prompt_of(&self.spec(client)).unwrap_or(client)
    }

    fn spec(&self, client: usize) -> Spec {
        let prompt = &self.setup.prompts[client];
        Spec {
            choices: prompt.choices,
            cache: prompt.cache,
            sampling: vec![client as u8],
            ..Spec::new(
                Domain::new(prompt.domain),
                prompt.tokens.clone(),
                prompt.max_new,
            )
        }
    }

    fn hello(&self, epoch: Epoch, role: Role) -> Hello {
        let ranks = if role == Role::Prefill {
            self.setup.ranks
        } else {
            1
        };
        Hello {
            epoch,
            role,
            model: [1; 32],
            layout: [2; 32],
            capacity: None,
            ranks,
        }
    }

    fn pool(&self, pages: u32) -> Config {
        let scrub = self.setup.scrub;
        Config {
            pages,
            page_size: PAGE_SIZE,
            scrub,
        }
    }

    fn spawn_prefill(&self, state: &mut State<J>, worker: u8) {
        let setup = &self.setup;
        let epoch = Epoch::new((1 << 8) + state.prefills.len() as u128);
        let (pool, _) = Pool::with_decisions(self.pool(setup.prefill_pages), self.decisions);
        let mut config = handoff::prefill::Config {
            max_batch_pages: setup.batch_pages,
            max_flying: setup.flying,
            cache_age_ms: setup.cache_ages.then_some(1),
            ..handoff::prefill::Config::for_context(setup.context, [3; 32])
        };
        if setup.jobs > 0 {
            config.max_jobs = setup.jobs;
        }
        if setup.known_decodes > 0 {
            config.max_peers = setup.known_decodes;
        }
        let mut machine = Prefill::with_decisions(
            config,
            self.hello(epoch, Role::Prefill),
            pool,
            self.decisions,
        );
        let p = state.prefills.len();
        machine.begin_at_for_checker(setup.first_number(p));
        state.undialled.insert(Pair::Asking(p));
        let decodes = (0..state.decodes.len()).map(|d| Pair::Handing(p, d));
        state.undialled.extend(decodes);
        let machine = Shared::new(machine, &self.families.prefill(epoch));
        state
            .prefills
            .push(Kept::new(PrefillLife::new(worker, epoch, machine)));
    }

    fn spawn_decode(&self, state: &mut State<J>, worker: u8) {
        let setup = &self.setup;
        let epoch = Epoch::new((1 << 16) + state.decodes.len() as u128);
        let (pool, mint) = Pool::with_decisions(self.pool(setup.decode_pages), self.decisions);
        let pages = setup.decode_pages as usize;
        let mut config = handoff::decode::Config {
            max_batch_pages: setup.batch_pages,
            ahead_pages: setup.ahead,
            max_drops: setup.max_drops,
            mode: match setup.mode {
                Mode::Landing => handoff::decode::Mode::Landing,
                Mode::Direct => handoff::decode::Mode::Direct,
            },
            cache_age_ms: setup.cache_ages.then_some(1),
            ..handoff::decode::Config::for_pool(pages, setup.context, [4; 32])
        };
        if setup.peers > 0 {
            config.max_peers = setup.peers;
        }
        if setup.pages_per_peer > 0 {
            config.max_pages_per_peer = setup.pages_per_peer;
        }
        if setup.tokens_per_domain > 0 {
            config.max_tokens_per_domain = setup.tokens_per_domain;
        }
        let mut machine = Decode::with_decisions(
            config,
            self.hello(epoch, Role::Decode),
            pool,
            mint,
            self.decisions,
        );
        let d = state.decodes.len();
        machine.begin_at_for_checker(setup.first_number(d));
        state.undialled.insert(Pair::Telling(d));
        let prefills = (0..state.prefills.len()).map(|p| Pair::Handing(p, d));
        state.undialled.extend(prefills);
        let machine = Shared::new(machine, &self.families.decode(epoch));
        state
            .decodes
            .push(Kept::new(DecodeLife::new(worker, epoch, machine)));
    }

    fn new_gateway(&self, life: u8) -> Shared<Gateway<J>> {
        let epoch = Epoch::new((1 << 4) + u128::from(life));
        let (config, hello) = (Default::default(), self.hello(epoch, Role::Gateway));
        let mut gateway = Gateway::with_decisions(config, hello, self.decisions);
        gateway.begin_at_for_checker(self.setup.first_number(life.into()));
        Shared::new(gateway, &self.families.gateway(epoch))
    }

    fn empty(&self) -> State<J> {
        State {
            gateway: self.new_gateway(0),
            gateway_lives: 0,
            gateway_timers: Default::default(),
            prefills: Vec::new(),
            decodes: Vec::new(),
            handing: Vec::new(),
            asking: Vec::new(),
            telling: Vec::new(),
            flights: Kept::default(),
            clients: Kept::new(self.setup.prompts.iter().map(Client::new).collect()),
            lost: Kept::default(),
            left: Kept::new(self.setup.faults),
            undialled: Default::default(),
            next_conn: Counter(0),
        }
    }

    /// All connections come up; what is said over them meanwhile arrives.
    fn begin(&self, notes: &mut Notes) -> State<J> {
        let mut state = self.empty();
        (0..self.setup.prefills as u8).for_each(|worker| self.spawn_prefill(&mut state, worker));
        (0..self.setup.decodes as u8).for_each(|worker| self.spawn_decode(&mut state, worker));
        while let Some(pair) = state.to_dial().first().copied() {
            self.dial(&mut state, pair, notes);
            let mut acts = vec![Act::Ask(0)];
            while !acts.is_empty() {
                acts.clear();
                state.acts(&self.setup, &mut acts);
                acts.retain(|act| matches!(act, Act::Deliver(..)));
                if let Some(act) = acts.first() {
                    self.step(&mut state, act, notes);
                }
            }
        }
        if self.setup.at_once {
            (0..self.setup.prompts.len()).for_each(|client| self.ask(&mut state, client, notes));
            self.settle_gateway(&mut state, notes);
        }
        state
    }
}

impl<J: Decisions> Model for World<J> {
    type State = State<J>;
    type Act = Act;

    fn initial(&self) -> (State<J>, Notes) {
        let mut notes = Notes::default();
        let state = self.begin(&mut notes);
        self.judge(&state, &mut notes);
        (state, notes)
    }

    fn acts(&self, state: &mut State<J>, out: &mut Vec<Act>) {
        state.acts(&self.setup, out);
    }

    fn overdue(&self, state: &mut State<J>, out: &mut Vec<Act>) {
        state.overdue(&self.setup, out);
    }

    fn is_fault(&self, act: &Act) -> bool {
        matches!(act, Act::Fault(_))
    }

    fn apply(&self, state: &mut State<J>, act: &Act, notes: &mut Notes) {
        match act {
            Act::Ask(client) => self.ask(state, *client, notes),
            Act::Deliver(conn, to) => drop(self.deliver(state, *conn, *to, notes)),
            Act::Notice(conn) => self.notice(state, *conn, notes),
            Act::Dial(pair) => self.dial(state, *pair, notes),
            Act::ChunkBegin(p, offer) => self.chunk_begin(state, *p, *offer, notes),
            Act::ChunkEnd(p) => self.chunk_end(state, *p, notes),
            Act::Land(at) => self.land(state, *at, false, notes),
            Act::Written(p, submission) => self.written(state, *p, *submission, true, notes),
            Act::Copied(d, at) => self.copied(state, *d, *at, notes),
            Act::Fenced(d, arena) => self.fenced(state, *d, *arena, notes),
            Act::Released(d, arena) => self.released(state, *d, *arena, notes),
            Act::Detached(p, arena) => self.detached(state, *p, *arena, notes),
            Act::First(d, at) => self.first(state, *d, *at, notes),
            Act::StepBegin(d) => self.step_begin(state, *d, None, notes),
            Act::StepOf(d, turn) => self.step_begin(state, *d, Some(*turn), notes),
            Act::Opened(d, arena) => self.opened(state, *d, *arena, notes),
            Act::Attached(p, arena) => {
                let ok = state.has_arena(*arena);
                self.attached(state, *p, *arena, ok, notes);
            }
            Act::PrefillGoesOn(p) => {
                notes.saw(situations::WENT_ON);
                state.prefills[*p].change().stopped = false;
            }
            Act::DecodeGoesOn(d) => {
                notes.saw(situations::WENT_ON);
                state.decodes[*d].change().stopped = false;
            }
            Act::StepEnd(d) => self.step_end(state, *d, notes),
            Act::Retry(p, timer) => self.retry(state, *p, *timer, notes),
            Act::OpenAgain(d, timer) | Act::GiveUpPrefill(d, timer) | Act::DecodeAges(d, timer) => {
                if matches!(act, Act::OpenAgain(..)) {
                    notes.saw(situations::ASKED_AGAIN);
                }
                state.decodes[*d].change().timers.remove(timer);
                let event = handoff::decode::Event::Fired(*timer);
                self.tell_decode(state, *d, event, notes);
            }
            Act::GiveUpDecode(p, timer) | Act::PrefillAges(p, timer) => {
                state.prefills[*p].change().timers.remove(timer);
                let event = handoff::prefill::Event::Fired(*timer);
                self.tell_prefill(state, *p, event, notes);
            }
            Act::Overdue(deadline) => self.passes(state, *deadline, notes),
            Act::Fault(fault) => self.fault(state, fault, notes),
        }
        self.settle_gateway(state, notes);
        self.leave_residue(state);
    }

    fn judge(&self, state: &State<J>, notes: &mut Notes) {
        properties::of_state(self, state, notes);
    }

    fn fork(&self, state: &mut State<J>) -> State<J> {
        state.clone()
    }

    fn at_rest(&self, state: &mut State<J>) -> bool {
        state.clients.iter().all(|client| client.outcome.is_some())
            && *state.gateway.view() == 0
            && state.prefills.iter().all(|life| {
                let machine = life.machine.as_ref();
                machine.is_none_or(|machine| machine.view().at_rest)
            })
            && state.decodes.iter().all(|life| {
                let machine = life.machine.as_ref();
                machine.is_none_or(|machine| machine.view().at_rest)
            })
    }

    fn encode(&self, state: &State<J>, out: &mut Canonical) {
        if out.is_parted() {
            out.parts(&state.parts(&state.own_part()));
        } else {
            out.value(state);
        }
    }

    fn describe(&self, before: &mut State<J>, act: &Act, _: &mut State<J>) -> Vec<String> {
        let mut notes = Notes::listening();
        let mut state = before.clone();
        self.apply(&mut state, act, &mut notes);
        let told = notes.told.unwrap_or_default();
        told.iter().map(|line| said::with_lane(line)).collect()
    }
}
