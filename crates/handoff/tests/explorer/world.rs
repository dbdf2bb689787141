//! The world around the three machines: connections, arena memory, page contents, clients.

use handoff::decode::{self, Decode};
use handoff::gateway::{self, Gateway, Outcome};
use handoff::prefill::{self, Prefill};
use handoff::{
    ArenaId, Conn, DecodeToPrefill, HandoffId, Hello, OfferId, PrefillToDecode, RequestId, Role,
    Spec, SubmissionId,
};
use pages::{Config, Domain, Epoch, PageId, Pool, WriterLife};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const PAGE_SIZE: u16 = 2;
pub const ARENA_SLOTS: u32 = 2;
pub const G_P: Conn = Conn(1);
pub const G_D: Conn = Conn(2);

/// How many faults of each kind may happen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Faults {
    pub leaves: u8,
    pub failed_writes: u8,
    pub breaks: u8,
    pub deadlines: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub domain: u64,
    pub max_new: u32,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub prompts: Vec<Prompt>,
    pub prefill_pages: u32,
    pub decode_pages: u32,
    pub faults: Faults,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            prompts: vec![
                Prompt {
                    tokens: vec![1, 1, 1],
                    domain: 7,
                    max_new: 2,
                },
                Prompt {
                    tokens: vec![2, 2],
                    domain: 7,
                    max_new: 1,
                },
            ],
            prefill_pages: 3,
            decode_pages: 4,
            faults: Faults::default(),
        }
    }
}

/// What a page holds: the tokens up to its end, and whose they are. Nothing else may be read as it.
pub type Content = Option<(u64, Vec<u32>)>;

/// Pages that a sequence reads in a step, and what they held when it began.
pub type PagesRead = Vec<(PageId, Content)>;

/// One page write on its way. It reads its source when it lands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Flight {
    pub submission: SubmissionId,
    pub arena: ArenaId,
    pub source: PageId,
    pub slot: u32,
    /// Its submission was reported failed: this is a late write.
    pub late: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CopyInFlight {
    pub handoff: HandoffId,
    pub rank: u16,
    pub batch: u32,
    pub arena: ArenaId,
    pub pages: Vec<decode::CopyPage>,
}

#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    pub outcome: Option<Outcome>,
    pub begun: bool,
    pub finished: bool,
}

/// The connection between prefill and decode, as each side sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Link {
    pub conn: Conn,
    pub to_decode: VecDeque<PrefillToDecode>,
    pub to_prefill: VecDeque<DecodeToPrefill>,
}

#[derive(PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub gateway: Gateway,
    pub prefill: Prefill,
    pub decode: Decode,
    pub prompts: Vec<Prompt>,
    pub link: Option<Link>,
    /// A connection that P has lost and D has not noticed yet.
    pub stale: Option<Conn>,
    pub next_conn: u64,
    pub arenas: BTreeMap<ArenaId, (WriterLife, BTreeMap<u32, Content>)>,
    pub flights: Vec<Flight>,
    /// Submissions that were not reported yet.
    pub unreported: BTreeSet<SubmissionId>,
    pub copies: Vec<CopyInFlight>,
    pub fences: Vec<ArenaId>,
    pub detaching: Vec<ArenaId>,
    pub prefill_pages: BTreeMap<PageId, Content>,
    pub decode_pages: BTreeMap<PageId, Content>,
    pub chunk: Option<(OfferId, u32, u32)>,
    /// Sequences of the step in flight, and what their prompt pages held when it began.
    pub step: Option<Vec<(decode::Lane, PagesRead)>>,
    /// Prompt of every handoff that has started, and tokens generated.
    pub running: BTreeMap<HandoffId, (usize, u32)>,
    pub clients: Vec<Client>,
    pub prefill_timers: BTreeSet<prefill::Timer>,
    pub decode_timers: BTreeSet<decode::Timer>,
    pub gateway_timers: BTreeSet<gateway::Timer>,
    pub left: Faults,
    /// How often a busy D may be asked again; the world behind that is out of bounds.
    pub retries: u8,
}

/// What is not part of the state: what happened on the last step.
#[derive(Default)]
pub struct Notes {
    pub seen: BTreeSet<&'static str>,
    pub violation: Option<String>,
}

impl Notes {
    pub fn saw(&mut self, situation: &'static str) {
        self.seen.insert(situation);
    }

    pub fn violates(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }
}

