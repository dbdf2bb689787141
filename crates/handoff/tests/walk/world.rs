//! The world of a walk: machines, connections that break, memory that is written late, clients.

use handoff::decode::{self, Decode};
use handoff::gateway::{self, Gateway, Outcome};
use handoff::prefill::{self, Prefill};
use handoff::{
    ArenaId, Capacity, Conn, DecodeToGateway, DecodeToPrefill, GatewayToDecode, GatewayToPrefill,
    HandoffId, Hello, OfferId, PrefillToDecode, PrefillToGateway, Role, Spec, SubmissionId,
};
use pages::{Epoch, FenceMint, PageId, Pool, WriterLife};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const PAGE: u16 = 2;
pub const CONTEXT: u32 = 16;
pub const SLOTS: u32 = 3;
pub const GATEWAY: u128 = 1;

/// What a page holds: whose tokens, up to its end. Nothing else may be read as it.
pub type Content = Option<(u64, Vec<u32>)>;

/// Who is at an end of a connection. A stranger is nobody that follows any rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Node {
    Gateway,
    Prefill(usize),
    Decode(usize),
    Stranger,
}

#[derive(Clone, Debug)]
pub enum Message {
    ToPrefill(GatewayToPrefill),
    FromPrefill(PrefillToGateway),
    ToDecode(GatewayToDecode),
    FromDecode(DecodeToGateway),
    Handing(PrefillToDecode),
    Answering(DecodeToPrefill),
}

/// A connection; messages arrive in order or not at all.
pub struct Link {
    pub conn: Conn,
    pub ends: [Node; 2],
    /// On the way to each end.
    pub to: [VecDeque<Message>; 2],
}

pub struct Flight {
    pub of: usize,
    pub submission: SubmissionId,
    pub arena: ArenaId,
    pub source: PageId,
    pub slot: u32,
    /// Its process has ended: what it was reading then.
    pub kept: Option<Content>,
}

pub struct CopyInFlight {
    pub handoff: HandoffId,
    pub rank: u16,
    pub batch: u32,
    pub arena: ArenaId,
    pub pages: Vec<decode::CopyPage>,
}

pub struct PrefillSide {
    pub machine: Prefill,
    pub watch: crate::watch::prefill::Watch,
    pub ranks: u16,
    pub pages: BTreeMap<PageId, Content>,
    pub chunk: Option<(OfferId, u32, u32)>,
    pub timers: BTreeSet<prefill::Timer>,
    pub attaching: Vec<ArenaId>,
    pub detaching: Vec<ArenaId>,
    /// Submissions whose end was not reported.
    pub unreported: BTreeMap<SubmissionId, ArenaId>,
}

/// What a sequence read when its step began.
pub type Reads = Vec<(PageId, Vec<Content>)>;

pub struct DecodeSide {
    pub machine: Decode,
    pub watch: crate::watch::decode::Watch,
    pub mint: FenceMint,
    pub arenas: BTreeMap<ArenaId, (WriterLife, BTreeMap<u32, Content>)>,
    pub opening: Vec<(ArenaId, WriterLife)>,
    pub copies: Vec<CopyInFlight>,
    pub fences: Vec<ArenaId>,
    /// Dropped and still mapped.
    pub lingering: Vec<ArenaId>,
    /// Which handoff filled a page, and what is in every rank's slice of it.
    pub pages: BTreeMap<PageId, (HandoffId, BTreeMap<u16, Content>)>,
    pub starts: Vec<(HandoffId, Spec)>,
    /// Tokens generated in every sequence that runs, and what for.
    pub voices: BTreeMap<decode::Lane, (u32, Spec)>,
    pub step: Option<Vec<(decode::Lane, Reads)>>,
    pub timers: BTreeSet<decode::Timer>,
}

pub struct Client {
    pub spec: Spec,
    pub begun: bool,
    /// Tokens of each choice.
    pub said: BTreeMap<u16, usize>,
    pub outcome: Option<Outcome>,
}

