//! What was meant: flags over environment over configuration file over defaults.

use crate::args::{GatewayFlags, Host, LogFormat, Numeric, ServeFlags, WithConfig, WorkerFlags};
use crate::exit::Failure;
use anyhow::{Context, anyhow, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Workers of one role that one command supervises; more belong on more machines.
pub const WORKERS_MAX: u32 = 64;
/// Bytes of a configuration file that are read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Settings of `serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct Serve {
    /// GGUF file; `None`: the default weights.
    pub model: Option<PathBuf>,
    /// Where the API listens.
    pub host: IpAddr,
    /// Port of the API; 0: any.
    pub port: u16,
    /// Number of prefill workers, at least 1.
    pub prefill: u32,
    /// Number of decode workers, at least 1.
    pub decode: u32,
    /// What every worker is given.
    pub engine: Engine,
    /// Name of the model in the API.
    pub served_model_name: Option<String>,
    /// Who may ask.
    pub keys: Keys,
    /// How logs are written.
    pub log_format: LogFormat,
    /// One process, no handoff.
    pub in_process: bool,
    /// What running requests get at shutdown.
    pub drain: Duration,
}

/// What prefill and decode have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// KV pool, in tokens; `None`: derived from the context.
    pub pool_tokens: Option<u64>,
    /// Token slots in a page.
    pub page_size: u32,
    /// Prompt plus output, in tokens; `None`: the model's.
    pub max_context: Option<u32>,
    /// Compute threads.
    pub threads: u32,
    /// Which arithmetic.
    pub numeric: Numeric,
    /// Zero pages on release.
    pub scrub: bool,
}

/// Who may ask. Each key is an isolation domain of its own.
#[derive(Clone, Debug, PartialEq)]
pub enum Keys {
    /// Anybody who reaches the port; everybody shares one isolation domain.
    Open,
    /// Keys in a file.
    File(PathBuf),
    /// Keys given as flags.
    Given(Vec<String>),
}

/// Settings of one prefill or decode worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// GGUF file; `None`: the default weights.
    pub model: Option<PathBuf>,
    /// Where control connections are accepted.
    pub listen: String,
    /// Directory of the cluster's certificates.
    pub certs: PathBuf,
    /// Pool, context and arithmetic.
    pub engine: Engine,
    /// How logs are written.
    pub log_format: LogFormat,
    /// End when standard input closes.
    pub until_stdin_closes: bool,
}

/// Settings of one gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// GGUF file (tokenizer and chat template); `None`: the default weights.
    pub model: Option<PathBuf>,
    /// Where the API listens.
    pub host: IpAddr,
    /// Port of the API; 0: any.
    pub port: u16,
    /// Addresses of the prefill workers.
    pub prefill_at: Vec<String>,
    /// Addresses of the decode workers.
    pub decode_at: Vec<String>,
    /// Directory of the cluster's certificates.
    pub certs: PathBuf,
    /// Name of the model in the API.
    pub served_model_name: Option<String>,
    /// File with keys; `None`: open.
    pub api_keys: Option<PathBuf>,
    /// How logs are written.
    pub log_format: LogFormat,
    /// What running requests get at shutdown.
    pub drain: Duration,
    /// End when standard input closes.
    pub until_stdin_closes: bool,
}

impl Serve {
    /// Settings from what was typed and the file that it names.
    pub fn resolve(given: WithConfig<ServeFlags>) -> Result<Serve, Failure> {
        let f = layered(given.flags, given.config.as_deref())?;
        let (prefill, decode) = (f.prefill.unwrap_or(1), f.decode.unwrap_or(1));
        Ok(Serve {
            host: host(f.host),
            port: f.port.unwrap_or(8080),
            prefill: number("--prefill", prefill, 1, WORKERS_MAX)?,
            decode: number("--decode", decode, 1, WORKERS_MAX)?,
            engine: Engine::resolve(
                f.pool_tokens,
                f.page_size,
                f.max_context,
                f.threads,
                f.numeric,
                f.scrub,
            )?,
            keys: Keys::resolve(f.api_keys, f.api_key)?,
            model: f.model,
            served_model_name: f.served_model_name,
            log_format: f.log_format.unwrap_or_default(),
            in_process: f.in_process.unwrap_or(false),
            drain: drain(f.drain_seconds),
        })
    }
}

impl Worker {
    /// Settings from what was typed and the file that it names.
    pub fn resolve(given: WithConfig<WorkerFlags>) -> Result<Worker, Failure> {
        let f = layered(given.flags, given.config.as_deref())?;
        Ok(Worker {
            model: f.model,
            listen: required("--listen", f.listen)?,
            certs: required("--certs", f.certs)?,
            engine: Engine::resolve(
                f.pool_tokens,
                f.page_size,
                f.max_context,
                f.threads,
                f.numeric,
                f.scrub,
            )?,
            log_format: f.log_format.unwrap_or_default(),
            until_stdin_closes: f.until_stdin_closes.unwrap_or(false),
        })
    }
}