impl World {
    pub fn new(setup: &Setup, notes: &mut Notes) -> Self {
        let hello = |bits, role| Hello {
            epoch: Epoch::new(bits),
            role,
            model: [1; 32],
            layout: [2; 32],
            capacity: None,
            ranks: 1,
        };
        let pool = |pages| {
            Pool::new(Config {
                pages,
                page_size: PAGE_SIZE,
                scrub: false,
            })
        };
        let (p_pool, _) = pool(setup.prefill_pages);
        let (d_pool, mint) = pool(setup.decode_pages);
        let p_config = prefill::Config {
            max_batch_pages: 1,
            max_flying: 2,
            ..prefill::Config::for_context(8, [3; 32])
        };
        let d_config = decode::Config {
            max_batch_pages: 1,
            ..decode::Config::for_pool(setup.decode_pages as usize, 8, [4; 32])
        };
        let mut world = Self {
            gateway: Gateway::new(gateway::Config::default(), hello(1, Role::Gateway)),
            prefill: Prefill::new(p_config, hello(2, Role::Prefill), p_pool),
            decode: Decode::new(d_config, hello(3, Role::Decode), d_pool, mint),
            prompts: setup.prompts.clone(),
            link: None,
            stale: None,
            next_conn: 3,
            arenas: BTreeMap::new(),
            flights: Vec::new(),
            unreported: BTreeSet::new(),
            copies: Vec::new(),
            fences: Vec::new(),
            detaching: Vec::new(),
            prefill_pages: BTreeMap::new(),
            decode_pages: BTreeMap::new(),
            chunk: None,
            step: None,
            running: BTreeMap::new(),
            clients: vec![Client::default(); setup.prompts.len()],
            prefill_timers: BTreeSet::new(),
            decode_timers: BTreeSet::new(),
            gateway_timers: BTreeSet::new(),
            left: setup.faults,
            retries: 1,
        };
        world.begin(notes);
        world
    }

    /// Connections come up, then both clients ask.
    fn begin(&mut self, notes: &mut Notes) {
        self.gateway_event(gateway::Event::PrefillDialled(G_P), notes);
        self.gateway_event(gateway::Event::DecodeDialled(G_D), notes);
        self.dial(notes);
        while self.deliver_to_decode(notes) || self.deliver_to_prefill(notes) {}
        for prompt in self.prompts.clone() {
            let spec = Spec {
                tokens: prompt.tokens,
                max_new: prompt.max_new,
                choices: 1,
                domain: Domain::new(prompt.domain),
                cache: true,
                sampling: Vec::new(),
            };
            let request = gateway::Event::Request {
                spec,
                deadline_ms: 1000,
            };
            self.gateway_event(request, notes);
        }
    }

    pub fn fork(&mut self) -> Self {
        Self {
            gateway: self.gateway.clone(),
            prefill: self.prefill.fork_for_checker(),
            decode: self.decode.fork_for_checker(),
            prompts: self.prompts.clone(),
            link: self.link.clone(),
            stale: self.stale,
            next_conn: self.next_conn,
            arenas: self.arenas.clone(),
            flights: self.flights.clone(),
            unreported: self.unreported.clone(),
            copies: self.copies.clone(),
            fences: self.fences.clone(),
            detaching: self.detaching.clone(),
            prefill_pages: self.prefill_pages.clone(),
            decode_pages: self.decode_pages.clone(),
            chunk: self.chunk,
            step: self.step.clone(),
            running: self.running.clone(),
            clients: self.clients.clone(),
            prefill_timers: self.prefill_timers.clone(),
            decode_timers: self.decode_timers.clone(),
            gateway_timers: self.gateway_timers.clone(),
            left: self.left,
            retries: self.retries,
        }
    }

    /// What the page at `ordinal` of this prompt has to hold.
    pub fn expected(&self, prompt: usize, ordinal: usize) -> Content {
        let Prompt { tokens, domain, .. } = &self.prompts[prompt];
        let end = ((ordinal + 1) * PAGE_SIZE as usize).min(tokens.len());
        Some((*domain, tokens[..end].to_vec()))
    }

    pub fn prompt_of(&self, spec: &Spec) -> usize {
        let same = |prompt: &Prompt| {
            prompt.tokens == spec.tokens && Domain::new(prompt.domain) == spec.domain
        };
        self.prompts
            .iter()
            .position(same)
            .expect("a spec of this world")
    }

    pub fn client(&self, request: RequestId) -> usize {
        request.n as usize - 1
    }

    /// It waits for a retry that the bound does not allow: what follows is not explored.
    pub fn out_of_bounds(&self) -> bool {
        self.retries == 0
            && self
                .prefill_timers
                .iter()
                .any(|timer| matches!(timer, prefill::Timer::Retry(_)))
    }

    /// Nothing is going on any more (H-10, H-11).
    pub fn at_rest(&mut self) -> bool {
        self.clients.iter().all(|client| client.outcome.is_some())
            && self.gateway.load() == 0
            && self.prefill.at_rest()
            && self.decode.at_rest()
    }
}

/// A checksum that tells contents apart.
pub fn checksum(content: &Content) -> u32 {
    match content {
        None => 0,
        Some((domain, tokens)) => tokens.iter().fold(*domain as u32 + 1, |sum, token| {
            sum.wrapping_mul(31).wrapping_add(*token)
        }),
    }
}
