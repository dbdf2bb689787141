//! The laboratory, a second binary that is never shipped: the world around the shipped state
//! machines, its properties, its explorers, and what a person runs with them.
//!
//! `check` explores the machines within named bounds, `reproduce` shows the incident on real weights
//! with each safeguard taken away and put back, `self-test` measures how soon the probe finds a
//! defect. Nothing that ships depends on this crate. Without its feature `incident` it is the
//! checker alone, over the core alone: what a change to the core is tried with.
#![forbid(unsafe_code)]

pub mod beside;
pub mod bound;
mod check;
pub mod defects;
pub mod door;
pub mod encode;
pub mod model;
pub mod pinned;
pub mod properties;
#[cfg(feature = "incident")]
mod reproduce;
pub mod run;
pub mod scenario;
pub mod search;
#[cfg(feature = "incident")]
mod selftest;
pub mod simulate;
pub mod situations;
pub mod timeline;
#[cfg(test)]
mod toy;
pub mod traces;
pub mod world;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The laboratory of Cofferdam: checks the code that runs, and reproduces what went wrong elsewhere.
#[derive(Debug, Parser)]
#[command(name = "cofferdam-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explore the shipped state machines within a named bound.
    Check(check::Check),
    #[cfg(feature = "incident")]
    /// Reproduce a real incident, with each safeguard taken away and put back.
    Reproduce(reproduce::Reproduce),
    #[cfg(feature = "incident")]
    /// Let `cofferdam probe` look for defects of our own engine: how many requests does it take?
    SelfTest(selftest::SelfTest),
}

/// Runs the command that was typed.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Check(check) => check.run(),
        #[cfg(feature = "incident")]
        Command::Reproduce(reproduce) => reproduce.run(),
        #[cfg(feature = "incident")]
        Command::SelfTest(test) => test.run(),
    }
}
