//! What is asked: flags and fleet file put together.

use super::args::Gate;
use crate::exit::Failure;
use anyhow::{Context, anyhow, ensure};
use gate::Allow;
use gate::advisories::Table;
use gate::baseline::Baseline;
use gate::config::{
    self, Access, AmountEntry, ConfigError, FleetFile, GroupEntry, PoolEntry, Secret,
};
use gate::endpoints;
use gate::facts::net::Address;
use gate::judge::{Headroom, Stated};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of an advisory table or a baseline that are read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Milliseconds that one node may take.
const TIMEOUT_MS: u64 = 5_000;
/// Milliseconds that all nodes may take.
const TOTAL_TIMEOUT_MS: u64 = 30_000;

/// Everything that a run needs, with no file left to read but logs and keys.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) targets: Vec<Target>,
    pub(super) groups: Vec<GroupEntry>,
    pub(super) pools: Vec<PoolEntry>,
    /// For figures of pools that say nothing themselves.
    pub(super) defaults: Access,
    pub(super) allow: Vec<Allow>,
    pub(super) table: Table,
    pub(super) baseline: Option<Baseline>,
    pub(super) headroom: Headroom,
    pub(super) context: Option<u64>,
    pub(super) strict: bool,
    pub(super) timeout: Duration,
    pub(super) total_timeout: Duration,
    /// The fleet file, as SARIF names it.
    pub(super) artifact: Option<String>,
}

/// One thing to read.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) stated: Option<Stated>,
    pub(super) shared_address: bool,
    pub(super) place: Place,
}

/// Where it is read.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Url { url: String, access: Access },
    Log(PathBuf),
}

impl Plan {
    pub(super) fn new(gate: &Gate) -> Result<Plan, Failure> {
        Plan::from(gate).map_err(Failure::usage)
    }

    fn from(gate: &Gate) -> anyhow::Result<Plan> {
        let file = match &gate.fleet {
            Some(path) => fleet_file(path)?,
            None => FleetFile::default(),
        };
        let base = gate
            .fleet
            .as_deref()
            .and_then(Path::parent)
            .map(Path::to_owned);
        let beside = |name: &str| {
            base.as_ref()
                .map_or(PathBuf::from(name), |it| it.join(name))
        };
        let defaults = access(gate).or(&relative(&file.defaults, &beside));
        let mut targets = from_flags(gate, &defaults);
        from_file(&file, &defaults, &beside, &mut targets)?;
        from_endpoints(gate, &file, &defaults, &mut targets)?;
        ensure!(
            !targets.is_empty() || !file.pool.is_empty(),
            "nothing to look at: give --prefill and --decode, --server, --log, --endpoints or \
             --config"
        );
        addresses(&targets, &file.pool)?;
        unique(&targets)?;
        ensure!(
            gate.interval.is_none() || !targets.iter().any(reads_stdin),
            "--interval reads again and again, which standard input (-) cannot"
        );
        let table = gate
            .advisories
            .clone()
            .or(file.advisories.as_deref().map(&beside));
        let since = gate.since.clone().or(file.since.as_deref().map(&beside));
        let millis = |file: Option<u64>, usual| Duration::from_millis(file.unwrap_or(usual));
        Ok(Plan {
            groups: file.group.clone(),
            allow: [gate.allow.clone(), file.allowed()?].concat(),
            table: table.map_or(Ok(Table::embedded()), |path| read_table(&path))?,
            baseline: since.map(|path| read_baseline(&path)).transpose()?,
            headroom: gate
                .headroom
                .or(file.headroom)
                .map_or(Headroom::default(), |it| it.headroom()),
            context: gate.context.max(file.context),
            strict: gate.strict || file.strict,
            timeout: gate.timeout.unwrap_or(millis(file.timeout_ms, TIMEOUT_MS)),
            total_timeout: gate
                .total_timeout
                .unwrap_or(millis(file.total_timeout_ms, TOTAL_TIMEOUT_MS)),
            artifact: gate.fleet.as_ref().map(|it| it.display().to_string()),
            pools: file.pool.iter().map(|it| pool(it, &beside)).collect(),
            defaults,
            targets,
        })
    }
}

/// Text of a file that is not too large.
pub(super) fn text_of(path: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let read = || -> anyhow::Result<String> {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        let size = file.take(bytes_max + 1).read_to_string(&mut text)?;
        ensure!(size as u64 <= bytes_max, "is larger than {bytes_max} bytes");
        Ok(text)
    };
    read().with_context(|| path.display().to_string())
}

fn fleet_file(path: &Path) -> anyhow::Result<FleetFile> {
    let text = text_of(path, config::BYTES_MAX)?;
    FleetFile::parse(&text).with_context(|| format!("fleet file {}", path.display()))
}

fn read_table(path: &Path) -> anyhow::Result<Table> {
    let text = text_of(path, FILE_BYTES_MAX)?;
    Table::parse(&text).with_context(|| path.display().to_string())
}

fn read_baseline(path: &Path) -> anyhow::Result<Baseline> {
    let text = text_of(path, FILE_BYTES_MAX)?;
    Baseline::parse(&text).with_context(|| path.display().to_string())
}

fn access(gate: &Gate) -> Access {
    let env = gate.key_env.clone().map(Secret::Env);
    Access {
        key: env.or(gate.key_file.clone().map(Secret::File)),
        ca: gate.ca.clone(),
        cert: gate.cert.clone(),
        cert_key: gate.cert_key.clone(),
    }
}

