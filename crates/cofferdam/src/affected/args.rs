//! Flags of `affected`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Settings of `affected`.
#[derive(Clone, Debug, Args)]
pub struct Affected {
    /// What `watch --format json` or `--follow` printed; `-` is standard input
    #[arg(long, value_name = "FILE", required_unless_present = "request")]
    pub received: Option<PathBuf>,
    /// A request that received something, by the id of the access log
    #[arg(long, value_name = "ID")]
    pub request: Vec<String>,
    /// Files of `serve --owners DIR`, or directories of them
    #[arg(id = "owner-files", long = "owners", value_name = "DIR", num_args = 1.., required = true)]
    pub owners: Vec<PathBuf>,
    /// The gateway's access log: which request an id is, and whose
    #[arg(id = "logs", long = "log", value_name = "FILE", num_args = 1.., required = true)]
    pub log: Vec<PathBuf>,
    /// What is printed
    #[arg(
        id = "affected-format",
        long = "format",
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub format: Format,
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// A JSON object a line for each request that received something, and a sum.
    Json,
}
