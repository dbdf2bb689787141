//! Flags of what an operator has on call: canaries, the journal of incidents, the page.

use crate::times;
use crate::tokens::tokens;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, Subcommand, value_parser};
use std::path::PathBuf;
use std::time::Duration;

/// What stands for true.
const YES: [&str; 6] = ["y", "yes", "t", "true", "on", "1"];

/// What an operator has on call: canaries, incidents, a page.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct OnCall {
    /// Keep signals, incidents and what was done about them in this file (SQLite); it is made if it is
    /// not there [default: nothing is kept, and no door is closed by what is found]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_INCIDENTS")]
    pub incidents: Option<PathBuf>,
    /// What is done about which signal (TOML) [default: leaks make the model private]
    #[arg(long, value_name = "FILE", env = "COFFERDAM_INCIDENT_POLICY")]
    #[arg(requires = "incidents")]
    pub incident_policy: Option<PathBuf>,
    /// Most megabytes of that file
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_INCIDENTS_MIB",
        default_value = "256"
    )]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    pub incidents_mib: u32,
    /// Days for which it keeps who was answered by whom
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_INCIDENTS_DAYS",
        default_value = "30"
    )]
    #[arg(value_parser = value_parser!(u32).range(1..=3650))]
    pub incidents_days: u32,
    /// Plant canaries all the time, through this gateway's own door, and look whose come back
    #[arg(long, env = "COFFERDAM_CANARIES", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new(), ignore_case = true)]
    #[arg(requires_ifs = YES.map(|yes| (yes, "incidents")))]
    pub canaries: bool,
    /// Time between two steps of canaries
    #[arg(
        long,
        value_name = "TIME",
        env = "COFFERDAM_CANARY_EVERY",
        default_value = "30s"
    )]
    #[arg(value_parser = times::duration)]
    pub canary_every: Duration,
    /// Tokens a minute that canaries may take; a step at the limit of lengths is taken when enough are
    /// saved up
    #[arg(
        long,
        value_name = "N",
        env = "COFFERDAM_CANARY_TOKENS",
        default_value = "20000"
    )]
    #[arg(value_parser = tokens::<u32>)]
    pub canary_tokens: u32,
    /// No more than so many per cent of the tokens that clients had computed in the last ten minutes,
    /// but a short step a minute [default: no such bound]
    #[arg(long, value_name = "PERCENT", env = "COFFERDAM_CANARY_PERCENT")]
    #[arg(value_parser = percent)]
    pub canary_percent: Option<f64>,
    /// Where canaries reach this gateway [default: its own port]
    #[arg(long, value_name = "URL", env = "COFFERDAM_CANARIES_AT")]
    pub canaries_at: Option<String>,
    /// PEM file of authorities that may have signed the certificate there
    #[arg(long, value_name = "FILE", env = "COFFERDAM_CANARIES_CA")]
    pub canaries_ca: Option<PathBuf>,
    /// Address of the operators' page, such as 127.0.0.1:8090 [default: none]
    #[arg(long, value_name = "HOST:PORT", env = "COFFERDAM_ADMIN")]
    #[arg(requires = "admin_keys", requires = "incidents")]
    pub admin: Option<std::net::SocketAddr>,
    /// File of lines `name key` of those who may use it
    #[arg(long, value_name = "FILE", env = "COFFERDAM_ADMIN_KEYS")]
    pub admin_keys: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let read = text.trim_end_matches('%').parse::<f64>().ok();
    let good = read.filter(|it| *it > 0.0 && *it <= 100.0);
    good.ok_or_else(|| "a number above 0, 100 at most, such as 2 or 0.5".to_owned())
}