/// Paths in a fleet file are relative to it.
fn relative(access: &Access, beside: &dyn Fn(&str) -> PathBuf) -> Access {
    let path = |it: &Option<String>| it.as_deref().map(|it| beside(it).display().to_string());
    Access {
        key: access.key.clone().map(|key| match key {
            Secret::File(file) => Secret::File(beside(&file).display().to_string()),
            env => env,
        }),
        ca: path(&access.ca),
        cert: path(&access.cert),
        cert_key: path(&access.cert_key),
    }
}

fn from_flags(gate: &Gate, defaults: &Access) -> Vec<Target> {
    let lists = [
        (Stated::Prefill, &gate.prefill),
        (Stated::Decode, &gate.decode),
        (Stated::Server, &gate.server),
    ];
    let mut targets = Vec::new();
    for (role, urls) in lists {
        targets.extend(urls.iter().map(|url| Target {
            name: url.trim_end_matches('/').to_owned(),
            stated: Some(role),
            shared_address: false,
            place: Place::Url {
                url: url.clone(),
                access: defaults.clone(),
            },
        }));
    }
    targets.extend(gate.log.iter().map(|log| Target {
        name: log.file.display().to_string(),
        stated: log.role,
        shared_address: false,
        place: Place::Log(log.file.clone()),
    }));
    targets
}

fn from_file(
    file: &FleetFile,
    defaults: &Access,
    beside: &dyn Fn(&str) -> PathBuf,
    targets: &mut Vec<Target>,
) -> Result<(), ConfigError> {
    for node in &file.node {
        let place = match (&node.url, &node.log) {
            (Some(url), _) => Place::Url {
                url: url.clone(),
                access: relative(&node.access, beside).or(defaults),
            },
            (None, Some(log)) if log == "-" => Place::Log("-".into()),
            (None, log) => Place::Log(beside(log.as_deref().unwrap_or_default())),
        };
        targets.push(Target {
            name: node.name()?.to_owned(),
            stated: Some(node.role.into()),
            shared_address: false,
            place,
        });
    }
    Ok(())
}

fn from_endpoints(
    gate: &Gate,
    file: &FleetFile,
    defaults: &Access,
    targets: &mut Vec<Target>,
) -> anyhow::Result<()> {
    let Some(path) = &gate.endpoints else {
        return Ok(());
    };
    let flag = |flag: &Option<String>, file: &Option<String>| flag.clone().or(file.clone());
    let rules = config::EndpointRules {
        prefill: flag(&gate.prefill_selector, &file.endpoints.prefill),
        decode: flag(&gate.decode_selector, &file.endpoints.decode),
        server: flag(&gate.server_selector, &file.endpoints.server),
        port: flag(&gate.endpoints_port, &file.endpoints.port),
        scheme: file.endpoints.scheme.clone(),
    };
    let json = match is_stdin(path) {
        true => stdin(endpoints::BYTES_MAX)?,
        false => text_of(path, endpoints::BYTES_MAX)?.into_bytes(),
    };
    let found = endpoints::read(&json, &rules).with_context(|| path.display().to_string())?;
    targets.extend(found.into_iter().map(|it| Target {
        name: it.name,
        stated: Some(it.role),
        shared_address: it.shared_address,
        place: Place::Url {
            url: it.url,
            access: defaults.clone(),
        },
    }));
    Ok(())
}

/// Whether this file is standard input.
pub(super) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Standard input, of which there is one: a second reader would wait for ever.
fn stdin(bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let size = std::io::stdin().take(bytes_max + 1).read_to_end(&mut bytes);
    ensure!(
        size.context("-")? as u64 <= bytes_max,
        "- is larger than {bytes_max} bytes"
    );
    Ok(bytes)
}

/// Looks at every address before one of them is printed: it may hold credentials.
fn addresses(targets: &[Target], pools: &[PoolEntry]) -> anyhow::Result<()> {
    let urls = targets.iter().filter_map(|target| match &target.place {
        Place::Url { url, .. } => Some(url.as_str()),
        Place::Log(_) => None,
    });
    let pools = pools.iter().flat_map(super::pools::asked);
    for url in urls.chain(pools.map(|(url, _)| url)) {
        let without = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
        Address::parse(url).with_context(|| without.to_owned())?;
    }
    Ok(())
}

fn reads_stdin(target: &Target) -> bool {
    matches!(&target.place, Place::Log(file) if is_stdin(file))
}

fn unique(targets: &[Target]) -> anyhow::Result<()> {
    ensure!(
        targets.len() <= config::NODES_MAX,
        "at most {} nodes",
        config::NODES_MAX
    );
    let stdin = targets.iter().filter(|it| reads_stdin(it)).count();
    ensure!(stdin <= 1, "standard input (-) can be read once");
    let mut names = BTreeSet::new();
    for target in targets {
        if !names.insert(&target.name) {
            return Err(anyhow!("{:?} is given twice", target.name));
        }
    }
    Ok(())
}

fn pool(entry: &PoolEntry, beside: &dyn Fn(&str) -> PathBuf) -> PoolEntry {
    let mut entry = entry.clone();
    for amount in [&mut entry.size, &mut entry.largest] {
        match amount {
            AmountEntry::Log { file, .. } => *file = beside(file).display().to_string(),
            AmountEntry::Json { access, .. } | AmountEntry::Metric { access, .. } => {
                **access = relative(access, beside);
            }
            AmountEntry::Constant { .. } => {}
        }
    }
    entry
}
