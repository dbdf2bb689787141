//! The decode machine: owner of D's pool, reader of what prefill wrote.
//!
//! Files, in the order of a handoff's life: [`expect`](self) (what the gateway announced), `offer`
//! (admission and ticket), `landing` (batches, certificates), `commit`, `run` (steps), `grow` (pages
//! for what is generated, and who is put back for it), `ending` (release), and across them `peer` (connections, Sync) and `arena` (fences).

mod arena;
mod commit;
mod ending;
mod event;
mod expect;
mod grow;
mod landing;
mod offer;
mod peer;
mod run;
mod state;

pub use event::{CheckPage, CopyPage, Effect, Event, Input, Lane, Output, Timer};

use crate::id::{AttemptMark, HandoffKey, LastId};
use crate::prefix::PrefixIndex;
use crate::{
    ArenaId, AttemptId, Broken, Capacity, Conn, Decisions, Entry, HandoffId, Hello, Role, Spec,
};
use pages::{Counts, Epoch, FenceMint, Misuse, Pool, Sound, VerifyFault, WriterGone};
use serde::Serialize;
use state::{Expected, Handoff, Peer, StepInFlight};
use std::collections::{BTreeMap, VecDeque};

/// Where prefill's writes land.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub enum Mode {
    /// In an arena of each writer's life, from which this worker copies: no peer writes into the
    /// pool.
    #[default]
    Landing,
    /// In the pages of this pool. Every rule holds as in the other mode, but between a commit and a
    /// late write stand certificates and fences alone. The ledger keeps a page from everybody until
    /// each of its writers is gone. No fabric of ours offers it yet, and the worker never asks.
    Direct,
}

/// Bounds and deadlines. Every queue has one, every wait has one (H-15).
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Config {
    /// Where prefill's writes land.
    pub mode: Mode,
    /// Largest sum of prompt and output.
    pub context: u32,
    /// Attempts expected or running at once.
    pub max_attempts: usize,
    /// Attempts whose turn is remembered while there is no room.
    pub max_intents: usize,
    /// Pages of one batch, at most.
    pub max_batch_pages: usize,
    /// Pages that a choice takes at its ticket for its output, at most, where it need not take all;
    /// at least 1.
    pub ahead_pages: usize,
    /// Pages granted to one prefill life and not committed, at most (H-16).
    pub max_pages_per_peer: usize,
    /// Tokens (prompt and maximum output of all choices) of one domain, at most (H-16).
    pub max_tokens_per_domain: u64,
    /// Prefill lives known at once.
    pub max_peers: usize,
    /// Integrity faults after which a life is refused for good; and incidents (arenas dropped
    /// together) whose memory was not given back yet, above which it is refused until it was.
    pub max_drops: u32,
    /// When P shall try again, milliseconds.
    pub busy_ms: u64,
    /// Time for the answer to a Cancel, milliseconds.
    pub cancel_ms: u64,
    /// Time for an arena with unsettled slots that others still use, milliseconds.
    pub unsettled_ms: u64,
    /// Time for a lost prefill life to come back, milliseconds.
    pub peer_ms: u64,
    /// Time for P's Sync after its Hello, and for an offer of an attempt whose turn is kept,
    /// milliseconds.
    pub answer_ms: u64,
    /// Until an arena that could not be made is tried again, milliseconds; twice as long after
    /// each further failure, up to 32 times.
    pub arena_ms: u64,
    /// How often unreferenced cached pages grow older, milliseconds: what was unused for two of these
    /// is given up. None: they stay until their room is needed.
    pub cache_age_ms: Option<u64>,
    /// Key of the prefix cache's hashes, drawn by the driver.
    pub prefix_secret: [u8; 32],
}

impl Config {
    /// Bounds for a worker whose pool has `pages` pages.
    pub fn for_pool(pages: usize, context: u32, prefix_secret: [u8; 32]) -> Self {
        Self {
            mode: Mode::Landing,
            context,
            max_attempts: 1024,
            max_intents: 256,
            max_batch_pages: 64,
            ahead_pages: 4,
            max_pages_per_peer: pages,
            max_tokens_per_domain: u64::MAX,
            max_peers: 64,
            max_drops: 8,
            busy_ms: 20,
            cancel_ms: 5_000,
            unsettled_ms: 2_000,
            peer_ms: 10_000,
            answer_ms: 10_000,
            arena_ms: 250,
            cache_age_ms: None,
            prefix_secret,
        }
    }
}

