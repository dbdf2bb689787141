//! `reproduce`.

use clap::Args;
use std::process::ExitCode;

/// Settings.
#[derive(Debug, Args)]
pub struct Reproduce {}

impl Reproduce {
    /// Runs it.
    pub fn run(self) -> ExitCode {
        ExitCode::from(3)
    }
}
