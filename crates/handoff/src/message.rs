//! What the three parties say to each other (handoff.md, "Planes").

use crate::{ArenaId, AttemptId, Capacity, HandoffId, LinkId, OfferId};
use pages::{Domain, Epoch, PageId, StatedTag};
use serde::{Deserialize, Serialize};

/// A role in the handoff.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Builds the KV cache of prompts.
    Prefill,
    /// Generates.
    Decode,
    /// Takes requests.
    Gateway,
}

/// First message on every connection, in both directions. Any difference in what must be equal is
/// an error here, once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// This life.
    pub epoch: Epoch,
    /// What the sender is.
    pub role: Role,
    /// Fingerprint of weights, tokenizer and numeric path.
    pub model: [u8; 32],
    /// Fingerprint of the page layout: page size, layers, heads, dtype, RoPE, order.
    pub layout: [u8; 32],
    /// What the sender's pool can hold. A gateway has none.
    pub capacity: Option<Capacity>,
    /// Ranks that write, for prefill; 1 otherwise.
    pub ranks: u16,
}

/// What is to be computed. The core reads counts and the domain; how tokens are sampled is bytes
/// to it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The prompt, as the gateway tokenized it.
    pub tokens: Vec<u32>,
    /// Tokens to generate at most, for each choice; at least 1.
    pub max_new: u32,
    /// Answers wanted; at least 1.
    pub choices: u16,
    /// Isolation domain: one tenant.
    pub domain: Domain,
    /// Whether the prefix may come from and go to the cache.
    pub cache: bool,
    /// Sampling parameters and stop rules, opaque to the core.
    pub sampling: Vec<u8>,
    /// How decode comes by the pages of the output.
    pub pages: Reserve,
    /// Set where an answer that was put back goes on.
    pub resumes: Option<Resumed>,
}

/// How decode comes by the pages of an answer (H-19).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum Reserve {
    /// Those of the prompt and a few more at the ticket, others as it grows. It may be put back
    /// when an older one needs what it holds.
    #[default]
    AsNeeded,
    /// All that it can ever need, at the ticket. It is never put back.
    All,
}

/// An answer that goes on after decode had put it back (H-20).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Resumed {
    /// Tokens at the end of the prompt that are output already: the client has them.
    pub said: u32,
    /// Which choice of the request the only choice of this attempt is.
    pub choice: u16,
}

impl Spec {
    /// Tokens that the client asked with, and those that were generated behind them.
    pub fn split(&self) -> (&[u32], &[u32]) {
        let said = self.resumes.map_or(0, |resumed| resumed.said as usize);
        let asked = self.tokens.len().saturating_sub(said);
        self.tokens.split_at(asked)
    }

    /// The choice of the request that choice `lane` of this attempt is.
    pub fn choice(&self, lane: u16) -> u16 {
        self.resumes
            .map_or(lane, |resumed| resumed.choice.saturating_add(lane))
    }
}

impl Spec {
    /// One choice, without the cache, nothing said about sampling.
    pub const fn new(domain: Domain, tokens: Vec<u32>, max_new: u32) -> Self {
        Self {
            tokens,
            max_new,
            choices: 1,
            domain,
            cache: false,
            sampling: Vec::new(),
            pages: Reserve::AsNeeded,
            resumes: None,
        }
    }
}

/// Digest over token ids; what P claims to hold must equal what D was told.
pub fn digest(tokens: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Gateway to decode.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum GatewayToDecode {
    /// First message.
    Hello(Hello),
    /// Expect this attempt from that prefill life. Answered `Expecting` or `Ended`.
    Expect {
        /// The attempt.
        attempt: AttemptId,
        /// What is to be computed.
        spec: Spec,
        /// The only prefill life that may offer it.
        prefill: Epoch,
        /// Time for the whole attempt, milliseconds.
        deadline_ms: u64,
    },
    /// The client has left, or the attempt is over. Answered `Ended`.
    Cancel {
        /// The attempt.
        attempt: AttemptId,
    },
    /// One choice needs no more tokens (a stop string matched).
    StopChoice {
        /// The attempt.
        attempt: AttemptId,
        /// The choice.
        choice: u16,
    },
}

/// Decode to gateway.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DecodeToGateway {
    /// First message.
    Hello(Hello),
    /// The expectation is registered; the attempt may go to prefill.
    Expecting {
        /// The attempt.
        attempt: AttemptId,
    },
    /// The cache is verified and sealed: an answer may begin.
    Committed {
        /// The attempt.
        attempt: AttemptId,
        /// Prompt tokens that came from decode's own cache.
        cached_tokens: u32,
    },
    /// Output of one choice, opaque to the core.
    Tokens {
        /// The attempt.
        attempt: AttemptId,
        /// The choice.
        choice: u16,
        /// Its id.
        token: u32,
        /// What was sampled.
        payload: Vec<u8>,
        /// Set with the last output of this choice.
        finish: Option<Finish>,
    },
    /// Nothing more of this choice comes in this attempt: its pages went to an older sequence. What
    /// was said of it stands, and the gateway has it computed further as another attempt.
    PutBack {
        /// The attempt.
        attempt: AttemptId,
        /// The choice.
        choice: u16,
    },
    /// The attempt is over here. Nothing about it follows.
    Ended {
        /// The attempt.
        attempt: AttemptId,
        /// How.
        ending: Ending,
    },
}