/// The machine. Its state is data; only the pool's handles in it are linear.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(bound = "")]
pub struct Decode<J: Decisions = Sound> {
    hello: Hello,
    config: Config,
    #[serde(skip)]
    decisions: J,
    pool: Pool<J>,
    mint: FenceMint,
    prefix: PrefixIndex,
    gateways: BTreeMap<Conn, Epoch>,
    /// Highest attempt that each gateway life has announced: an offer above it is early, one below
    /// it that is not expected is late.
    announced: BTreeMap<Epoch, AttemptMark>,
    prefills: BTreeMap<Conn, Epoch>,
    peers: BTreeMap<Epoch, Peer>,
    expected: BTreeMap<AttemptId, Expected>,
    handoffs: BTreeMap<HandoffKey, Handoff>,
    intents: VecDeque<AttemptId>,
    next_id: LastId,
    step: Option<StepInFlight>,
    draining: bool,
    #[serde(skip)]
    out: Vec<Effect>,
}

impl Decode {
    /// A machine for a pool that exists. `hello` is what this life says of itself; its capacity
    /// is replaced by what the pool measures (law: capacity is measured, not declared).
    pub fn new(config: Config, hello: Hello, pool: Pool, mint: FenceMint) -> Self {
        Self::with_decisions(config, hello, pool, mint, Sound)
    }
}

impl<J: Decisions> Decode<J> {
    /// The same under other decisions, for a laboratory.
    pub fn with_decisions(
        config: Config,
        hello: Hello,
        pool: Pool<J>,
        mint: FenceMint,
        decisions: J,
    ) -> Self {
        let capacity = Capacity::of(&pool, Role::Decode, config.context);
        Self {
            hello: Hello {
                role: Role::Decode,
                capacity: Some(capacity),
                ranks: 1,
                ..hello
            },
            prefix: PrefixIndex::new(config.prefix_secret),
            config,
            decisions,
            pool,
            mint,
            gateways: BTreeMap::new(),
            announced: BTreeMap::new(),
            prefills: BTreeMap::new(),
            peers: BTreeMap::new(),
            expected: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            intents: VecDeque::new(),
            next_id: LastId(0),
            step: None,
            draining: false,
            out: Vec::new(),
        }
    }

