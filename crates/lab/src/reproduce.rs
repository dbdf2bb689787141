//! `reproduce`: what went wrong elsewhere, on the code that ships and on real weights.

pub(crate) mod client;
mod guards;
mod html;
mod incident;
mod page_map;
mod pool;
mod record;
mod run;
mod scenario;
pub(crate) mod stack;
mod table;
mod timeline;

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Settings.
#[derive(Debug, Args)]
pub(crate) struct Reproduce {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A prompt just over the prefill pool is answered, 200, with another tenant's text.
    Incident(incident::Incident),
}

impl Reproduce {
    /// Runs it: 0 if everything went as the documentation says, 1 if it did not, 3 if it could
    /// not be run.
    pub(crate) fn run(self) -> ExitCode {
        match self.what {
            What::Incident(incident) => incident.run(),
        }
    }
}