pub struct World {
    pub gateway: Gateway,
    pub gateway_watch: crate::watch::gateway::Watch,
    pub gateway_timers: BTreeSet<gateway::Timer>,
    pub prefills: Vec<PrefillSide>,
    pub decodes: Vec<DecodeSide>,
    pub links: Vec<Link>,
    /// An end that has not noticed yet that its connection is gone.
    pub down: Vec<(Node, Conn)>,
    pub flights: Vec<Flight>,
    pub clients: BTreeMap<u64, Client>,
    pub next_conn: u64,
    pub next_life: u128,
    /// What a life is: this, times a number below 256.
    pub unit: u128,
    /// Connections that may still be made to each pair of nodes.
    pub dials: BTreeMap<(Node, Node), u32>,
    pub scrub: bool,
    /// What has happened, and how often: a walk on which nothing happens proves nothing.
    pub seen: BTreeMap<String, usize>,
    /// Everything that the machines did, without the lives, if anybody wants to know.
    pub story: Option<Vec<String>>,
}

pub fn hello(life: Epoch, role: Role, ranks: u16) -> Hello {
    let capacity = Capacity {
        role,
        pages: 12,
        page_size: PAGE,
        context: CONTEXT,
    };
    Hello {
        epoch: life,
        role,
        model: [1; 32],
        layout: [2; 32],
        capacity: (role != Role::Gateway).then_some(capacity),
        ranks,
    }
}

impl World {
    /// `ranks` of every prefill worker, and how many decode workers.
    pub fn new(ranks: &[u16], decodes: usize, scrub: bool) -> Self {
        Self::with_lives(u128::MAX / 255, ranks, decodes, scrub)
    }

    /// The same with lives that are multiples of `unit`.
    pub fn with_lives(unit: u128, ranks: &[u16], decodes: usize, scrub: bool) -> Self {
        let hello = hello(Epoch::new(GATEWAY * unit), Role::Gateway, 1);
        let machine = Gateway::new(gateway::Config::default(), hello);
        let mut world = Self {
            gateway: machine,
            gateway_watch: Default::default(),
            gateway_timers: BTreeSet::new(),
            prefills: Vec::new(),
            decodes: Vec::new(),
            links: Vec::new(),
            down: Vec::new(),
            flights: Vec::new(),
            clients: BTreeMap::new(),
            next_conn: 1,
            next_life: 100,
            unit,
            story: None,
            dials: BTreeMap::new(),
            scrub,
            seen: BTreeMap::new(),
        };
        for ranks in ranks {
            let side = world.prefill_side(*ranks);
            world.prefills.push(side);
        }
        for _ in 0..decodes {
            let side = world.decode_side();
            world.decodes.push(side);
        }
        world
    }

    pub fn life(&self, number: u128) -> Epoch {
        assert!(number < 256, "a life that does not fit one byte");
        Epoch::new(number * self.unit)
    }

    fn new_life(&mut self) -> Epoch {
        self.next_life += 1;
        self.life(self.next_life)
    }

    /// Writes down what a machine did.
    pub fn tell_story<E: std::fmt::Debug>(&mut self, effects: &[E]) {
        if let Some(story) = &mut self.story {
            let lines = effects
                .iter()
                .map(|effect| without_lives(&format!("{effect:?}")));
            story.extend(lines);
        }
    }

    fn pool(&self, pages: u32) -> (Pool, FenceMint) {
        let (page_size, scrub) = (PAGE, self.scrub);
        Pool::new(pages::Config {
            pages,
            page_size,
            scrub,
        })
    }

    pub fn prefill_side(&mut self, ranks: u16) -> PrefillSide {
        let life = self.new_life();
        let config = prefill::Config {
            max_batch_pages: 2,
            max_jobs: 3,
            max_queue: 16,
            cache_age_ms: Some(1),
            ..prefill::Config::for_context(CONTEXT, [3; 32])
        };
        let hello = hello(life, Role::Prefill, ranks);
        PrefillSide {
            machine: Prefill::new(config, hello, self.pool(12).0),
            watch: Default::default(),
            ranks,
            pages: BTreeMap::new(),
            chunk: None,
            timers: BTreeSet::new(),
            attaching: Vec::new(),
            detaching: Vec::new(),
            unreported: BTreeMap::new(),
        }
    }

