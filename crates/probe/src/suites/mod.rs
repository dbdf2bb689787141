//! The paths along which engines break, one suite each.

mod abort;
mod alive;
mod boundary;
mod coherence;
mod compare;
mod control;
mod crossed;
mod flood;
mod length;
mod load;
mod pair;
mod pair_rooms;
mod patience;
mod prefix;
mod prefix_named;
mod retry;
mod stream;

pub use length::{Base, NoLengths, PromptLengths};
pub use pair::Pair;

use crate::finding::{Kind, ProbeFinding, Sent, Symptom};
use crate::run::{ProbeRun, Spent};
use serde::Serialize;
use std::sync::OnceLock;

/// What is known of a server before the run: what was given, or what `gate` read.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Most tokens of a prompt. Found by bisection, below the context, if nobody knows.
    pub limit: Option<u64>,
    /// Tokens of the smallest KV pool.
    pub pool: Option<u64>,
    /// Tokens of the context that is advertised.
    pub context: Option<u64>,
    /// Whether it says that it understands `cache_salt`.
    pub salts: bool,
    /// The two workers behind a router, if their addresses are known.
    pub pair: Option<Pair>,
    /// Adapters (LoRA) that the server has, by the names by which they are asked for.
    pub adapters: Vec<String>,
    /// The limit that a suite found, so that the next need not look for it.
    pub found: OnceLock<u64>,
}

/// A sentence has no more tokens on any tokenizer that was tried (a word is one or two).
const SENTENCE_TOKENS: u64 = 24;

impl Known {
    /// So many sentences, or as many as fit with an answer below the limit that is known.
    fn sentences(&self, wanted: usize, answer: u32) -> usize {
        let Some(limit) = self.limit.or(self.found.get().copied()) else {
            return wanted;
        };
        let room = limit.saturating_sub(u64::from(answer)) / SENTENCE_TOKENS;
        wanted.min(room.max(1) as usize)
    }

    /// The limit that is known, or is found now: what is advertised is one, and a server that refuses
    /// nothing is judged by it. `None` if nothing is refused and nothing was advertised.
    async fn limit(
        &self,
        run: &ProbeRun,
        suite: &'static str,
        lengths: &PromptLengths,
    ) -> Result<Option<u64>, NoLengths> {
        if let Some(limit) = self.limit.or(self.found.get().copied()) {
            return Ok(Some(limit));
        }
        let tenant = run.tenants()[0];
        let found = match self.context {
            Some(context) => lengths.limit_up_to(run, suite, tenant, context).await?,
            None => lengths.limit(run, suite, tenant, u64::MAX).await?,
        };
        let found = found.or(self.context);
        Ok(found.map(|limit| *self.found.get_or_init(|| limit)))
    }
}

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Suite {
    /// Prompts at, below and above every limit.
    Boundary,
    /// Streams against whole answers, and answers alone against answers under load.
    Load,
    /// Answers as streams against whole ones; many streams at once.
    Stream,
    /// Clients that leave; others that follow at once.
    Abort,
    /// Prefixes shared between tenants.
    Prefix,
    /// The same ids from two tenants, and fields that only engines should set.
    Retry,
    /// Known answers over long contexts.
    Coherence,
    /// Whether control endpoints ask for a key.
    Control,
    /// Many long answers at once, more than fits.
    Churn,
    /// One tenant fills the pages, another asks for more than fits.
    Flood,
    /// Both workers of a disaggregated pair, asked directly.
    Pair,
}