    /// Applies an event. The effects are to be carried out in order.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::FromGateway(conn, message) => self.handle_gateway(conn, message),
            Event::FromPrefill(conn, message) => self.handle_prefill(conn, message),
            Event::Disconnected(conn) => self.handle_disconnected(conn),
            Event::ArenaOpened {
                arena,
                slots,
                address,
            } => {
                self.handle_arena_opened(arena, slots, address);
            }
            Event::ArenaFailed { arena } => self.handle_arena_failed(arena),
            Event::ArenaLingers { arena } => self.handle_arena_lingers(arena),
            Event::ArenaReleased { arena } => self.handle_arena_released(arena),
            Event::Copied {
                handoff,
                rank,
                batch,
                checksums,
            } => {
                self.handle_copied(handoff, rank, batch, checksums);
            }
            Event::First(outputs) => self.handle_outputs(outputs),
            Event::StepBegin(lanes) => self.handle_step_begin(lanes),
            Event::StepEnd(outputs) => self.handle_step_end(outputs),
            Event::StepFailed(why) => self.handle_step_failed(why),
            Event::Fired(timer) => self.handle_fired(timer),
            Event::Drain => self.draining = true,
        }
        self.take_effects()
    }

    /// The arena has been fenced; the proof says that its writer's writes cannot be seen any more.
    pub fn handle_fenced(&mut self, arena: ArenaId, proof: WriterGone) -> Vec<Effect> {
        self.fenced(arena, proof);
        self.take_effects()
    }

    fn take_effects(&mut self) -> Vec<Effect> {
        // What was freed by the event is free first, and then whoever is short gets it.
        self.scrub();
        self.grow();
        self.scrub();
        self.watch_cache();
        std::mem::take(&mut self.out)
    }

    /// Has freed pages zeroed, before anything that comes later in the effects may use them.
    fn scrub(&mut self) {
        for page in self.pool.to_scrub() {
            self.out.push(Effect::Scrub { page });
            let scrubbed = self.pool.scrubbed(page);
            self.must(scrubbed);
        }
    }

    /// Cached pages are one age older; those that nobody has used for two are given up.
    fn cache_ages(&mut self) {
        let given_up = self.prefix.age(&mut self.pool);
        if let Some(pages @ 1..) = self.must(given_up) {
            self.out.push(Effect::Expired { pages });
        }
    }

    /// Has the cache grow older while there is something in it, if its pages' lifetime is bounded.
    fn watch_cache(&mut self) {
        if let Some(after_ms) = self.config.cache_age_ms
            && self.prefix.begins_to_age()
        {
            let timer = Timer::Cache;
            self.out.push(Effect::Arm { timer, after_ms });
        }
    }

    fn handle_fired(&mut self, timer: Timer) {
        match timer {
            Timer::Attempt(attempt) => self.attempt_deadline(attempt),
            Timer::Cancel(handoff) => self.cancel_deadline(handoff),
            Timer::Unsettled(arena) => self.drop_arena(arena),
            Timer::Peer(epoch) => self.peer_deadline(epoch),
            Timer::Greeting(conn) => self.greeting_deadline(conn),
            // P has not come back for it: others need not wait behind it.
            Timer::Turn(attempt) => self.intents.retain(|other| *other != attempt),
            Timer::Arena(epoch) => self.try_arenas_again(epoch),
            Timer::Cache => self.cache_ages(),
        }
    }

    fn arm(&mut self, timer: Timer, after_ms: u64) {
        self.out.push(Effect::Arm { timer, after_ms });
    }

    /// One of the machine's own rules is broken: the worker ends. Nothing that a peer says leads here.
    fn stop(&mut self, why: Broken) {
        self.out.push(Effect::FailStop(why));
    }

    /// What another book of the machine names is not where it must be.
    fn lost(&mut self, what: Entry) {
        self.stop(Broken::Lost(what));
    }

    /// A misuse of the ledger is a bug in this file or its neighbours: the worker ends.
    fn must<T>(&mut self, result: Result<T, Misuse>) -> Option<T> {
        must(&mut self.out, result)
    }

    /// What this life can take on: what its pool measures (law: capacity is measured, not declared).
    fn capacity(&self) -> Capacity {
        Capacity::of(&self.pool, Role::Decode, self.config.context)
    }

    fn mint_id(&mut self) -> u64 {
        self.next_id.0 += 1;
        self.next_id.0
    }

    fn name(&self, id: HandoffKey) -> HandoffId {
        HandoffId {
            epoch: self.hello.epoch,
            n: id.0,
        }
    }

    /// The key of a handoff of that name, if it is of this life.
    fn key(&self, handoff: HandoffId) -> Option<HandoffKey> {
        let ours = self.decisions.same_life(handoff.epoch, self.hello.epoch);
        ours.then_some(HandoffKey(handoff.n))
    }

    /// The handoff of that name, if it is of this life and still known.
    fn known(&self, handoff: HandoffId) -> Option<(HandoffKey, &Handoff)> {
        let key = self.key(handoff)?;
        Some((key, self.handoffs.get(&key)?))
    }

    fn known_mut(&mut self, handoff: HandoffId) -> Option<(HandoffKey, &mut Handoff)> {
        let key = self.key(handoff)?;
        Some((key, self.handoffs.get_mut(&key)?))
    }
}

/// The same where a part of the machine is borrowed.
fn must<T>(out: &mut Vec<Effect>, result: Result<T, Misuse>) -> Option<T> {
    result
        .map_err(|misuse| out.push(Effect::FailStop(misuse.into())))
        .ok()
}

/// Questions.
impl<J: Decisions> Decode<J> {
    /// The attempt that a handoff serves, while it is known here.
    pub fn attempt_of(&self, handoff: HandoffId) -> Option<AttemptId> {
        Some(self.known(handoff)?.1.attempt)
    }

    /// What the gateway said of that attempt; none once it has ended, while its writers have not.
    pub fn spec_of(&self, handoff: HandoffId) -> Option<&Spec> {
        let attempt = self.attempt_of(handoff)?;
        Some(&self.expected.get(&attempt)?.spec)
    }

    /// What this life says of itself, with the measured capacity.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sequences that can take part in the next step, oldest first.
    pub fn runnable(&self) -> Vec<Lane> {
        let ready = |h: &Handoff, choice: usize| {
            h.started && !h.sequences[choice].done && !h.is_short(choice)
        };
        self.lanes_that(ready).collect()
    }

    /// Sequences that have no page for their next token and wait for one (H-19), oldest first.
    pub fn short(&self) -> Vec<Lane> {
        let lanes = self.lanes_that(|h, choice| h.is_short(choice));
        lanes.collect()
    }

    /// The oldest sequence that has not ended. It is never short of a page between two steps.
    pub fn oldest(&self) -> Option<Lane> {
        self.lanes_that(|h, choice| !h.sequences[choice].done)
            .next()
    }

