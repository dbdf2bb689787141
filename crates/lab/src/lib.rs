//! The laboratory, a second binary that is never shipped.
//!
//! `check` explores the shipped state machines within named bounds, `reproduce` shows the incident
//! on real weights with each safeguard taken away and put back, `self-test` measures how soon the
//! probe finds a defect. Nothing that ships depends on this
//! crate.
#![forbid(unsafe_code)]

mod check;
pub mod defects;
mod reproduce;
mod selftest;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The laboratory of Cofferdam: checks the code that runs, and reproduces what went wrong elsewhere.
#[derive(Debug, Parser)]
#[command(name = "cofferdam-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explore the shipped state machines within a named bound.
    Check(check::Check),
    /// Reproduce a real incident, with each safeguard taken away and put back.
    Reproduce(reproduce::Reproduce),
    /// Let `cofferdam probe` look for defects of our own engine: how many requests does it take?
    SelfTest(selftest::SelfTest),
}

/// Runs the command that was typed.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Check(check) => check.run(),
        Command::Reproduce(reproduce) => reproduce.run(),
        Command::SelfTest(test) => test.run(),
    }
}