impl Suite {
    /// All of them, harmless ones first.
    pub const ALL: [Suite; 11] = [
        Suite::Boundary,
        Suite::Load,
        Suite::Stream,
        Suite::Abort,
        Suite::Prefix,
        Suite::Coherence,
        Suite::Control,
        Suite::Retry,
        Suite::Churn,
        Suite::Flood,
        Suite::Pair,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Boundary => "boundary",
            Suite::Load => "load",
            Suite::Stream => "stream",
            Suite::Abort => "abort",
            Suite::Prefix => "prefix",
            Suite::Coherence => "coherence",
            Suite::Control => "control",
            Suite::Retry => "retry",
            Suite::Churn => "churn",
            Suite::Flood => "flood",
            Suite::Pair => "pair",
        }
    }

    /// The suite of this name.
    pub fn named(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|it| it.name() == name)
    }

    /// What it sends, in a sentence.
    pub fn sends(self) -> &'static str {
        match self {
            Suite::Boundary => {
                "prompts one token below, at and above the limit, pool and context (the limit is \
                 found by bisection if it is not given: 20 to 30 requests), to twice the limit; and \
                 at the ends of pages"
            }
            Suite::Load => "six prompts alone, three times each, then among others, three times",
            Suite::Stream => {
                "six prompts whole, twice, and as streams: alone, and among others that are left"
            }
            Suite::Abort => "24 prompts whose client leaves; two others follow each at once",
            Suite::Prefix => {
                "up to ten prompts each of one tenant, the other and the first again; of one salt and \
                 another; of each --lora, the base model and a salt of its name"
            }
            Suite::Coherence => "three prompts each of five lengths up to 0.95 of the limit",
            Suite::Control => "PUT without a body to 14 paths with which servers are operated",
            Suite::Retry => "pairs of requests with the same ids, and with fields of engines",
            Suite::Churn => "six long prompts alone, then among three times as many as allowed",
            Suite::Flood => "rounds of prompts that fill the pool, then prompts over the limit",
            Suite::Pair => {
                "requests to both workers: with references to blocks that were used up (vLLM); at and \
                 over the limit, what each side counts (SGLang)"
            }
        }
    }

    /// Why it is not run unless it is named: it can hurt a server that people use.
    pub fn hurts(self) -> Option<&'static str> {
        match self {
            Suite::Churn => Some("it asks for more at once than fits"),
            Suite::Flood => Some("it fills the KV pool and asks for more than fits"),
            Suite::Retry => Some("it sends ids and fields that a weak server may trust"),
            Suite::Pair => Some("it asks workers past their router, with references used up"),
            _ => None,
        }
    }

    /// Requests that it takes, about.
    pub fn requests(self, known: &Known) -> u64 {
        let limit = if known.limit.is_some() { 0 } else { 30 };
        match self {
            Suite::Boundary => 28 + limit,
            Suite::Load => 66,
            Suite::Abort => 73,
            Suite::Prefix => 60 + 90 * known.adapters.len() as u64,
            Suite::Stream => 42,
            Suite::Coherence => 18 + limit, // 40 more if an edge is looked for
            Suite::Control => 30,
            Suite::Retry => 38,
            Suite::Churn => 110,
            Suite::Flood => 70 + limit,
            Suite::Pair => 26,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it did not end: the budget, or something that it needs and the server does not give.
    pub async fn run(self, run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
        let before = alive::Before::of(run);
        let ended = self.drive(run, known).await;
        match alive::after(run, self, before).await {
            // What the suite itself met says more than that it goes on.
            Err(Stopped::Needs(_)) if ended.is_err() => ended,
            lives => lives.and(ended),
        }
    }

    async fn drive(self, run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
        match self {
            Suite::Boundary => boundary::run(run, known).await,
            Suite::Load => load::run(run, known, &load::LOAD).await,
            Suite::Churn => load::run(run, known, &load::CHURN).await,
            Suite::Coherence => coherence::run(run, known).await,
            Suite::Control => control::run(run, known).await,
            Suite::Stream => stream::run(run, known).await,
            Suite::Abort => abort::run(run, known).await,
            Suite::Prefix => prefix::run(run, known).await,
            Suite::Retry => retry::run(run, known).await,
            Suite::Flood => flood::run(run, known).await,
            Suite::Pair => pair::run(run, known).await,
        }
    }
}

/// Why a suite stopped before its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stopped {
    /// The budget.
    #[error(transparent)]
    Spent(#[from] Spent),
    /// Nothing can be told without it.
    #[error("{0}")]
    Needs(String),
}

impl From<NoLengths> for Stopped {
    fn from(it: NoLengths) -> Self {
        match it {
            NoLengths::Spent(spent) => Self::Spent(spent),
            it => Self::Needs(it.to_string()),
        }
    }
}

/// A finding of a suite.
fn find(run: &ProbeRun, suite: Suite, kind: Kind, says: String, shows: Vec<Sent>) {
    find_by(run, suite, kind, says, shows, Symptom::None);
}

/// The same, with how it can be recognised again.
fn find_by(
    run: &ProbeRun,
    suite: Suite,
    kind: Kind,
    says: String,
    shows: Vec<Sent>,
    proof: Symptom,
) {
    run.found(ProbeFinding {
        proof,
        ..ProbeFinding::new(kind, suite.name(), says, shows)
    });
}
