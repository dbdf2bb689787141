//! The fleet file: which nodes there are, what they do, and how they are asked.

mod pool;

pub use pool::{AmountEntry, AttestedEntry, PoolEntry};

use crate::advisories::TableError;
use crate::judge::{Headroom, Stated};
use crate::report::Allow;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of a fleet file that are read.
pub const BYTES_MAX: u64 = 4 << 20;
/// Nodes in one run.
pub const NODES_MAX: usize = 10_000;
/// `[[pool]]` entries in one run.
pub const POOLS_MAX: usize = 1_000;

/// A whole fleet file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FleetFile {
    /// A context that was promised to somebody, in tokens: it can only raise what pools must hold.
    pub context: Option<u64>,
    /// Factor on the context that a pool must hold, for every engine.
    pub headroom: Option<Factor>,
    /// Whether advisory checks must hold too.
    #[serde(default)]
    pub strict: bool,
    /// Milliseconds that one node may take.
    pub timeout_ms: Option<u64>,
    /// Milliseconds that all of them may take.
    pub total_timeout_ms: Option<u64>,
    /// A table of advisories in place of the embedded one.
    pub advisories: Option<String>,
    /// The baseline to compare with.
    pub since: Option<String>,
    /// What is accepted, by check id or `ID@SUBJECT`, with the reason.
    #[serde(default)]
    pub allow: BTreeMap<String, String>,
    /// What nodes are given that say nothing else.
    #[serde(default)]
    pub defaults: Access,
    /// How nodes are found in what `kubectl` exported (`--endpoints`).
    #[serde(default)]
    pub endpoints: EndpointRules,
    /// The nodes.
    #[serde(default)]
    pub node: Vec<NodeEntry>,
    /// Which nodes may hand to which; without one, all prefill nodes to all decode nodes.
    #[serde(default)]
    pub group: Vec<GroupEntry>,
    /// Other shared pools.
    #[serde(default)]
    pub pool: Vec<PoolEntry>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeEntry {
    /// Used by groups, in `--allow` and in reports [default: its URL or log].
    pub name: Option<String>,
    /// Where it answers; without credentials.
    pub url: Option<String>,
    /// Or its start-up log: a file, `-` for standard input.
    pub log: Option<String>,
    /// What it does.
    pub role: RoleEntry,
    /// How it is asked.
    #[serde(flatten)]
    pub access: Access,
}

/// How a server is asked.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Access {
    /// Sent as `Authorization: Bearer`, to this host only.
    pub key: Option<Secret>,
    /// PEM file of the authorities that may have signed its certificate.
    pub ca: Option<String>,
    /// PEM file of our certificate.
    pub cert: Option<String>,
    /// PEM file of the key of `cert`.
    pub cert_key: Option<String>,
}

impl Access {
    /// This, and from `other` what is not given here.
    pub fn or(&self, other: &Access) -> Access {
        Access {
            key: self.key.clone().or_else(|| other.key.clone()),
            ca: self.ca.clone().or_else(|| other.ca.clone()),
            cert: self.cert.clone().or_else(|| other.cert.clone()),
            cert_key: self.cert_key.clone().or_else(|| other.cert_key.clone()),
        }
    }
}

/// Where a key is kept. The key itself never stands in the file, and is never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// `{ env = "NAME" }`
    Env(String),
    /// `{ file = "PATH" }`
    File(String),
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        // Any value is taken first: the usual error would print a key that was written here.
        let value = toml::Value::deserialize(from)?;
        let table = value.as_table().filter(|table| table.len() == 1);
        let pair = table.and_then(|table| table.iter().next());
        match pair.map(|(word, value)| (word.as_str(), value.as_str())) {
            Some(("env", Some(name))) => Ok(Secret::Env(name.to_owned())),
            Some(("file", Some(path))) => Ok(Secret::File(path.to_owned())),
            _ => Err(D::Error::custom(
                "a key never stands in this file: say { env = \"NAME\" } or { file = \"PATH\" }",
            )),
        }
    }
}

/// What a node does, as the file writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleEntry {
    /// Hands over.
    Prefill,
    /// Takes over.
    Decode,
    /// Answers alone.
    Server,
}

impl From<RoleEntry> for Stated {
    fn from(role: RoleEntry) -> Stated {
        match role {
            RoleEntry::Prefill => Stated::Prefill,
            RoleEntry::Decode => Stated::Decode,
            RoleEntry::Server => Stated::Server,
        }
    }
}

/// Nodes that may hand to each other, by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupEntry {
    /// In reports.
    pub name: String,
    /// Names of prefill nodes.
    pub prefill: Vec<String>,
    /// Names of decode nodes.
    pub decode: Vec<String>,
}

/// How endpoints become nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointRules {
    /// Label selector of prefill nodes: `app=llm,role=prefill`.
    pub prefill: Option<String>,
    /// Of decode nodes.
    pub decode: Option<String>,
    /// Of servers that answer alone.
    pub server: Option<String>,
    /// Name or number of the port [default: the only one].
    pub port: Option<String>,
    /// `http` or `https` [default: http].
    pub scheme: Option<String>,
}

