//! What a world consists of, and what may go wrong in it.

mod growth;
mod list;
mod setups;

pub use list::{ALL, Scenario};

use serde::{Deserialize, Serialize};
use std::fmt;

/// How many faults of each kind may happen. A field each, so that a scenario reads as a list.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Faults {
    /// A client goes away.
    pub leaves: u8,
    /// A client's side needs no more of a choice.
    pub stops: u8,
    /// A submission is reported failed; what it wrote may land at any time, or never.
    pub failed_writes: u8,
    /// A write lands, and lands once more at any later time.
    pub echoes: u8,
    /// A bit flips in flight.
    pub corruptions: u8,
    /// A write is taken for landed by its fabric and never lands.
    pub losses: u8,
    /// P's last batch is cut off after the offer: P certifies less than it was told.
    pub truncations: u8,
    /// One side loses the connection between prefill and decode.
    pub breaks: u8,
    /// The gateway or a worker loses the connection between them.
    pub gateway_breaks: u8,
    /// A deadline passes, any one that is armed.
    pub deadlines: u8,
    /// A prefill process ends.
    pub prefill_kills: u8,
    /// A new prefill process begins, whether or not the old one has ended.
    pub prefill_spawns: u8,
    /// A decode process ends.
    pub decode_kills: u8,
    /// A new decode process begins, whether or not the old one has ended.
    pub decode_spawns: u8,
    /// A message that was lost with a connection or a life arrives on another connection.
    pub stale: u8,
    /// A forward pass fails, at prefill or at decode, or a copy does.
    pub failed_computes: u8,
    /// A worker is told to drain.
    pub drains: u8,
    /// A dropped arena is still mapped by its writer; its memory is given back at any later time.
    pub lingers: u8,
    /// A worker's process stops, and goes on at any later time.
    pub hangs: u8,
    /// The gateway's process ends, and a new one begins.
    pub gateway_spawns: u8,
    /// An arena cannot be made, or prefill cannot attach to it.
    pub failed_arenas: u8,
    /// Faults of all kinds together, at most; none: as many as there are of each.
    pub together: Option<u8>,
}

impl Faults {
    /// So many of these may happen in one run.
    pub fn together(self, most: u8) -> Self {
        Self {
            together: Some(most),
            ..self
        }
    }

    /// One has happened. Where it was the last, kinds that leave no bytes or messages behind that are
    /// not what they were are not counted any more, so that worlds do not differ in what can never
    /// happen; the others say whether an integrity fault has a reason.
    pub fn one_less(&mut self) {
        let Some(left) = &mut self.together else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        *self = Self {
            together: Some(0),
            failed_writes: self.failed_writes,
            echoes: self.echoes,
            corruptions: self.corruptions,
            losses: self.losses,
            truncations: self.truncations,
            stale: self.stale,
            prefill_kills: self.prefill_kills,
            ..Self::default()
        };
    }
}

/// One client and what it asks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Tenant.
    pub domain: u64,
    /// Tokens to generate at most.
    pub max_new: u32,
    /// Answers wanted.
    pub choices: u16,
    /// Whether its prefix may be cached.
    pub cache: bool,
}

impl Prompt {
    /// One answer, without a cache.
    pub fn new(tokens: &[u32], max_new: u32) -> Self {
        Self {
            tokens: tokens.to_vec(),
            domain: 7,
            max_new,
            choices: 1,
            cache: false,
        }
    }

    /// Of another tenant.
    pub fn of(self, domain: u64) -> Self {
        Self { domain, ..self }
    }

    /// With the prefix cache.
    pub fn cached(self) -> Self {
        Self {
            cache: true,
            ..self
        }
    }

    /// With several answers.
    pub fn choices(self, choices: u16) -> Self {
        Self { choices, ..self }
    }
}

/// Where P's writes land.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// In an arena, from which D copies.
    Landing,
    /// In D's pages.
    Direct,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Landing => "landing",
            Self::Direct => "direct",
        })
    }
}

/// A whole world before anything has happened.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Who asks what; they ask in this order.
    pub prompts: Vec<Prompt>,
    /// Whether all ask at the very beginning, instead of each at any moment.
    pub at_once: bool,
    /// Prefill workers.
    pub prefills: usize,
    /// Decode workers.
    pub decodes: usize,
    /// Pages of each prefill pool.
    pub prefill_pages: u32,
    /// Pages of each decode pool.
    pub decode_pages: u32,
    /// Ranks of each prefill worker.
    pub ranks: u16,
    /// Slots of an arena.
    pub arena_slots: u32,
    /// Pages of a batch, at most.
    pub batch_pages: usize,
    /// Pages that an answer takes at its ticket, at most; it gets others as it needs them.
    pub ahead: usize,
    /// Batches in flight, at most.
    pub flying: usize,
    /// Tokens of a chunk, at most.
    pub chunk: u32,
    /// Largest sum of prompt and output that workers were started for.
    pub context: u32,
    /// Sequences of one step, at most; 0: all that run.
    pub lanes: usize,
    /// Jobs that hold pages at one prefill, at most; 0: as many as it takes by itself.
    pub jobs: usize,
    /// Prefill lives that a decode knows at once, at most; 0: as many as it takes by itself.
    pub peers: usize,
    /// Decode lives that a prefill knows at once, at most; 0: as many as it takes by itself.
    pub known_decodes: usize,
    /// Whether it takes time to make an arena, and to attach to it. Otherwise it is done at once.
    pub slow_arenas: bool,
    /// Dropped arenas after which D refuses a life for good.
    pub max_drops: u32,
    /// Pages granted to one prefill life and not committed, at most; 0: no cap.
    pub pages_per_peer: usize,
    /// Tokens in flight of one domain, at most; 0: no cap.
    pub tokens_per_domain: u64,
    /// Whether freed pages are zeroed.
    pub scrub: bool,
    /// Whether the lifetime of cached pages that nobody uses is bounded.
    pub cache_ages: bool,
    /// What P says of its pool to the gateway, in pages, if that is not the truth.
    pub overstated: Option<u32>,
    /// Whether messages between gateway and workers take their time. Otherwise they arrive at once.
    pub slow_gateway: bool,
    /// Where writes land.
    pub mode: Mode,
    /// Whether lives of one role have numbers that no two of them share. They do not in what ships:
    /// every life counts from one, so whoever forgets to compare lives takes one for another.
    pub numbers_apart: bool,
    /// What may go wrong.
    pub faults: Faults,
}

impl Setup {
    /// Behind which number this life of a role begins to mint.
    pub(crate) fn first_number(&self, life: usize) -> u64 {
        u64::from(self.numbers_apart) * life as u64 * 1_000_000
    }
}

impl Default for Setup {
    /// One P, one D, two requests that do not both fit into D at once.
    fn default() -> Self {
        Self {
            prompts: vec![Prompt::new(&[1, 1, 1], 2), Prompt::new(&[2, 2], 2).of(9)],
            at_once: true,
            prefills: 1,
            decodes: 1,
            prefill_pages: 3,
            decode_pages: 4,
            ranks: 1,
            arena_slots: 2,
            batch_pages: 1,
            ahead: 4,
            flying: 2,
            chunk: 2,
            context: 8,
            lanes: 0,
            jobs: 0,
            peers: 0,
            known_decodes: 0,
            slow_arenas: false,
            max_drops: 8,
            pages_per_peer: 0,
            tokens_per_domain: 0,
            scrub: false,
            cache_ages: false,
            overstated: None,
            slow_gateway: false,
            mode: Mode::Landing,
            numbers_apart: false,
            faults: Faults::default(),
        }
    }
}
