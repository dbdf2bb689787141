//! Who the engines are: those that were named, those of a file, those of a name's addresses; read again
//! and again, and taken over as a whole or not at all.

use crate::args::{Door, EngineAt, EngineRole};
use anyhow::{Context, bail, ensure};
use gate::config::EndpointRules;
use gate::endpoints;
use gate::facts::net::{Address, NetTarget, Secret, Tls, TlsFiles};
use gate::judge::Stated;
use gateway::door::Upstream;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Engines, at most.
const ENGINES_MAX: usize = 1024;
/// What the API calls a router.
const ROUTER: &str = "router";
/// Time for a name to be resolved.
const NAME_TIME: Duration = Duration::from_secs(3);

/// The engines as they are named now.
pub(super) struct Fleet {
    door: Door,
    key: Option<Secret>,
    /// Whom to trust, and as whom to come.
    pub(super) tls: Tls,
    /// The number of each that was ever named: clients are told `engine-N`, and no address.
    numbers: BTreeMap<String, usize>,
    pub(super) members: Vec<Member>,
    /// Where requests go instead, if it is somebody else who chooses among the members.
    pub(super) router: Option<NetTarget>,
    /// Why the last reading was not taken over.
    trouble: Option<String>,
}

/// One of them.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) at: EngineAt,
    pub(super) target: NetTarget,
    /// Why nothing new goes there.
    pub(super) quarantined: Option<String>,
}

impl Fleet {
    pub(super) async fn new(door: &Door) -> anyhow::Result<Self> {
        let key = door.engine_key_file.as_deref();
        let mut fleet = Self {
            door: door.clone(),
            key: key.map(Secret::from_file).transpose()?,
            tls: Tls::new(&TlsFiles {
                ca: door.engine_ca.clone(),
                cert: door.engine_cert.clone(),
                key: door.engine_cert_key.clone(),
            })
            .context("--engine-ca, --engine-cert, --engine-cert-key")?,
            numbers: BTreeMap::new(),
            members: Vec::new(),
            router: None,
            trouble: None,
        };
        fleet.router = fleet
            .door
            .judge_only
            .as_ref()
            .map(|url| fleet.target(ROUTER, url))
            .transpose()?;
        fleet.members = fleet.read().await?;
        fleet.say(&[]);
        Ok(fleet)
    }

    /// Whether there are others than before. What cannot be read as a whole changes nothing.
    pub(super) async fn read_again(&mut self) -> bool {
        match self.read().await {
            Ok(members) => {
                self.trouble = None;
                let same =
                    |(a, b): (&Member, &Member)| a.at == b.at && a.quarantined == b.quarantined;
                let as_before = members.len() == self.members.len()
                    && members.iter().zip(&self.members).all(same);
                let before = std::mem::replace(&mut self.members, members);
                if !as_before {
                    self.say(&before);
                }
                !as_before
            }
            Err(why) => {
                let why = format!("{why:#}");
                if self.trouble.as_ref() != Some(&why) {
                    tracing::error!("the engines stay as they are: {why}");
                    self.trouble = Some(why);
                }
                false
            }
        }
    }

    /// Where requests go.
    pub(super) fn upstreams(&self) -> Vec<Upstream> {
        match &self.router {
            Some(router) => vec![upstream(router)],
            None => self.members.iter().map(|it| upstream(&it.target)).collect(),
        }
    }

    fn say(&self, before: &[Member]) {
        let known = |it: &Member| before.iter().any(|old| old.target.name == it.target.name);
        for new in self.members.iter().filter(|it| !known(it)) {
            tracing::info!("{} is {}", new.target.name, new.at.url);
        }
        for member in &self.members {
            let name = &member.target.name;
            let old = before.iter().find(|old| old.target.name == *name);
            let old = old.and_then(|it| it.quarantined.as_ref());
            match &member.quarantined {
                Some(why) if old.is_none() => tracing::warn!("{name} is in quarantine: {why}"),
                None if old.is_some() => tracing::warn!("{name} is in quarantine no more"),
                _ => {}
            }
        }
    }

    async fn read(&mut self) -> anyhow::Result<Vec<Member>> {
        let mut named = self.door.engine.clone();
        if let Some(path) = &self.door.engines_file {
            let of_file = of_file(path, &self.door).await;
            named.extend(of_file.with_context(|| path.display().to_string())?);
        }
        let mut all: Vec<EngineAt> = Vec::new();
        for at in named {
            match at.url.strip_prefix("dns+") {
                None => all.push(at),
                Some(url) => all.extend(of_name(&at, url).await?),
            }
        }
        ensure!(!all.is_empty(), "no engine is named");
        ensure!(all.len() <= ENGINES_MAX, "more than {ENGINES_MAX} engines");
        let mut urls = BTreeSet::new();
        if let Some(twice) = all.iter().find(|it| !urls.insert(&it.url)) {
            bail!("{} is named twice", twice.url);
        }
        let quarantine = match &self.door.quarantine_file {
            None => BTreeMap::new(),
            Some(path) => {
                let read = quarantine(path, &all).await;
                read.with_context(|| path.display().to_string())?
            }
        };
        let members = all.into_iter();
        members
            .map(|at| {
                let quarantined = quarantine.get(&at.url).cloned();
                self.member(at, quarantined)
            })
            .collect()
    }