/// A factor from 1 to 100, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor(pub u64);

impl Factor {
    /// For all engines.
    pub fn headroom(self) -> Headroom {
        Headroom::of_all(self.0)
    }

    /// From a number as it is typed.
    ///
    /// # Errors
    /// It is not from 1 to 100.
    pub fn new(factor: f64) -> Result<Factor, String> {
        match (1.0..=100.0).contains(&factor) {
            true => Ok(Factor((factor * 1000.0).ceil() as u64)),
            false => Err(format!("{factor} is not from 1 to 100")),
        }
    }
}

impl std::str::FromStr for Factor {
    type Err = String;

    fn from_str(text: &str) -> Result<Factor, String> {
        Factor::new(text.parse().map_err(|_| format!("{text:?} is no number"))?)
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Factor, D::Error> {
        Factor::new(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Why a fleet file cannot be used: line and column where they are known, and the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}{why}")]
pub struct ConfigError {
    at: Place,
    why: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place(Option<(usize, usize, String)>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((line, column, key)) if key.is_empty() => {
                write!(f, "line {line}, column {column}: ")
            }
            Some((line, column, key)) => write!(f, "line {line}, column {column}, `{key}`: "),
            None => Ok(()),
        }
    }
}

impl ConfigError {
    /// One that is about the whole file.
    pub fn whole(why: impl Into<String>) -> ConfigError {
        ConfigError {
            at: Place(None),
            why: why.into(),
        }
    }

    /// The error of the parser, without its excerpt: the line may hold what nobody should see.
    fn of(text: &str, error: &toml::de::Error) -> ConfigError {
        let at = error.span().map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let start = before.rfind('\n').map_or(0, |at| at + 1);
            let of_line = text[start..].lines().next().unwrap_or("");
            let key = of_line.split('=').next().unwrap_or("").trim();
            let key = key.trim_matches(['[', ']', '{', ' ']);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let key = if key.chars().all(plain) { key } else { "" };
            (line, before[start..].chars().count() + 1, key.to_owned())
        });
        ConfigError {
            at: Place(at),
            why: error.message().to_owned(),
        }
    }
}

impl From<TableError> for ConfigError {
    fn from(error: TableError) -> ConfigError {
        ConfigError::whole(error.to_string())
    }
}

impl FleetFile {
    /// Reads and checks a fleet file.
    ///
    /// # Errors
    /// Unknown keys, values of another type, names that do not exist or stand there twice.
    pub fn parse(text: &str) -> Result<FleetFile, ConfigError> {
        let file: FleetFile =
            toml::from_str(text).map_err(|error| ConfigError::of(text, &error))?;
        file.check()?;
        Ok(file)
    }

    /// What is accepted.
    ///
    /// # Errors
    /// A check that does not exist, or no reason.
    pub fn allowed(&self) -> Result<Vec<Allow>, ConfigError> {
        let entries = self.allow.iter();
        let entries = entries.map(|(what, reason)| Allow::new(what, reason));
        let all: Result<Vec<_>, _> = entries.collect();
        all.map_err(|why| ConfigError::whole(format!("[allow]: {why}")))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |why: String| Err(ConfigError::whole(why));
        if self.node.len() > NODES_MAX || self.pool.len() > POOLS_MAX {
            return wrong(format!(
                "at most {NODES_MAX} [[node]] and {POOLS_MAX} [[pool]] entries"
            ));
        }
        let mut names = BTreeMap::new();
        for node in &self.node {
            let name = node.name()?;
            if names.insert(name, node.role).is_some() {
                return wrong(format!("two nodes are called {name:?}"));
            }
        }
        for group in &self.group {
            for (list, role) in [
                (&group.prefill, RoleEntry::Prefill),
                (&group.decode, RoleEntry::Decode),
            ] {
                for name in list {
                    let found = names.get(name.as_str());
                    if found != Some(&role) {
                        let role = Stated::from(role).word();
                        let group = &group.name;
                        return wrong(format!(
                            "group {group:?}: no {role} node is called {name:?}"
                        ));
                    }
                }
            }
        }
        self.allowed().map(|_| ())
    }
}

impl NodeEntry {
    /// What it is called.
    ///
    /// # Errors
    /// It has both a URL and a log, or neither.
    pub fn name(&self) -> Result<&str, ConfigError> {
        let place = match (&self.url, &self.log) {
            (Some(place), None) | (None, Some(place)) => place,
            _ => {
                let name = self.name.as_deref().unwrap_or("without a name");
                let why = format!("node {name}: give `url` or `log`, one of them");
                return Err(ConfigError::whole(why));
            }
        };
        Ok(self.name.as_ref().unwrap_or(place))
    }
}

#[cfg(test)]
mod tests;