    pub fn decode_side(&mut self) -> DecodeSide {
        let life = self.new_life();
        let config = decode::Config {
            max_batch_pages: 2,
            ahead_pages: 1,
            max_attempts: 16,
            max_intents: 2,
            max_pages_per_peer: 10,
            max_drops: 3,
            max_peers: 6,
            cache_age_ms: Some(1),
            ..decode::Config::for_pool(20, CONTEXT, [4; 32])
        };
        let (pool, mint) = self.pool(20);
        let lent = mint.lend();
        DecodeSide {
            machine: Decode::new(config, hello(life, Role::Decode, 1), pool, lent),
            watch: Default::default(),
            mint,
            arenas: BTreeMap::new(),
            opening: Vec::new(),
            copies: Vec::new(),
            fences: Vec::new(),
            lingering: Vec::new(),
            pages: BTreeMap::new(),
            starts: Vec::new(),
            voices: BTreeMap::new(),
            step: None,
            timers: BTreeSet::new(),
        }
    }

    /// Pairs of nodes that have a connection while nothing is broken: who dials, whom.
    pub fn pairs(&self) -> Vec<(Node, Node)> {
        let mut pairs = Vec::new();
        for p in 0..self.prefills.len() {
            pairs.push((Node::Gateway, Node::Prefill(p)));
            pairs.extend((0..self.decodes.len()).map(|d| (Node::Prefill(p), Node::Decode(d))));
        }
        pairs.extend((0..self.decodes.len()).map(|d| (Node::Gateway, Node::Decode(d))));
        pairs
    }

    pub fn linked(&self, pair: (Node, Node)) -> bool {
        self.links.iter().any(|link| link.ends == [pair.0, pair.1])
    }

    /// A new connection between these; its number.
    pub fn link(&mut self, from: Node, to: Node) -> Conn {
        let conn = Conn(self.next_conn);
        self.next_conn += 1;
        self.links.push(Link {
            conn,
            ends: [from, to],
            to: Default::default(),
        });
        conn
    }

    /// A connection is gone: what is on the way is lost, each end learns of it some time.
    pub fn cut(&mut self, conn: Conn) {
        let Some(at) = self.links.iter().position(|link| link.conn == conn) else {
            return;
        };
        let link = self.links.remove(at);
        self.down.extend(link.ends.map(|end| (end, conn)));
        self.down.retain(|(end, _)| *end != Node::Stranger);
    }

    /// Everything that a process held is gone with it.
    pub fn restart(&mut self, node: Node) {
        let of_node: Vec<Conn> = self
            .links
            .iter()
            .filter(|link| link.ends.contains(&node))
            .map(|link| link.conn)
            .collect();
        of_node.into_iter().for_each(|conn| self.cut(conn));
        self.down.retain(|(end, _)| *end != node);
        match node {
            Node::Prefill(p) => {
                // A child of it may go on writing what it had in its hands.
                let pages = &self.prefills[p].pages;
                let left = self.flights.iter_mut();
                for flight in left.filter(|f| f.of == p && f.kept.is_none()) {
                    flight.kept = Some(pages.get(&flight.source).cloned().flatten());
                }
                let ranks = self.prefills[p].ranks;
                self.prefills[p] = self.prefill_side(ranks);
            }
            Node::Decode(d) => self.decodes[d] = self.decode_side(),
            Node::Gateway | Node::Stranger => {}
        }
    }

    /// What the page at `ordinal` of this prompt has to hold.
    pub fn expected(spec: &Spec, ordinal: usize) -> Content {
        let end = ((ordinal + 1) * usize::from(PAGE)).min(spec.tokens.len());
        Some((spec.domain.value(), spec.tokens[..end].to_vec()))
    }

    pub fn saw(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    /// Nothing is going on any more (H-10, H-11).
    pub fn at_rest(&mut self) -> bool {
        self.gateway.load() == 0
            && self.clients.values().all(|client| client.outcome.is_some())
            && self.prefills.iter_mut().all(|p| p.machine.at_rest())
            && self.decodes.iter_mut().all(|d| d.machine.at_rest())
    }
}

/// What the answer of a request is told by: its first token and its domain.
pub fn mark(spec: &Spec) -> Vec<u8> {
    vec![spec.tokens[0] as u8, spec.domain.value() as u8]
}

/// What every model generates at a position.
pub fn token_at(position: usize) -> u32 {
    500 + position as u32
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

/// Of a life only that it is one.
fn without_lives(said: &str) -> String {
    let mut parts = said.split("Epoch(");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let behind = part.find(')').map_or(0, |end| end + 1);
        all.push_str(&part[behind..]);
    }
    all
}
