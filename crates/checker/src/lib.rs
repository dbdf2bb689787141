//! The world around the shipped state machines, its properties and its explorers.
#![forbid(unsafe_code)]

pub mod bound;
pub mod encode;
pub mod model;
pub mod pinned;
pub mod properties;
pub mod run;
pub mod scenario;
pub mod search;
pub mod simulate;
pub mod situations;
pub mod timeline;
#[cfg(test)]
mod toy;
pub mod traces;
pub mod world;
