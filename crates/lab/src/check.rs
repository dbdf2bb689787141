//! `check`.

use clap::Args;
use std::process::ExitCode;

/// Settings.
#[derive(Debug, Args)]
pub struct Check {}

impl Check {
    /// Runs it.
    pub fn run(self) -> ExitCode {
        ExitCode::from(3)
    }
}