    fn target(&self, name: &str, url: &str) -> anyhow::Result<NetTarget> {
        Ok(NetTarget {
            name: name.to_owned(),
            address: Address::server(url).with_context(|| url.to_owned())?,
            key: self.key.clone(),
            tls: self.tls.clone(),
        })
    }

    fn member(&mut self, at: EngineAt, quarantined: Option<String>) -> anyhow::Result<Member> {
        let next = self.numbers.len();
        let number = *self.numbers.entry(at.url.clone()).or_insert(next);
        let target = self.target(&format!("engine-{number}"), &at.url)?;
        Ok(Member {
            at,
            target,
            quarantined,
        })
    }
}

/// Where a server is asked.
pub(super) fn upstream(target: &NetTarget) -> Upstream {
    Upstream {
        name: target.name.clone(),
        authority: target.address.authority(),
        tls: target.address.is_tls(),
        key: target.key.as_ref().map(|key| {
            let bearer = key.bearer();
            let text = bearer.to_str().unwrap_or_default();
            text.trim_start_matches("Bearer ").to_owned()
        }),
    }
}

/// Bytes of a list of lines.
const LINES_MAX: u64 = 1 << 20;

/// Who is in quarantine, and why. Who is not known here is none of ours, but for a name that is not
/// spelled as it was named.
async fn quarantine(path: &Path, known: &[EngineAt]) -> anyhow::Result<BTreeMap<String, String>> {
    let bytes = bytes_of(path, LINES_MAX).await?;
    let text = std::str::from_utf8(&bytes).context("it is no text")?;
    let mut quarantine = BTreeMap::new();
    for (n, line) in lines(text) {
        let (url, why) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let url = url.trim_end_matches('/');
        ensure!(
            url.starts_with("http://") || url.starts_with("https://"),
            "line {n}: {url:?} is no URL: URL REASON"
        );
        let same = |it: &&EngineAt| it.url.trim_end_matches('/') == url;
        let Some(at) = known.iter().find(same) else {
            continue;
        };
        let why = match why.trim() {
            "" => "no reason given",
            why => why,
        };
        quarantine.insert(at.url.clone(), why.to_owned());
    }
    Ok(quarantine)
}

/// Lines that say something, numbered from one.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(n, line)| (n + 1, line))
}

async fn bytes_of(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let file = tokio::fs::File::open(path).await?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).await?;
    ensure!(bytes.len() as u64 <= most, "it has more than {most} bytes");
    Ok(bytes)
}

/// A line each, or what `kubectl get endpointslices -o json` printed.
async fn of_file(path: &Path, door: &Door) -> anyhow::Result<Vec<EngineAt>> {
    let bytes = bytes_of(path, endpoints::BYTES_MAX).await?;
    if bytes.trim_ascii_start().starts_with(b"{") {
        return of_endpoints(&bytes, door);
    }
    let text = std::str::from_utf8(&bytes).context("it is no text")?;
    lines(text)
        .map(|(n, line)| {
            let at = line.parse::<EngineAt>();
            at.map_err(|why| anyhow::anyhow!("line {n}: {why}"))
        })
        .collect()
}

fn of_endpoints(json: &[u8], door: &Door) -> anyhow::Result<Vec<EngineAt>> {
    let rules = EndpointRules {
        prefill: door.prefill_selector.clone(),
        decode: door.decode_selector.clone(),
        server: door.server_selector.clone(),
        port: door.engines_port.clone(),
        scheme: None,
    };
    let found = endpoints::read(json, &rules)?;
    let at = |endpoint: endpoints::FleetAddress| {
        ensure!(
            !endpoint.shared_address,
            "{} stands for several servers: export the EndpointSlices",
            endpoint.name
        );
        let mut at: EngineAt = endpoint.url.parse().map_err(anyhow::Error::msg)?;
        at.role = match endpoint.role {
            Stated::Prefill => Some(EngineRole::Prefill),
            Stated::Decode => Some(EngineRole::Decode),
            Stated::Server => None,
        };
        at.pod = endpoint.pod;
        Ok(at)
    };
    found.into_iter().map(at).collect()
}

/// One for each address of a name.
async fn of_name(at: &EngineAt, url: &str) -> anyhow::Result<Vec<EngineAt>> {
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let found = tokio::time::timeout(NAME_TIME, tokio::net::lookup_host(host)).await;
    let found = found.with_context(|| format!("{host}: the name was not resolved in time"))?;
    let found = found.with_context(|| host.to_owned())?;
    let addresses: BTreeSet<SocketAddr> = found.collect();
    let at = |address| EngineAt {
        url: format!("http://{address}"),
        ..at.clone()
    };
    Ok(addresses.into_iter().map(at).collect())
}
