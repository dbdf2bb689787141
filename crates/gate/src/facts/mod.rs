//! What running servers say about themselves, every figure with its source.
//!
//! The law is "capacity is measured, not declared": what a process found when it allocated
//! ([`Measured`]) and what somebody told it in a flag ([`Declared`]) are two types, and nothing
//! turns the second into the first. What is missing, contradictory or absurd is an [`Unknown`] with
//! its reason; there are no defaults.

pub mod answers;
mod combine;
mod figure;
mod guard;
pub mod json;
mod life;
mod llama;
mod log;
mod models;
pub mod net;
mod node;
mod once;
mod own;
mod particulars;
pub mod prometheus;
#[cfg(feature = "recording")]
pub mod recording;
mod sglang;
mod trouble;
mod version;
mod vllm;
mod weights;

pub use figure::{
    Absurd, Contradiction, Declared, Fact, Figure, FigureSource, Measured, TOKENS_MAX, Unknown,
};
pub use log::read_log;
pub use node::{Aside, Engine, Node, Parallelism, Particulars, Probe, Rank, Role, Warning};
pub use trouble::Trouble;
pub use version::{NoVersion, Version};
