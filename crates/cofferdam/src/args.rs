//! What can be typed: subcommands and their flags, with their defaults and ranges.
//!
//! Every flag has its variable beside it; that it is also a key of the configuration file needs
//! no word here ([`crate::config`]). Names that users of vLLM and SGLang type are aliases.

#[cfg(feature = "engine")]
mod engine;

use crate::exit::Exit;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[cfg(feature = "engine")]
pub use engine::*;

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
    Serve(Serve),
    /// Run one prefill worker (serve starts these itself).
    #[cfg(feature = "engine")]
    Prefill(Prefill),
    /// Run one decode worker (serve starts these itself).
    #[cfg(feature = "engine")]
    Decode(Decode),
    /// Run one gateway (serve starts this itself).
    #[cfg(feature = "engine")]
    Gateway(Gateway),
    /// Certificates with which gateway and workers authenticate each other.
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
    /// Fetch and verify the default weights, and print where they are.
    #[cfg(feature = "engine")]
    Pull,
    /// Print the version.
    Version,
}

/// What can be done with certificates.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make a new cluster: an authority and one certificate for each role.
    New {
        /// An empty or missing directory; it is made private to this user.
        directory: PathBuf,
    },
}
