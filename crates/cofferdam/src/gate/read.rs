//! Asks every node, reads every log and every figure of a pool; all at once.

use super::plan::{Place, Plan, Target, is_stdin};
use super::pools;
use crate::exit::Failure;
use anyhow::Context;
use gate::assemble::{Reading, assemble};
use gate::config::{Access, Secret as SecretPlace};
use gate::facts::net::{self, Address, Limits, Secret, Tls, TlsFiles};
use gate::facts::{Node, Trouble, Unknown};
use gate::judge::Subjects;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Everything that the plan names, as it is now.
pub(super) async fn all(plan: &Plan) -> Result<Subjects, Failure> {
    let asker = Asker::new(plan);
    let targets = asker.targets(plan).map_err(Failure::usage)?;
    asker.try_pools(plan).map_err(Failure::usage)?;
    let limits = asker.limits;
    let (nodes, logs, pools) = tokio::join!(
        net::describe(&targets, &limits),
        logs(plan),
        asker.pools(plan)
    );
    let mut nodes = nodes.into_iter();
    let mut logs = logs.into_iter();
    let reading = |target: &Target| Reading {
        name: target.name.clone(),
        stated: target.stated,
        shared_address: target.shared_address,
        nodes: match &target.place {
            Place::Url { .. } => nodes.next().unwrap_or_default(),
            Place::Log(_) => logs.next().into_iter().collect(),
        },
    };
    let readings = plan.targets.iter().map(reading).collect();
    Ok(assemble(readings, &plan.groups, pools))
}

/// What it takes to ask: TLS configurations are read once for all that share them.
pub(super) struct Asker {
    limits: Limits,
    end: Instant,
    tls: Mutex<BTreeMap<TlsFiles, Tls>>,
}

impl Asker {
    fn new(plan: &Plan) -> Asker {
        let limits = Limits {
            node: plan.timeout,
            overall: plan.total_timeout,
            ..Limits::default()
        };
        Asker {
            limits,
            end: Instant::now() + plan.total_timeout.min(plan.timeout),
            tls: Mutex::default(),
        }
    }

    fn targets(&self, plan: &Plan) -> anyhow::Result<Vec<net::NetTarget>> {
        let mut targets = Vec::new();
        for target in &plan.targets {
            if let Place::Url { url, access } = &target.place {
                let target = self.target(&target.name, url, access);
                targets.push(target.with_context(|| url.clone())?);
            }
        }
        Ok(targets)
    }

    fn target(&self, name: &str, url: &str, access: &Access) -> anyhow::Result<net::NetTarget> {
        Ok(net::NetTarget {
            name: name.to_owned(),
            address: Address::server(url)?,
            key: match &access.key {
                Some(SecretPlace::Env(name)) => Some(Secret::from_env(name)?),
                Some(SecretPlace::File(path)) => Some(Secret::from_file(Path::new(path))?),
                None => None,
            },
            tls: self.tls(access)?,
        })
    }

    fn tls(&self, access: &Access) -> anyhow::Result<Tls> {
        let path = |it: &Option<String>| it.as_ref().map(PathBuf::from);
        let files = TlsFiles {
            ca: path(&access.ca),
            cert: path(&access.cert),
            key: path(&access.cert_key),
        };
        let mut known = self.tls.lock().unwrap_or_else(|it| it.into_inner());
        if let Some(tls) = known.get(&files) {
            return Ok(tls.clone());
        }
        let tls = Tls::new(&files)?;
        known.insert(files, tls.clone());
        Ok(tls)
    }

    /// The addresses and keys of pools, for their errors alone.
    fn try_pools(&self, plan: &Plan) -> anyhow::Result<()> {
        for pool in &plan.pools {
            for (url, access) in pools::asked(pool) {
                let target = self.target(&pool.name, url, &access.or(&plan.defaults));
                target.with_context(|| format!("pool {}: {url}", pool.name))?;
            }
        }
        Ok(())
    }

    async fn pools(&self, plan: &Plan) -> Vec<gate::shared_pool::PoolReading> {
        let read = plan
            .pools
            .iter()
            .map(|entry| pools::read(entry, plan, self));
        futures::future::join_all(read).await
    }

    /// The body of one answer, or what came instead.
    pub(super) async fn body(&self, url: &str, access: &Access) -> Result<Vec<u8>, String> {
        let target = self
            .target(url, url, access)
            .map_err(|it| format!("{it:#}"))?;
        let (key, bytes) = (target.key.as_ref(), self.limits.answer_bytes);
        let body = net::get(&target.address, key, &target.tls, bytes, self.end).await;
        body.map(net::Body::into_bytes)
            .map_err(|it| format!("{url}: {it}"))
    }
}

/// The logs, in the order of the plan.
async fn logs(plan: &Plan) -> Vec<Node> {
    let mut reading = JoinSet::new();
    let files = plan
        .targets
        .iter()
        .filter_map(|target| match &target.place {
            Place::Log(file) => Some((target.name.clone(), file.clone())),
            Place::Url { .. } => None,
        });
    for (place, (name, file)) in files.enumerate() {
        reading.spawn_blocking(move || (place, log(&name, &file)));
    }
    let mut nodes = reading.join_all().await;
    nodes.sort_by_key(|(place, _)| *place);
    nodes.into_iter().map(|(_, node)| node).collect()
}

fn log(name: &str, file: &Path) -> Node {
    if is_stdin(file) {
        return gate::facts::read_log("stdin", std::io::stdin().lock());
    }
    match File::open(file) {
        Ok(file) => gate::facts::read_log(name, BufReader::new(file)),
        Err(error) => {
            let trouble = Trouble::Unreachable {
                why: error.to_string(),
            };
            let url = file.display().to_string();
            Node::unknown(name, Unknown::NotRead { url, trouble })
        }
    }
}
