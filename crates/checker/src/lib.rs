//! The world around the shipped state machines, its properties and its explorers.
#![forbid(unsafe_code)]

pub mod encode;
pub mod model;
pub mod search;
#[cfg(test)]
mod toy;
