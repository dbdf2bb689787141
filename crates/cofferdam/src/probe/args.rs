//! Flags of `probe`.

use crate::report_arg::ReportArg;
use ::probe::Budget;
use ::probe::suites::Suite;
use ::probe::wire::Dialect as Wire;
use clap::{Args, ValueEnum, value_parser};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Settings of `probe`.
#[derive(Clone, Debug, Args)]
pub struct Probe {
    /// The server: an OpenAI-compatible one, or SGLang with --dialect generate
    #[arg(value_name = "URL")]
    pub url: String,
    /// Key of tenant A: a file that holds it, or env:NAME. Without it nobody sends a key
    #[arg(long, value_name = "FILE|env:NAME")]
    pub key_a: Option<String>,
    /// Key of tenant B [default: A's, where the server knows one key only]
    #[arg(long, value_name = "FILE|env:NAME", requires = "key_a")]
    pub key_b: Option<String>,
    /// What is run [default: all that cannot hurt: boundary,load,stream,abort,
    /// prefix,coherence,control]. Those that can must be named: retry, churn, flood, pair
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = suite)]
    pub suite: Vec<Suite>,
    /// How it is asked
    #[arg(long, value_name = "WHICH", default_value = "completions")]
    pub dialect: Dialect,
    /// Model to ask for [default: the first that the server names]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Most tokens of a prompt [default: what the server says; else found by bisection]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(64..=1 << 32))]
    pub limit: Option<u64>,
    /// Tokens of the smallest KV pool [default: what the server says]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(64..=1 << 32))]
    pub pool: Option<u64>,
    /// Tokens of the context that is advertised [default: what the server says]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(64..=1 << 32))]
    pub context: Option<u64>,
    /// An adapter (LoRA) that the server has, for suite prefix; may be given more than once
    #[arg(long, value_name = "NAME")]
    pub lora: Vec<String>,
    /// The prefill worker behind the server, for suite pair
    #[arg(long, value_name = "URL", requires = "decode")]
    pub prefill: Option<String>,
    /// The decode worker behind the server, for suite pair
    #[arg(long, value_name = "URL", requires = "prefill")]
    pub decode: Option<String>,
    /// What may be spent: requests=500, tokens=2000000, time=10m; once for each
    #[arg(long, value_name = "KIND=N")]
    pub budget: Vec<Spend>,
    /// Requests a second, at most; 0 is no limit
    #[arg(long, value_name = "N", default_value = "5", value_parser = rate)]
    pub rate: f64,
    /// Requests at the same time, at most
    #[arg(long, value_name = "N", default_value = "8")]
    #[arg(value_parser = value_parser!(u64).range(1..=256))]
    pub at_once: u64,
    /// Time after which a request without an answer is a hang
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = crate::times::duration)]
    pub hang: Duration,
    /// Seed of a run that is to be repeated, in hex [default: drawn, printed at the end]
    #[arg(long, value_name = "HEX", value_parser = seed)]
    pub seed: Option<[u8; 32]>,
    /// PEM file of authorities that may have signed the server's certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// What is printed
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Format,
    /// Write a further report to a file: `junit=probe.xml`
    #[arg(long, value_name = "FORMAT=FILE")]
    pub report: Vec<ReportArg<Format>>,
    /// Write signed evidence about the workers that were tested, for `serve --require-evidence`
    #[arg(long, value_name = "FILE", requires = "evidence_key")]
    pub evidence_out: Option<PathBuf>,
    /// Key to sign with: evidence.key of `cofferdam certs new`
    #[arg(long, value_name = "FILE", requires = "evidence_out")]
    pub evidence_key: Option<PathBuf>,
    /// Don't look for smaller reproductions of what was found
    #[arg(long)]
    pub no_shrink: bool,
    /// Say what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
}