/// Gateway to prefill.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum GatewayToPrefill {
    /// First message.
    Hello(Hello),
    /// Prefill this and hand it to that decode life. Answered, sooner or later, by `Ended`.
    Attempt {
        /// The attempt.
        attempt: AttemptId,
        /// What is to be computed.
        spec: Spec,
        /// The decode life that expects it.
        decode: Epoch,
        /// Time for the whole attempt, milliseconds.
        deadline_ms: u64,
    },
    /// Not wanted any more. Obeyed while P holds no ticket; the answer is `Ended` in any case.
    Withdraw {
        /// The attempt.
        attempt: AttemptId,
    },
}

/// Prefill to gateway.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PrefillToGateway {
    /// First message.
    Hello(Hello),
    /// The attempt is over here.
    Ended {
        /// The attempt.
        attempt: AttemptId,
        /// How; `HandedOff` once D has committed it.
        ending: Ending,
    },
}

/// Prefill to decode.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PrefillToDecode {
    /// First message.
    Hello(Hello),
    /// P's snapshot, taken when the connection came up: every ticket it holds and every offer
    /// that was not answered. What it does not list it does not hold.
    Sync {
        /// The connection that it is said for.
        under: LinkId,
        /// Tickets.
        tickets: Vec<HandoffId>,
        /// Unanswered offers.
        offers: Vec<OfferId>,
    },
    /// P has reserved all its pages for this attempt.
    Offer {
        /// The offer.
        offer: OfferId,
        /// The gateway's attempt.
        attempt: AttemptId,
        /// Prompt tokens.
        count: u32,
        /// Digest over their ids.
        digest: [u8; 32],
    },
    /// A batch has landed, and this is what is in it.
    Landed(Manifest),
    /// Every write that this writer ever submitted for this handoff has completed (H-7).
    Closed {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank.
        rank: u16,
        /// With what.
        how: Closing,
    },
    /// A submission ended in another way than success: these slots may be written at any time.
    Unsettled {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank.
        rank: u16,
        /// Slots that never come back while their arena lives.
        slots: Vec<u32>,
    },
}

/// A writer's statement about a batch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The handoff.
    pub handoff: HandoffId,
    /// The writer's rank.
    pub rank: u16,
    /// The arena that it was written to.
    pub arena: ArenaId,
    /// Number of the batch in this handoff and rank, from 0.
    pub batch: u32,
    /// Its pages.
    pub pages: Vec<StatedPage>,
}

/// One page of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StatedPage {
    /// Slot of the arena; in direct mode the page of decode's pool.
    pub slot: u32,
    /// The tag that the ticket gave for this page.
    pub tag: StatedTag,
    /// Index in the sequence.
    pub ordinal: u32,
    /// Token slots filled.
    pub filled: u16,
    /// Checksum over exactly the filled slots.
    pub checksum: u32,
}

/// How a writer closes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Closing {
    /// All pages are sent and stated.
    Sealed {
        /// Batches stated.
        batches: u32,
        /// Pages in them.
        pages: u32,
        /// First token of every choice, opaque to the core; from exactly one writer.
        first: Option<Vec<u8>>,
    },
    /// It gave up; what it wrote has completed.
    Abandoned {
        /// What failed at P, if something did: its deadline, its forward pass, an integrity
        /// fault that it found. D ends the attempt with it, because the gateway may hear of the
        /// end from D first (law: rejected is terminal).
        why: Option<Failure>,
    },
}

/// Decode to prefill.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DecodeToPrefill {
    /// First message.
    Hello(Hello),
    /// Everything that Sync asked has been answered.
    Synced,
    /// D has granted pages for the offer.
    Ticket {
        /// The offer.
        offer: OfferId,
        /// D's id for what follows.
        handoff: HandoffId,
        /// The connection that it was granted under.
        under: LinkId,
        /// Tags of the pages, from `first` on.
        tags: Vec<StatedTag>,
        /// Ordinal of the first page to send; those before it are in D's cache.
        first: u32,
        /// Where each rank's writes land.
        landings: Vec<LandingSite>,
        /// Direct mode: the pages of decode's pool that are written, one for each tag; a write
        /// names them as its slots. Empty where writes land in slots that P picks.
        targets: Vec<PageId>,
    },
    /// What is offered is not what D was told of. The offer is over for good.
    Faulty {
        /// The offer.
        offer: OfferId,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Not now. The offer is over.
    Busy {
        /// The offer.
        offer: OfferId,
        /// When to try again.
        after_ms: u64,
    },
    /// D knows no such offer, or what it was for has ended.
    OfferEnded {
        /// The offer.
        offer: OfferId,
    },
    /// The batch is copied, verified and recorded; its slots are free.
    Taken {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank.
        rank: u16,
        /// The batch.
        batch: u32,
    },
    /// The cache is sealed. Answers Closed of every rank.
    Committed {
        /// The handoff.
        handoff: HandoffId,
    },
    /// D has no use for this handoff (any more): close it.
    Cancel {
        /// The handoff.
        handoff: HandoffId,
    },
    /// Ends the wait for an answer to Closed or Unsettled.
    Ended {
        /// The handoff.
        handoff: HandoffId,
        /// The writer's rank.
        rank: u16,
        /// Which message this answers. It is not the answer to another.
        answers: Answers,
    },
}

