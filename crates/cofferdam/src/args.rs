//! What can be typed: subcommands and their flags, with their defaults and ranges.
//!
//! Every flag has its variable beside it; that it is also a key of the configuration file needs
//! no word here ([`crate::config`]). Names that users of vLLM and SGLang type are aliases.

#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod on_call;

use crate::exit::Exit;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[cfg(feature = "engine")]
pub use engine::*;
#[cfg(feature = "engine")]
pub use on_call::*;

/// Days for which certificates are accepted.
#[cfg(feature = "engine")]
pub(crate) const CERTIFICATE_DAYS: u32 = 365;

/// LLM serving whose prefill and decode run in separate processes, with checked KV ownership.
#[derive(Debug, Parser)]
#[cfg_attr(
    not(feature = "engine"),
    command(about = "Is my LLM serving safe? The tools of Cofferdam for other engines")
)]
#[command(name = "cofferdam", version, after_help = Exit::HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model: starts and supervises gateway, prefill and decode as separate processes.
    #[cfg(feature = "engine")]
    Serve(Box<Serve>),
    /// Run one prefill worker (serve starts these itself).
    #[cfg(feature = "engine")]
    Prefill(Prefill),
    /// Run one decode worker (serve starts these itself).
    #[cfg(feature = "engine")]
    Decode(Decode),
    /// Run one gateway (serve starts this itself).
    #[cfg(feature = "engine")]
    Gateway(Box<Gateway>),
    /// Certificates with which gateway and workers authenticate each other.
    #[cfg(feature = "engine")]
    Certs {
        /// What to do with certificates.
        #[command(subcommand)]
        command: CertsCommand,
    },
    /// Ask running servers (SGLang, vLLM, llama.cpp, Cofferdam): is this fleet safe to promote?
    Gate(Box<crate::gate::args::Gate>),
    /// Plant canaries for two tenants and look whose come back: does this server leak?
    Probe(Box<crate::probe::args::Probe>),
    /// Read access logs: which answers came sooner than their prompt can have been computed?
    Watch(Box<crate::watch::args::Watch>),
    /// Plant canaries for ever through a server's own door, and look whose come back.
    #[cfg(feature = "engine")]
    Canary(Box<Canary>),
    /// Incidents: what was found out at a gateway's engines, and what was done about it.
    #[cfg(feature = "engine")]
    Incident(Incident),
    /// What an operator on call sees, in a terminal: the operators' page of a running gateway.
    #[cfg(feature = "engine")]
    Top(crate::top::args::Top),
    /// Whose text was it? Joins what watch found with what workers wrote down of their pages.
    Affected(Box<crate::affected::args::Affected>),
    /// Measure the engine on this machine, beside llama.cpp and what the machine could do.
    #[cfg(feature = "engine")]
    Bench(Box<crate::bench::args::Bench>),
    /// Ask a running API whether it would take a request now: for containers and scripts.
    Healthcheck(Healthcheck),
    /// Fetch and verify the default weights, and print where they are.
    #[cfg(feature = "engine")]
    Pull,
    /// What this command keeps in the user's cache: the default weights.
    #[cfg(feature = "engine")]
    Cache {
        /// What to do with it.
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Write manual pages and shell completions (packaging calls this).
    #[cfg(feature = "engine")]
    #[command(hide = true)]
    Manuals {
        /// A directory; what it lacks is made: share/man/man1, share/bash-completion and so on.
        directory: PathBuf,
    },
    /// Print the version.
    Version,
}

/// What is asked, and about what.
#[derive(Debug, clap::Args)]
pub struct Healthcheck {
    /// The API
    #[arg(env = "COFFERDAM_HEALTHCHECK", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Ask whether the process lives (/livez), not whether it has workers
    #[arg(long)]
    pub live: bool,
    /// PEM file of authorities that may have signed the API's certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// What it may take
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = crate::times::duration)]
    pub timeout: std::time::Duration,
}

/// What can be done with the cache.
#[cfg(feature = "engine")]
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Remove everything that was fetched; the next `serve` fetches it again.
    Clean,
}

/// What can be done with certificates.
#[cfg(feature = "engine")]
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make a new cluster: an authority and one certificate for each role.
    New {
        /// An empty or missing directory; it is made private to this user.
        directory: PathBuf,
    },
}
