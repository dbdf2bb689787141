//! The prefill machine: owner of P's pool, writer into D's landing arenas.
//!
//! Files, in the order of a job's life: `queue` (what gateways send), `offer` (pages, offer, and the
//! answers to it), `chunk` (forward passes), `send` (batches), `close` (certificates and their
//! answers), and across them `peer` (connections, Sync) and `waits` (what D owes, and until when).

mod chunk;
mod close;
mod event;
mod offer;
mod peer;
mod queue;
mod send;
mod state;
mod waits;

pub use event::{Effect, Event, SendPage, Timer};

use crate::id::{JobKey, LastId, SubmissionKey};
use crate::prefix::PrefixIndex;
use crate::{
    AttemptId, Broken, Capacity, Conn, Decisions, Entry, Hello, Manifest, OfferId, Role, Spec,
    SubmissionId,
};
use pages::{Counts, Epoch, Misuse, Pool, Sound, VerifyFault};
use serde::Serialize;
use state::{Attempt, Job, Peer, Submission};
use std::collections::{BTreeMap, VecDeque};

/// Bounds and deadlines. Every queue has one, every wait has one (H-15).
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Config {
    /// Largest sum of prompt and output.
    pub context: u32,
    /// Attempts waiting, at most.
    pub max_queue: usize,
    /// Jobs towards one decode life that are not forgotten, at most: those that hold pages and those
    /// that only wait for an answer. So a D that does not answer holds its own places and nobody
    /// else's.
    pub max_jobs: usize,
    /// Pages of one batch, at most.
    pub max_batch_pages: usize,
    /// Batches of one job and rank in flight, at most.
    pub max_flying: usize,
    /// Prompt tokens of one domain waiting or computed, at most (H-16).
    pub max_tokens_per_domain: u64,
    /// Decode lives known at once.
    pub max_peers: usize,
    /// Time for a lost decode life to come back, milliseconds.
    pub peer_ms: u64,
    /// Time for D's next answer: to Hello and Sync, to an offer, a statement, a certificate;
    /// milliseconds. D answers between two steps, and Unsettled after its own deadline and fence.
    pub answer_ms: u64,
    /// How often unreferenced cached pages grow older, milliseconds: what was unused for two of these
    /// is given up. None: they stay until their room is needed.
    pub cache_age_ms: Option<u64>,
    /// Key of the prefix cache's hashes, drawn by the driver.
    pub prefix_secret: [u8; 32],
}

impl Config {
    /// Bounds for a worker.
    pub fn for_context(context: u32, prefix_secret: [u8; 32]) -> Self {
        Self {
            context,
            max_queue: 512,
            max_jobs: 8,
            max_batch_pages: 16,
            max_flying: 2,
            max_tokens_per_domain: u64::MAX,
            max_peers: 64,
            peer_ms: 10_000,
            answer_ms: 10_000,
            cache_age_ms: None,
            prefix_secret,
        }
    }
}

/// The machine. Its state is data; only the pool's handles in it are linear.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(bound = "")]
pub struct Prefill<J: Decisions = Sound> {
    hello: Hello,
    config: Config,
    #[serde(skip)]
    decisions: J,
    pool: Pool<J>,
    prefix: PrefixIndex,
    gateways: BTreeMap<Conn, Epoch>,
    /// Connections to decode, dialled; the epoch is known once D has said Hello.
    dialled: BTreeMap<Conn, Option<Epoch>>,
    peers: BTreeMap<Epoch, Peer>,
    attempts: BTreeMap<AttemptId, Attempt>,
    queue: VecDeque<AttemptId>,
    jobs: BTreeMap<JobKey, Job>,
    submissions: BTreeMap<SubmissionKey, Submission>,
    /// The job whose chunk is being computed.
    computing: Option<JobKey>,
    next_id: LastId,
    draining: bool,
    #[serde(skip)]
    out: Vec<Effect>,
}

impl Prefill {
    /// A machine for a pool that exists; the capacity is what the pool measures.
    pub fn new(config: Config, hello: Hello, pool: Pool) -> Self {
        Self::with_decisions(config, hello, pool, Sound)
    }
}

impl<J: Decisions> Prefill<J> {
    /// The same under other decisions, for a laboratory.
    pub fn with_decisions(config: Config, hello: Hello, pool: Pool<J>, decisions: J) -> Self {
        let capacity = Capacity::of(&pool, Role::Prefill, config.context);
        Self {
            hello: Hello {
                role: Role::Prefill,
                capacity: Some(capacity),
                ..hello
            },
            prefix: PrefixIndex::new(config.prefix_secret),
            config,
            decisions,
            pool,
            gateways: BTreeMap::new(),
            dialled: BTreeMap::new(),
            peers: BTreeMap::new(),
            attempts: BTreeMap::new(),
            queue: VecDeque::new(),
            jobs: BTreeMap::new(),
            submissions: BTreeMap::new(),
            computing: None,
            next_id: LastId(0),
            draining: false,
            out: Vec::new(),
        }
    }