impl Gateway {
    /// Settings from what was typed and the file that it names.
    pub fn resolve(given: WithConfig<GatewayFlags>) -> Result<Gateway, Failure> {
        let f = layered(given.flags, given.config.as_deref())?;
        Ok(Gateway {
            model: f.model,
            host: host(f.host),
            port: f.port.unwrap_or(8080),
            prefill_at: required("--prefill-at", f.prefill_at)?,
            decode_at: required("--decode-at", f.decode_at)?,
            certs: required("--certs", f.certs)?,
            served_model_name: f.served_model_name,
            api_keys: f.api_keys,
            log_format: f.log_format.unwrap_or_default(),
            drain: drain(f.drain_seconds),
            until_stdin_closes: f.until_stdin_closes.unwrap_or(false),
        })
    }
}

impl Engine {
    fn resolve(
        pool_tokens: Option<u64>,
        page_size: Option<u32>,
        max_context: Option<u32>,
        threads: Option<u32>,
        numeric: Option<Numeric>,
        scrub: Option<bool>,
    ) -> Result<Engine, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get().min(256) as u32);
        Ok(Engine {
            pool_tokens,
            page_size: number("--page-size", page_size.unwrap_or(16), 1, 1024)?,
            max_context,
            threads: number("--threads", threads.unwrap_or(cores), 1, 256)?,
            numeric: numeric.unwrap_or_default(),
            scrub: scrub.unwrap_or(false),
        })
    }
}

impl Keys {
    fn resolve(file: Option<PathBuf>, given: Option<Vec<String>>) -> Result<Keys, Failure> {
        match (file, given) {
            (Some(_), Some(_)) => Err(Failure::usage(anyhow!(
                "--api-keys and --api-key are both set (flag, variable or file): keep one"
            ))),
            (Some(file), None) => Ok(Keys::File(file)),
            (None, Some(keys)) if keys.iter().any(|key| !is_key(key)) => Err(Failure::usage(
                anyhow!("an --api-key is empty or has spaces, line breaks or other control bytes"),
            )),
            (None, Some(keys)) => Ok(Keys::Given(keys)),
            (None, None) => Ok(Keys::Open),
        }
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn host(given: Option<Host>) -> IpAddr {
    given.map_or(Ipv4Addr::LOCALHOST.into(), |host| host.0)
}

fn drain(seconds: Option<u32>) -> Duration {
    Duration::from_secs(u64::from(seconds.unwrap_or(20)))
}

fn number(name: &str, got: u32, least: u32, most: u32) -> Result<u32, Failure> {
    if (least..=most).contains(&got) {
        return Ok(got);
    }
    Err(Failure::usage(anyhow!(
        "{name} is {got}; it must be from {least} to {most}"
    )))
}

fn required<T>(name: &str, value: Option<T>) -> Result<T, Failure> {
    value.ok_or_else(|| {
        Failure::usage(anyhow!(
            "{name} is missing: it may be a flag, a variable or in --config"
        ))
    })
}

/// `flags` (command line over environment: clap has done that) over the file.
fn layered<F: Serialize + DeserializeOwned>(flags: F, file: Option<&Path>) -> Result<F, Failure> {
    let Some(file) = file else { return Ok(flags) };
    over_file(flags, file)
        .with_context(|| format!("configuration file {}", file.display()))
        .map_err(Failure::usage)
}

fn over_file<F: Serialize + DeserializeOwned>(flags: F, file: &Path) -> anyhow::Result<F> {
    let size = std::fs::metadata(file).context("cannot be read")?.len();
    ensure!(
        size <= CONFIG_BYTES_MAX,
        "is {size} bytes; at most {CONFIG_BYTES_MAX} are read"
    );
    let text = std::fs::read_to_string(file).context("cannot be read")?;
    // Through the struct first: aliases become the flag's own name, unknown names are refused.
    let from_file: F = toml::from_str(&text)?;
    let mut merged = toml::Table::try_from(from_file)?;
    merged.extend(toml::Table::try_from(flags)?);
    Ok(merged.try_into()?)
}

/// Variables that start with `COFFERDAM_` and belong to no flag: probably misspelt, so worth a
/// warning. Not an error, because an orchestrator that runs a service named cofferdam may set
/// variables such as `COFFERDAM_SERVICE_HOST` by itself.
pub fn unknown_variables(
    program: &clap::Command,
    names: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let mut known = BTreeSet::new();
    collect_variables(program, &mut known);
    let ours = names
        .into_iter()
        .filter(|name| name.starts_with("COFFERDAM_"));
    ours.filter(|name| !known.contains(name)).collect()
}

fn collect_variables(command: &clap::Command, known: &mut BTreeSet<String>) {
    let names = command
        .get_arguments()
        .filter_map(|argument| argument.get_env());
    known.extend(names.map(|name| name.to_string_lossy().into_owned()));
    command
        .get_subcommands()
        .for_each(|c| collect_variables(c, known));
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