    fn lanes_that(&self, is: impl Fn(&Handoff, usize) -> bool) -> impl Iterator<Item = Lane> {
        let running = self.handoffs.iter().filter(|(_, h)| h.is_running());
        running.flat_map(move |(id, h)| {
            let choices = (0..h.sequences.len()).filter(|choice| is(h, *choice));
            let name = |choice| Lane {
                handoff: self.name(*id),
                choice: choice as u16,
            };
            choices.map(name).collect::<Vec<_>>()
        })
    }

    /// The block tables of the step in flight, verified, in the order of its lanes. Each sequence
    /// reads all it has and writes one token.
    pub fn verify(&mut self) -> Result<pages::Verified<'_>, VerifyFault> {
        self.verify_step(false)
    }

    /// The same, trusting no earlier check: the low-rate audit.
    pub fn verify_in_full(&mut self) -> Result<pages::Verified<'_>, VerifyFault> {
        self.verify_step(true)
    }

    /// Prefill lives that may offer now.
    pub fn peers(&self) -> u32 {
        self.peers
            .values()
            .filter(|peer| peer.synced.is_some() && !peer.refused)
            .count() as u32
    }

    /// Prefill lives that are connected and for which a landing arena could not be made: until it is
    /// tried again with success, their offers are answered Busy.
    pub fn without_arena(&self) -> u32 {
        let peers = self.peers.values();
        peers.filter(|peer| peer.retry.is_some()).count() as u32
    }

    /// Pages by state (H-10).
    pub fn counts(&mut self) -> Counts {
        self.pool.counts()
    }

    /// Attempts expected or running, and handoffs that are not forgotten yet.
    pub fn load(&self) -> (usize, usize) {
        (self.expected.len(), self.handoffs.len())
    }

    /// Grants that were dropped instead of given back; each costs its page.
    pub fn dropped_grants(&mut self) -> u64 {
        self.pool.dropped().0
    }

    /// Who holds what.
    pub fn holders(&mut self) -> Vec<pages::Holder> {
        self.pool.holders()
    }

    /// Whether nothing is going on and every page is free or cached (H-10, H-11).
    pub fn at_rest(&mut self) -> bool {
        let counts = self.pool.counts();
        self.expected.is_empty()
            && self.handoffs.is_empty()
            && self.step.is_none()
            && counts.free + counts.cached == counts.total()
    }
}

/// For checkers only: copies a whole world. Nothing in the product calls it.
#[doc(hidden)]
impl<J: Decisions> Decode<J> {
    pub fn fence_for_checker(&self, writer: pages::WriterLife) -> WriterGone {
        self.mint.fenced(writer)
    }

    /// What it mints is numbered from behind this number on.
    pub fn begin_at_for_checker(&mut self, number: u64) {
        self.next_id = LastId(number);
        self.pool.begin_at_for_checker(number);
        self.prefix.begin_at_for_checker(number);
    }

    /// Whether this life of prefill is refused for as long as this life of decode lasts.
    pub fn refuses_for_good_for_checker(&self, prefill: Epoch) -> bool {
        let peer = self.peers.get(&prefill);
        peer.is_some_and(|peer| peer.faults >= self.config.max_drops)
    }

    /// Takes a page away from everybody who holds it, by the ledger's own operations: whoever still
    /// names it in a table must be refused.
    pub fn take_away_for_checker(&mut self, page: pages::PageId) -> Result<(), Misuse> {
        let mut held = Vec::new();
        for h in self.handoffs.values_mut() {
            held.extend(h.prompt.extract_if(.., |of| of.id() == page));
            for sequence in &mut h.sequences {
                let own = sequence.own.extract_if(.., |own| own.page() == page);
                held.extend(own.map(crate::prefix::Page::Own));
            }
        }
        held.into_iter()
            .try_for_each(|page| page.give_back(&mut self.pool))?;
        self.prefix.forget_for_checker(&mut self.pool, page)
    }

    pub fn fork_for_checker(&mut self) -> Self {
        let pool = self.pool.fork_for_checker();
        Self {
            hello: self.hello.clone(),
            config: self.config.clone(),
            decisions: self.decisions,
            mint: pool.fork_mint_for_checker(&self.mint),
            prefix: self.prefix.fork_for_checker(&pool),
            gateways: self.gateways.clone(),
            announced: self.announced.clone(),
            prefills: self.prefills.clone(),
            peers: self.peers.clone(),
            expected: self.expected.clone(),
            handoffs: self
                .handoffs
                .iter()
                .map(|(id, h)| (*id, h.fork_for_checker(&pool)))
                .collect(),
            intents: self.intents.clone(),
            next_id: self.next_id,
            step: self.step.clone(),
            draining: self.draining,
            out: Vec::new(),
            pool,
        }
    }
}