/// Settings of `canary`.
#[derive(Clone, Debug, Args)]
pub struct Canary {
    /// The server or its router: an OpenAI-compatible one, or SGLang with --dialect generate
    #[arg(value_name = "URL")]
    pub url: String,
    /// Key of tenant A: a file that holds it, or env:NAME
    #[arg(long, value_name = "FILE|env:NAME")]
    pub key_a: Option<String>,
    /// Key of tenant B [default: A's, where the server knows one key only]
    #[arg(long, value_name = "FILE|env:NAME", requires = "key_a")]
    pub key_b: Option<String>,
    /// Form of requests
    #[arg(long, value_name = "WHICH", default_value = "completions")]
    pub dialect: crate::probe::args::Dialect,
    /// Model to ask for [default: none is named]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Most tokens of a prompt [default: what the server says, or its workers]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(64..=1 << 32))]
    pub limit: Option<u64>,
    /// The prefill worker behind it: what it takes, and whether it is another process
    #[arg(long, value_name = "URL", requires = "decode")]
    pub prefill: Option<String>,
    /// The decode worker behind it
    #[arg(long, value_name = "URL", requires = "prefill")]
    pub decode: Option<String>,
    /// Time between two steps
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = times::duration)]
    pub every: Duration,
    /// Tokens a minute that canaries may take
    #[arg(long, value_name = "N", default_value = "20000", value_parser = tokens::<u32>)]
    pub tokens: u32,
    /// End after so many steps [default: at a signal]
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// PEM file of authorities that may have signed the server's certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Journal that gets what is found; a gateway that keeps it moves its doors
    #[arg(long, value_name = "FILE", env = "COFFERDAM_INCIDENTS")]
    pub incidents: Option<PathBuf>,
    /// What is done about which signal (TOML)
    #[arg(
        long,
        value_name = "FILE",
        env = "COFFERDAM_INCIDENT_POLICY",
        requires = "incidents"
    )]
    pub incident_policy: Option<PathBuf>,
}

/// Which journal, and what of it.
#[derive(Debug, Args)]
pub struct Incident {
    /// The gateway's journal
    #[arg(long, value_name = "FILE", env = "COFFERDAM_INCIDENTS", global = true)]
    #[arg(default_value = "incidents.db")]
    pub incidents: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub command: IncidentCommand,
}

/// What can be done with incidents.
#[derive(Debug, Subcommand)]
pub enum IncidentCommand {
    /// One line each, open ones first; and the doors that are not open.
    List {
        /// As JSON, an object a line
        #[arg(long)]
        json: bool,
    },
    /// The report of one: what, when, at whom, who is affected.
    Show {
        /// Its name
        id: String,
        /// As JSON
        #[arg(long, conflicts_with = "html")]
        json: bool,
        /// As a page
        #[arg(long)]
        html: bool,
    },
    /// Open one by hand.
    Open {
        /// The engine that it is about, by its address [default: the fleet]
        #[arg(long, value_name = "URL")]
        scope: Option<String>,
        /// What has happened, in a sentence
        why: String,
    },
    /// Another tool has found something: policy decides, and the gateway moves its doors.
    Signal {
        /// What: probe_finding, watch_alarm, gate_violated, guard_refusal …
        #[arg(value_parser = oncall::SignalKind::named)]
        kind: oncall::SignalKind,
        /// What exactly, without text of anybody
        says: String,
        /// At which engines, by their addresses, a prefill first [default: not known]
        #[arg(long, value_name = "URL", value_delimiter = ',')]
        engine: Vec<String>,
        /// The request that showed it
        #[arg(long, value_name = "ID")]
        request: Option<String>,
        /// The policy, as the gateway's --incident-policy
        #[arg(long, value_name = "FILE", env = "COFFERDAM_INCIDENT_POLICY")]
        policy: Option<PathBuf>,
    },
    /// Write something down.
    Note {
        /// Its name
        id: String,
        /// What
        text: String,
    },
    /// End one; nothing may be closed because of it any more.
    Close {
        /// Its name
        id: String,
        /// Why
        why: String,
    },
    /// Print every line of the journal, chained by SHA-256.
    Export,
    /// Whether no line was changed, left out or put in.
    Verify {
        /// Exported lines [default: the journal itself]
        file: Option<PathBuf>,
        /// SHA-256 of the last line, as it was kept elsewhere
        #[arg(long, value_name = "HEX")]
        head: Option<String>,
    },
    /// Take in evidence of `cofferdam probe --evidence-out`, as a proof about what it has tested.
    Prove {
        /// The evidence
        evidence: PathBuf,
        /// Public key of whoever may sign it: evidence.pub of `cofferdam certs new`
        #[arg(long, value_name = "FILE", env = "COFFERDAM_EVIDENCE_PUB")]
        evidence_pub: PathBuf,
    },
}
