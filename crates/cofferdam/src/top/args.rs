//! Flags of `top`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of `top`.
#[derive(Clone, Debug, Args)]
pub struct Top {
    /// The operators' listener of a gateway
    #[arg(value_name = "URL")]
    pub url: String,
    /// File that holds an operator's key and nothing else
    #[arg(long, value_name = "FILE|env:NAME")]
    pub key_file: String,
    /// Print it once, as text, and end; 1 when something is suspect
    #[arg(long)]
    pub once: bool,
    /// How often it is asked
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::times::duration)]
    pub every: Duration,
    /// PEM file of authorities that may have signed its certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}
