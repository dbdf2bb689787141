//! What running servers say about themselves ([`facts`]), and the judgement: is it safe to promote?
//!
//! ```text
//! facts::Node ─┐
//! [[pool]]    ─┼─ judge ── findings ── Report ── table | JSON | SARIF | JUnit | Prometheus
//! advisories  ─┤
//! baseline    ─┘
//! ```
//!
//! The law is "capacity is measured, not declared". An answer is *holds* only where measured figures
//! prove it; what is missing, contradictory or absurd is *unknown*, and unknown fails a required
//! check. Nothing but [`facts`] opens a connection.
#![forbid(unsafe_code)]

pub mod advisories;
pub mod assemble;
pub mod baseline;
pub mod check;
pub mod config;
pub mod date;
pub mod endpoints;
pub mod facts;
pub mod finding;
pub mod judge;
pub mod output;
pub mod report;
pub mod shared_pool;

pub use report::{Allow, Report, Verdict};
