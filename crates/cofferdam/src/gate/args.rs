//! Flags of `gate`.

use crate::report_arg::ReportArg;
use crate::times::duration;
use crate::tokens::tokens;
use clap::{Args, ValueEnum};
use gate::Allow;
use gate::config::Factor;
use gate::judge::Stated;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Settings of `gate`. What is given here and in the fleet file: nodes and `--allow` add up, for
/// everything else the flag wins.
#[derive(Clone, Debug, Args)]
pub struct Gate {
    /// URL of a prefill node; several may follow
    #[arg(long, value_name = "URL", num_args = 1..)]
    pub prefill: Vec<String>,
    /// URL of a decode node; several may follow
    #[arg(long, value_name = "URL", num_args = 1..)]
    pub decode: Vec<String>,
    /// URL of a server that answers alone, or of a Cofferdam gateway; several may follow
    #[arg(long, value_name = "URL", num_args = 1..)]
    pub server: Vec<String>,
    /// Start-up log of a node that cannot be asked; `-` is standard input, `prefill=FILE` names its
    /// role where the log does not
    #[arg(long, value_name = "[ROLE=]FILE", num_args = 1..)]
    pub log: Vec<LogArg>,
    /// Fleet file (TOML): nodes, keys, groups, other pools
    #[arg(
        id = "fleet-file",
        long = "config",
        value_name = "FILE",
        env = "COFFERDAM_GATE_CONFIG"
    )]
    pub fleet: Option<PathBuf>,
    /// What `kubectl get endpointslices -o json` printed (or services, pods); `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub endpoints: Option<PathBuf>,
    /// Labels of prefill nodes in --endpoints: `app=llm,role=prefill`
    #[arg(long, value_name = "LABELS")]
    pub prefill_selector: Option<String>,
    /// Labels of decode nodes in --endpoints
    #[arg(long, value_name = "LABELS")]
    pub decode_selector: Option<String>,
    /// Labels of servers that answer alone in --endpoints
    #[arg(long, value_name = "LABELS")]
    pub server_selector: Option<String>,
    /// Name or number of the port in --endpoints [default: the only one]
    #[arg(long, value_name = "PORT")]
    pub endpoints_port: Option<String>,
    /// Variable that holds the key for nodes that have none of their own
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// File that holds the key for nodes that have none of their own
    #[arg(long, value_name = "FILE", conflicts_with = "key_env")]
    pub key_file: Option<String>,
    /// PEM file of authorities that may have signed the nodes' certificates
    #[arg(long, value_name = "FILE")]
    pub ca: Option<String>,
    /// PEM file of a client certificate
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    pub cert: Option<String>,
    /// PEM file of the key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub cert_key: Option<String>,
    /// A context that was promised, in tokens: it can only raise what pools must hold
    #[arg(long, value_name = "N", value_parser = tokens::<u64>)]
    pub context: Option<u64>,
    /// Factor on the context that a pool must hold, for every engine [default: 1.25, and 1.0 for
    /// engines that refuse to start with a pool below their context]
    #[arg(long, value_name = "X")]
    pub headroom: Option<Factor>,
    /// Advisory checks must hold too
    #[arg(long)]
    pub strict: bool,
    /// Accept a check with a reason that is printed; ID@SUBJECT accepts it for one node, group, pool
    /// or advisory
    #[arg(long, value_name = "ID=REASON")]
    pub allow: Vec<Allow>,
    /// Baseline to compare with: what has changed is a violation
    #[arg(long, value_name = "FILE")]
    pub since: Option<PathBuf>,
    /// Write the present state as a baseline
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Table of advisories in place of the built-in one
    #[arg(long, value_name = "FILE")]
    pub advisories: Option<PathBuf>,
    /// What is printed
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Format,
    /// Write a further report to a file: `junit=gate.xml`
    #[arg(long, value_name = "FORMAT=FILE")]
    pub report: Vec<ReportArg<Format>>,
    /// Time that one node may take: 500ms, 5s [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Time that all nodes may take together [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub total_timeout: Option<Duration>,
    /// Read again and again, this often, until interrupted; print when something changes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub interval: Option<Duration>,
    /// Where --interval serves its gauges for Prometheus
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "interval",
        default_value = "127.0.0.1:9464"
    )]
    pub listen: SocketAddr,
    /// List all checks and end
    #[arg(long)]
    pub list: bool,
    /// Explain one check and end
    #[arg(long, value_name = "ID")]
    pub explain: Option<String>,
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people, in 80 columns.
    Table,
    /// Everything, by docs/gate.schema.json.
    Json,
    /// SARIF 2.1.0 for code scanning.
    Sarif,
    /// JUnit XML for CI.
    Junit,
    /// Gauges for Prometheus.
    Prometheus,
}

/// `[ROLE=]FILE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogArg {
    /// What it does, if it was said.
    pub role: Option<Stated>,
    /// The file; `-` is standard input.
    pub file: PathBuf,
}

impl FromStr for LogArg {
    type Err = String;

    fn from_str(text: &str) -> Result<LogArg, String> {
        let roles = [Stated::Prefill, Stated::Decode, Stated::Server];
        for role in roles {
            if let Some(file) = text
                .strip_prefix(role.word())
                .and_then(|it| it.strip_prefix('='))
            {
                let (role, file) = (Some(role), file.into());
                return Ok(LogArg { role, file });
            }
        }
        let (role, file) = (None, text.into());
        Ok(LogArg { role, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_may_have_a_role() {
        let log: LogArg = "decode=a=b.log".parse().unwrap();
        assert_eq!(
            (log.role, log.file),
            (Some(Stated::Decode), "a=b.log".into())
        );
        let log: LogArg = "decoder=a.log".parse().unwrap();
        assert_eq!((log.role, log.file), (None, "decoder=a.log".into()));
    }
}