    /// Applies an event. The effects are to be carried out in order.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::FromGateway(conn, message) => self.handle_gateway(conn, message),
            Event::FromDecode(conn, message) => self.handle_decode(conn, message),
            Event::Dialled(conn) => self.handle_dialled(conn),
            Event::Disconnected(conn) => self.handle_disconnected(conn),
            Event::Attached { arena, ok } => self.handle_attached(arena, ok),
            Event::Written { submission, ok } => self.handle_written(submission, ok),
            Event::Detached { arena } => self.handle_detached(arena),
            Event::ChunkBegin { offer, tokens } => self.handle_chunk_begin(offer, tokens),
            Event::ChunkEnd {
                offer,
                checksums,
                first,
            } => {
                self.handle_chunk_end(offer, &checksums, first);
            }
            Event::ChunkFailed { offer, why } => self.handle_chunk_failed(offer, why),
            Event::Fired(Timer::Attempt(attempt)) => self.attempt_deadline(attempt),
            Event::Fired(Timer::Retry(attempt)) => self.retry(attempt),
            Event::Fired(Timer::Peer(epoch)) => self.peer_deadline(epoch),
            Event::Fired(Timer::Greeting(conn)) => self.greeting_deadline(conn),
            Event::Fired(Timer::Answer(offer)) => self.answer_deadline(offer),
            Event::Fired(Timer::Cache) => self.cache_ages(),
            Event::Drain => self.draining = true,
        }
        // First what was freed becomes free, for nobody else looks until the next event.
        self.scrub();
        self.offer_more();
        self.scrub();
        self.watch_answers();
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
        Capacity::of(&self.pool, Role::Prefill, self.config.context)
    }

    fn mint_id(&mut self) -> u64 {
        self.next_id.0 += 1;
        self.next_id.0
    }

    fn name(&self, id: JobKey) -> OfferId {
        OfferId {
            epoch: self.hello.epoch,
            n: id.0,
        }
    }
}

/// The same where a part of the machine is borrowed.
fn must<T>(out: &mut Vec<Effect>, result: Result<T, Misuse>) -> Option<T> {
    result
        .map_err(|misuse| out.push(Effect::FailStop(misuse.into())))
        .ok()
}

/// Questions.
impl<J: Decisions> Prefill<J> {
    /// What this life says of itself, with the measured capacity.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Jobs with a ticket and tokens to compute, oldest first.
    pub fn runnable(&self) -> Vec<OfferId> {
        let ready = self
            .jobs
            .iter()
            .filter(|(_, job)| job.can_compute(self.decisions));
        ready.map(|(id, _)| self.name(*id)).collect()
    }

    /// The block table of the chunk in flight, verified.
    pub fn verify(&mut self) -> Result<pages::Verified<'_>, VerifyFault> {
        self.verify_chunk(false)
    }

    /// The same, trusting no earlier check: the low-rate audit.
    pub fn verify_in_full(&mut self) -> Result<pages::Verified<'_>, VerifyFault> {
        self.verify_chunk(true)
    }

    /// What a job is about.
    pub fn spec(&self, offer: OfferId) -> Option<&Spec> {
        self.jobs
            .get(&JobKey(offer.n))
            .filter(|_| offer.epoch == self.hello.epoch)
            .map(|job| &job.spec)
    }

    /// Decode lives that offers can go to now.
    pub fn peers(&self) -> u32 {
        self.peers.values().filter(|peer| peer.synced).count() as u32
    }

    /// Pages by state (H-10).
    pub fn counts(&mut self) -> Counts {
        self.pool.counts()
    }

    /// Attempts waiting, and jobs that are not forgotten yet.
    pub fn load(&self) -> (usize, usize) {
        (self.queue.len(), self.jobs.len())
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
        self.attempts.is_empty()
            && self.jobs.is_empty()
            && self.submissions.is_empty()
            && counts.free + counts.cached == counts.total()
    }
}

/// For checkers only: copies a whole world. Nothing in the product calls it.
#[doc(hidden)]
impl<J: Decisions> Prefill<J> {
    /// What it mints is numbered from behind this number on.
    pub fn begin_at_for_checker(&mut self, number: u64) {
        self.next_id = LastId(number);
        self.pool.begin_at_for_checker(number);
        self.prefix.begin_at_for_checker(number);
    }

    /// What a submission is about, while it is known here.
    pub fn submission_for_checker(&self, submission: SubmissionId) -> Option<&Manifest> {
        let sent = self.submissions.get(&SubmissionKey(submission.n))?;
        Some(&sent.manifest)
    }

    /// Takes a page away from everybody who holds it, by the ledger's own operations: whoever still
    /// names it in a table must be refused.
    pub fn take_away_for_checker(&mut self, page: pages::PageId) -> Result<(), Misuse> {
        let mut held = Vec::new();
        for job in self.jobs.values_mut() {
            held.extend(job.pages.extract_if(.., |of| of.id() == page));
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
            prefix: self.prefix.fork_for_checker(&pool),
            gateways: self.gateways.clone(),
            dialled: self.dialled.clone(),
            peers: self.peers.clone(),
            attempts: self.attempts.clone(),
            queue: self.queue.clone(),
            jobs: self
                .jobs
                .iter()
                .map(|(id, job)| (*id, job.fork_for_checker(&pool)))
                .collect(),
            submissions: self.submissions.clone(),
            computing: self.computing,
            next_id: self.next_id,
            draining: self.draining,
            out: Vec::new(),
            pool,
        }
    }
}
