//! Flags of `watch`.

use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Settings of `watch`.
#[derive(Clone, Debug, Args)]
pub struct Watch {
    /// Access log, a JSON object a line; `-` is standard input. Several are read as one, in order
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present_any = ["rules", "scrape"])]
    pub log: Vec<PathBuf>,
    /// Go on reading the log as it grows, until interrupted, and print events as they happen
    #[arg(long)]
    pub follow: bool,
    /// Where the figures stand in a line, and settings (TOML) [default: Cofferdam's own log]
    #[arg(
        id = "watch-file",
        long = "config",
        value_name = "FILE",
        env = "COFFERDAM_WATCH_CONFIG"
    )]
    pub config: Option<PathBuf>,
    /// A known format of log: envoy, litellm, nginx, otlp, sglang, sglang-router, sglang-times, smg, vllm
    /// [default: what the first lines say unmistakably, else Cofferdam's own]
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Most tokens that a prompt may have, for every model or for one
    #[arg(long, value_name = "[MODEL=]N")]
    pub limit: Vec<LimitArg>,
    /// Tenant of tests and probes: not learned from, not among the affected
    #[arg(long, value_name = "NAME")]
    pub test_tenant: Vec<String>,
    /// Share of the floor below which an answer is too fast [default: 0.5]
    #[arg(long, value_name = "X")]
    pub tolerance: Option<f64>,
    /// What was learned is read from there at the start and kept there
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// What is printed about a log that is not followed
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Format,
    /// Prompt tokens against time as a drawing: a file that ends in .svg or .html
    #[arg(long, value_name = "FILE", conflicts_with = "follow")]
    pub plot: Option<PathBuf>,
    /// Also read an engine's /metrics, every 15 s: counters that must not rise. A coarse alarm:
    /// they name no request
    #[arg(long, value_name = "URL", num_args = 1..)]
    pub scrape: Vec<String>,
    /// Where --follow and --scrape serve their own counters for Prometheus
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9465")]
    pub listen: SocketAddr,
    /// Print alert rules for Prometheus and end
    #[arg(long)]
    pub rules: bool,
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// A JSON object for each affected request, and one at the end that sums up.
    Json,
}

/// `[MODEL=]N`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitArg {
    /// `*` for every model.
    pub model: String,
    /// In tokens.
    pub tokens: u64,
}

impl FromStr for LimitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<LimitArg, String> {
        let (model, tokens) = text.rsplit_once('=').unwrap_or(("*", text));
        match tokens.parse() {
            Ok(tokens) if tokens > 0 => Ok(LimitArg {
                model: model.to_owned(),
                tokens,
            }),
            _ => Err(format!("{tokens:?} is no number of tokens")),
        }
    }
}