impl Probe {
    /// What the run may spend.
    pub fn budget(&self) -> Budget {
        let mut budget = Budget {
            rate: self.rate,
            at_once: self.at_once as usize,
            request_time: self.hang,
            ..Budget::default()
        };
        for spend in &self.budget {
            match *spend {
                Spend::Requests(n) => budget.requests = n,
                Spend::Tokens(n) => budget.tokens = n,
                Spend::Time(time) => budget.time = time,
            }
        }
        budget
    }

    /// The suites, in the order in which they are run.
    pub fn suites(&self) -> Vec<Suite> {
        let wanted = |it: &Suite| match self.suite.is_empty() {
            true => it.hurts().is_none(),
            false => self.suite.contains(it),
        };
        Suite::ALL.into_iter().filter(wanted).collect()
    }
}

/// How the server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// POST /v1/completions
    Completions,
    /// POST /v1/chat/completions
    Chat,
    /// POST /generate of SGLang
    Generate,
}

impl From<Dialect> for Wire {
    fn from(dialect: Dialect) -> Wire {
        match dialect {
            Dialect::Completions => Wire::Completions,
            Dialect::Chat => Wire::Chat,
            Dialect::Generate => Wire::Generate,
        }
    }
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// Everything, with whole reproductions.
    Json,
    /// JUnit XML: a case for each suite.
    Junit,
    /// A page for a browser, one file.
    Html,
}

/// `KIND=N`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// Requests.
    Requests(u64),
    /// Tokens of prompts and answers.
    Tokens(u64),
    /// Time.
    Time(Duration),
}

impl FromStr for Spend {
    type Err = String;

    fn from_str(text: &str) -> Result<Spend, String> {
        let wrong = || format!("{text:?} is no budget (requests=500, tokens=2000000, time=10m)");
        let (kind, amount) = text.split_once('=').ok_or_else(wrong)?;
        let number = || amount.parse().ok().filter(|it| *it > 0).ok_or_else(wrong);
        match kind {
            "requests" => Ok(Spend::Requests(number()?)),
            "tokens" => Ok(Spend::Tokens(number()?)),
            "time" => Ok(Spend::Time(crate::times::duration(amount)?)),
            _ => Err(wrong()),
        }
    }
}

fn suite(text: &str) -> Result<Suite, String> {
    Suite::named(text).ok_or_else(|| {
        let names: Vec<_> = Suite::ALL.into_iter().map(Suite::name).collect();
        format!("no suite; there are {}", names.join(", "))
    })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    rate.filter(|it| (0.0..=1e6).contains(it))
        .ok_or_else(|| format!("{text:?} is no number of requests a second"))
}

/// Up to 64 hexadecimal digits; shorter ones are filled with zeros in front.
fn seed(text: &str) -> Result<[u8; 32], String> {
    let good = (1..=64).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_hexdigit());
    if !good {
        return Err("a seed is 1 to 64 hexadecimal digits".to_owned());
    }
    let padded = format!("{text:0>64}");
    let byte = |n: usize| u8::from_str_radix(&padded[2 * n..2 * n + 2], 16);
    let mut seed = [0; 32];
    for (n, slot) in seed.iter_mut().enumerate() {
        *slot = byte(n).map_err(|it| it.to_string())?;
    }
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_hex() {
        assert_eq!(seed("102").unwrap()[30..], [1, 2]);
        assert_eq!(seed(&"f".repeat(64)), Ok([255; 32]));
        for wrong in ["", "x", "é", "-1", &"0".repeat(65)] {
            assert!(seed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn budgets_have_a_kind() {
        assert_eq!("requests=7".parse(), Ok(Spend::Requests(7)));
        assert_eq!("time=2m".parse(), Ok(Spend::Time(Duration::from_secs(120))));
        for wrong in [
            "7",
            "requests",
            "requests=0",
            "tokens=x",
            "time=5",
            "money=1",
        ] {
            assert!(wrong.parse::<Spend>().is_err(), "{wrong}");
        }
    }
}
