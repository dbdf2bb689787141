//! What running servers say about themselves, every figure with its source.
//!
//! The law is "capacity is measured, not declared": what a process found when it allocated
//! ([`Measured`]) and what somebody told it in a flag ([`Declared`]) are two types, and nothing
//! turns the second into the first. What is missing, contradictory or absurd is an [`Unknown`] with
//! its reason; there are no defaults.
#![forbid(unsafe_code)]

mod figure;
mod node;
mod trouble;
mod version;

pub use figure::{
    Absurd, Contradiction, Declared, Fact, Figure, Measured, Source, TOKENS_MAX, Unknown,
};
pub use node::{Engine, Node, Parallelism, Probe, Rank, Role, Warning};
pub use trouble::Trouble;
pub use version::Version;
