//! Does it leak? Plants unguessable markers for each tenant, request and page in prompts, drives a
//! server along the paths where engines break, and looks whose markers come back.
//!
//! ```text
//! canary ── prompts ── suites ── client ──> server
//!    └── matcher <── every text of every answer ──┘
//!           └── findings ── report: whose text, which request, which page, by what chance
//! ```
//!
//! "Returned 200" is not a test: what leaks is coherent, on topic and rightly counted. Only content
//! tells, and only content that nobody could have guessed tells for certain.
#![forbid(unsafe_code)]

pub mod about;
pub mod ask;
pub mod budget;
pub mod canary;
pub mod chance;
pub mod client;
pub mod counts;
pub mod disguise;
pub mod finding;
pub mod inflected;
mod judge;
pub mod matcher;
mod pieces;
pub mod power;
pub mod report;
pub mod run;
pub mod shared;
pub mod shrink;
pub mod stats;
pub mod suites;
pub mod text;
pub mod vigil;
pub mod wire;

pub use ask::{ProbeAnswer, Question};
pub use budget::Budget;
pub use canary::{Author, Canaries, Tenant};
pub use client::TenantEndpoint;
pub use finding::{Kind, ProbeFinding};
pub use run::ProbeRun;
