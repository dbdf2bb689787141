//! Judgements about a fleet: is it safe to promote?
//!
//! ```text
//! fleet::Node ─┐
//! [[pool]]    ─┼─ judge ── findings ── Report ── table | JSON | SARIF | JUnit | Prometheus
//! advisories  ─┤
//! baseline    ─┘
//! ```
//!
//! The law is "capacity is measured, not declared". An answer is *holds* only where measured figures
//! prove it; what is missing, contradictory or absurd is *unknown*, and unknown fails a required
//! check. Nothing in this crate opens a connection: reading is `fleet`'s.
#![forbid(unsafe_code)]

pub mod advisories;
pub mod assemble;
pub mod baseline;
pub mod check;
pub mod config;
pub mod date;
pub mod endpoints;
pub mod finding;
pub mod judge;
pub mod output;
pub mod report;
pub mod shared_pool;

pub use report::{Allow, Report, Verdict};
