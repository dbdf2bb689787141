//! The paths along which engines break, one suite each.

mod abort;
mod boundary;
mod flood;
mod length;
mod load;
mod pair;
mod prefix;
mod retry;

pub use length::{Lengths, NoLengths};
pub use pair::Pair;

use crate::finding::{Finding, Kind, Sent};
use crate::run::{Run, Spent};
use serde::Serialize;

/// What is known of a server before the run: what was given, or what `gate` read.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Most tokens of a prompt. Found by bisection if nobody knows.
    pub limit: Option<u64>,
    /// Tokens of the smallest KV pool.
    pub pool: Option<u64>,
    /// Tokens of the context that is advertised.
    pub context: Option<u64>,
    /// The two workers behind a router, if their addresses are known.
    pub pair: Option<Pair>,
}

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Suite {
    /// Prompts at, below and above every limit.
    Boundary,
    /// Streams against whole answers, and answers alone against answers under load.
    Load,
    /// Clients that leave; others that follow at once.
    Abort,
    /// Prefixes shared between tenants.
    Prefix,
    /// The same ids from two tenants, and fields that only engines should set.
    Retry,
    /// One tenant fills the pages, another asks for more than fits.
    Flood,
    /// Both workers of a disaggregated pair, asked directly.
    Pair,
}

impl Suite {
    /// All of them, harmless ones first.
    pub const ALL: [Suite; 7] = [
        Suite::Boundary,
        Suite::Load,
        Suite::Abort,
        Suite::Prefix,
        Suite::Retry,
        Suite::Flood,
        Suite::Pair,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Boundary => "boundary",
            Suite::Load => "load",
            Suite::Abort => "abort",
            Suite::Prefix => "prefix",
            Suite::Retry => "retry",
            Suite::Flood => "flood",
            Suite::Pair => "pair",
        }
    }

    /// Why it is not run unless it is named: it can hurt a server that people use.
    pub fn hurts(self) -> Option<&'static str> {
        match self {
            Suite::Flood => Some("it fills the KV pool and asks for more than fits"),
            Suite::Retry => Some("it sends ids and fields that a weak server may trust"),
            Suite::Pair => Some("it asks workers past their router, with references used up"),
            _ => None,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it did not end: the budget, or something that it needs and the server does not give.
    pub async fn run(self, run: &Run, known: &Known) -> Result<(), Stopped> {
        match self {
            Suite::Boundary => boundary::run(run, known).await,
            Suite::Load => load::run(run, known).await,
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
fn find(run: &Run, suite: Suite, kind: Kind, says: String, shows: Vec<Sent>) {
    run.found(Finding {
        kind,
        suite: suite.name(),
        says,
        quote: None,
        shows,
    });
}