/// The message that an `Ended` answers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Answers {
    /// Closed: its slots are free.
    Closed,
    /// Unsettled: the arena has been fenced and is gone.
    Unsettled,
}

/// Where one rank's writes land.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LandingSite {
    /// The rank.
    pub rank: u16,
    /// The arena.
    pub arena: ArenaId,
    /// Its slots, one page slice each; in direct mode the pages of decode's pool.
    pub slots: u32,
    /// How to reach it: the fabric's business.
    pub address: Vec<u8>,
}

/// Why an attempt is refused before anything was allocated for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Rejection {
    /// The prompt is longer than the measured limit.
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: u32,
        /// The limit.
        limit: u32,
        /// Whose.
        by: Role,
    },
    /// Prompt and maximum of new tokens together are longer than the measured limit.
    ContextTooLong {
        /// Tokens of the prompt.
        prompt: u32,
        /// New tokens asked for.
        max_new: u32,
        /// The limit of the sum.
        limit: u32,
        /// Whose.
        by: Role,
    },
    /// The pages that all choices together need are more than the pool has.
    TooManyPages {
        /// Pages needed.
        needed: u64,
        /// Pages of the pool.
        pool: u64,
        /// Whose.
        by: Role,
    },
    /// An empty prompt, no choice, or nothing to generate.
    Empty,
    /// Already known: ids are never reused (H-8).
    Duplicate,
}

/// How an attempt ended at a worker. A worker never knows the outcome of the request (H-6).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Ending {
    /// Decode: every choice has finished. Prefill: D has committed.
    Finished,
    /// Refused before anything was allocated.
    Rejected(Rejection),
    /// The gateway ended it.
    Cancelled,
    /// No room in a bounded queue, or draining: nothing was done.
    Refused(Refusal),
    /// It failed.
    Failed(Failure),
}

/// Why a worker takes nothing on now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The queue is full.
    QueueFull,
    /// The tenant has as much in flight as it may (H-16).
    TenantCap,
    /// The worker is draining.
    Draining,
    /// There is no usable connection to the peer.
    PeerUnavailable,
}

/// What failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Failure {
    /// A deadline passed in this stage (H-15).
    Deadline(Stage),
    /// The other worker abandoned it, or was lost.
    PeerFailed(Stage),
    /// A write ended without success.
    Unsettled,
    /// What arrived is not what was stated or granted.
    Integrity(Fault),
    /// The forward pass failed.
    Compute,
    /// The answer cannot be held to the form that its client asked for.
    Form,
}

/// Why a forward pass gave no token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NoToken {
    /// It failed.
    Compute,
    /// None may follow in the form that the client asked for.
    Form,
}

impl From<NoToken> for Failure {
    fn from(why: NoToken) -> Self {
        match why {
            NoToken::Compute => Self::Compute,
            NoToken::Form => Self::Form,
        }
    }
}

/// A stage of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Stage {
    /// Waiting for its turn.
    Queue,
    /// Prompt and transfer.
    Prefill,
    /// Between ticket and commit, at D.
    Transfer,
    /// Generation.
    Decode,
}

/// Integrity faults, each of its own kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// A tag that was not granted for this page.
    WrongTag,
    /// A page that does not belong there.
    WrongOrdinal,
    /// More or fewer slots than this page of this prompt has.
    WrongFill,
    /// The bytes are not those that were stated.
    WrongChecksum,
    /// A page stated twice.
    PageTwice,
    /// A batch number with other content than before, or a slot used twice.
    BadBatch,
    /// The certificate counts other pages or batches than were stated.
    Short,
    /// No writer, or more than one, stated the first token.
    FirstToken,
    /// Landed in an arena that is not this writer's.
    WrongArena,
    /// P holds another prompt than D was told of (H-2).
    WrongTokens,
    /// A page of the prompt never came, though the certificate counts what did.
    MissingPage,
    /// The worker found one of its own rules broken, such as a block table with a page that its
    /// sequence does not own, and ends (fail-stop).
    FailStop,
}

impl Fault {
    /// Its name in codes, counters and the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WrongTag => "wrong_tag",
            Self::WrongOrdinal => "wrong_order",
            Self::WrongFill => "wrong_fill",
            Self::WrongChecksum => "wrong_checksum",
            Self::PageTwice => "page_twice",
            Self::BadBatch => "bad_batch",
            Self::Short => "short_count",
            Self::FirstToken => "first_token",
            Self::WrongArena => "wrong_arena",
            Self::WrongTokens => "wrong_tokens",
            Self::MissingPage => "missing_page",
            Self::FailStop => "fail_stop",
        }
    }
}

/// Why a choice ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Finish {
    /// A token that ends a choice.
    Stop,
    /// The maximum of new tokens.
    Length,
}
