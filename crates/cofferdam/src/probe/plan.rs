//! What is asked, with which keys, and what the server says of itself.

use super::args::Probe;
use crate::evidence::Tested;
use ::probe::about;
use ::probe::suites::{Known, Pair, Suite};
use ::probe::{Budget, Tenant, TenantEndpoint};
use anyhow::{Context, anyhow};
use gate::facts::net::{self, Address, Limits, NetTarget, Secret, Tls, TlsFiles};
use gate::facts::{Node, Trouble};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Everything that a run needs.
pub(super) struct Plan {
    pub(super) endpoints: BTreeMap<Tenant, TenantEndpoint>,
    pub(super) known: Known,
    pub(super) suites: Vec<Suite>,
    pub(super) budget: Budget,
    /// What the server said of itself; empty if it was not asked.
    pub(super) nodes: Vec<Node>,
    /// Both tenants were given, and are one to the server.
    one_key: bool,
}

/// Two tenants of a server, each with the key that it is reached with.
#[cfg(feature = "engine")]
pub(crate) fn tenants(
    url: &str,
    (key_a, key_b): (Option<&str>, Option<&str>),
    (ca, dialect, model): (Option<&Path>, super::args::Dialect, Option<&str>),
) -> anyhow::Result<BTreeMap<Tenant, TenantEndpoint>> {
    let address = Address::server(url).with_context(|| url.to_owned())?;
    let tls = Tls::new(&TlsFiles {
        ca: ca.map(Path::to_owned),
        ..TlsFiles::default()
    })?;
    let key_a = key_a.map(key).transpose()?;
    let key_b = key_b.map(key).transpose()?.or_else(|| key_a.clone());
    let endpoint = |key| TenantEndpoint {
        address: address.clone(),
        key,
        tls: tls.clone(),
        dialect: dialect.into(),
        model: model.map(str::to_owned),
    };
    Ok([(Tenant(0), endpoint(key_a)), (Tenant(1), endpoint(key_b))].into())
}

impl Plan {
    pub(super) fn new(args: &Probe) -> anyhow::Result<Plan> {
        let address = Address::server(&args.url).with_context(|| args.url.clone())?;
        let tls = Tls::new(&TlsFiles {
            ca: args.ca.clone(),
            ..TlsFiles::default()
        })?;
        let key_a = args.key_a.as_deref().map(key).transpose()?;
        let key_b = args.key_b.as_deref().map(key).transpose()?;
        let endpoint = |address: Address, key: Option<Secret>| TenantEndpoint {
            address,
            key,
            tls: tls.clone(),
            dialect: args.dialect.into(),
            model: args.model.clone(),
        };
        let one_key = key_a.is_some() && key_a == key_b;
        let of_b = key_b.or_else(|| key_a.clone());
        let pair = match (&args.prefill, &args.decode) {
            (Some(prefill), Some(decode)) => Some(Pair {
                prefill: endpoint(Address::server(prefill)?, key_a.clone()),
                decode: endpoint(Address::server(decode)?, key_a.clone()),
                bootstrap: None,
            }),
            _ => None,
        };
        let a = endpoint(address.clone(), key_a);
        let b = endpoint(address, of_b);
        let suites = args.suites();
        if suites.contains(&Suite::Pair) && pair.is_none() {
            return Err(anyhow!("suite pair needs --prefill and --decode"));
        }
        Ok(Plan {
            endpoints: [(Tenant(0), a), (Tenant(1), b)].into(),
            known: Known {
                limit: args.limit,
                pool: args.pool,
                context: args.context,
                pair,
                adapters: args.lora.clone(),
                ..Known::default()
            },
            suites,
            budget: args.budget(),
            nodes: Vec::new(),
            one_key,
        })
    }

    /// Why this suite cannot tell anything with these keys, if so.
    pub(super) fn senseless(&self, suite: Suite) -> Option<&'static str> {
        (self.one_key && suite == Suite::Prefix).then_some(
            "--key-a and --key-b are one key: to the server both tenants are one, so nothing is \
             told of what divides them",
        )
    }

    /// Why nothing can be asked, if that is so: said once, in place of what every suite would say.
    pub(super) async fn cannot_ask(&self) -> Option<String> {
        let tenants = self.endpoints.values();
        let workers = self.known.pair.iter();
        let workers = workers.flat_map(|pair| [&pair.prefill, &pair.decode]);
        for (n, endpoint) in tenants.chain(workers).enumerate() {
            let key = if n == 1 { "--key-b" } else { "--key-a" };
            let url = endpoint.address.to_string();
            match about::models(endpoint).await {
                Err(why @ Trouble::Refused { .. }) => {
                    return Some(format!("{url}: {why}: {key} FILE or {key} env:NAME"));
                }
                Err(why @ (Trouble::Unreachable { .. } | Trouble::Tls { .. })) => {
                    return Some(format!("{url}: {why}"));
                }
                Err(why @ Trouble::Absent { .. }) if !about::answers(endpoint).await => {
                    return Some(format!(
                        "{url}: {why} of an OpenAI-compatible API below it: give the address that \
                         stands before /v1"
                    ));
                }
                // Whatever else is wrong, its suite says better.
                Ok(()) | Err(_) => {}
            }
        }
        None
    }

    /// Asks the server what it is, and fills in what was not given. What it does not say stays
    /// unknown: a limit is then found by bisection.
    pub(super) async fn ask(&mut self) {
        let a = &self.endpoints[&Tenant(0)];
        let workers = self.known.pair.iter();
        let workers = workers.flat_map(|it| [&it.prefill, &it.decode]);
        let targets: Vec<_> = [a].into_iter().chain(workers).map(target).collect();
        let nodes = net::describe(&targets, &Limits::default()).await;
        self.nodes = nodes.into_iter().flatten().collect();
        let smallest =
            |figure: &dyn Fn(&Node) -> Option<u64>| self.nodes.iter().filter_map(figure).min();
        let limit = smallest(&|it| Some(it.max_prompt.as_ref().ok()?.value));
        let pool = smallest(&|it| Some(it.smallest_pool().ok()?.value));
        let context = self
            .nodes
            .iter()
            .filter_map(|it| Some(it.advertised.as_ref().ok()?.value));
        let context = context.max();
        let known = &mut self.known;
        known.limit = known.limit.or(limit);
        known.pool = known.pool.or(pool);
        known.context = known.context.or(context);
        if let Some(pair) = &mut known.pair {
            pair.bootstrap = bootstrap(&pair.prefill).await;
        }
        if a.model.is_none() {
            let model = model(a).await;
            for endpoint in self.endpoints.values_mut() {
                endpoint.model = model.clone();
            }
            if let Some(pair) = &mut self.known.pair {
                pair.prefill.model = model.clone();
                pair.decode.model = model;
            }
        }
        // What clients are told counts, whatever engine tells it.
        let said = about::said(&self.endpoints[&Tenant(0)]).await;
        self.known.context = self.known.context.or(said.context);
        self.known.salts = said.salts;
    }

    /// The workers behind one of our own gateways, and its version.
    pub(super) async fn workers(&self) -> Option<Tested> {
        let info = get(&self.endpoints[&Tenant(0)], "/server_info").await?;
        Tested::of(&info)
    }

    /// Requests that all suites together take, about.
    pub(super) fn requests(&self) -> u64 {
        self.suites.iter().map(|it| it.requests(&self.known)).sum()
    }
}

fn target(endpoint: &TenantEndpoint) -> NetTarget {
    NetTarget {
        name: endpoint.address.to_string(),
        address: endpoint.address.clone(),
        key: endpoint.key.clone(),
        tls: endpoint.tls.clone(),
    }
}

/// The port at which an SGLang prefill worker is met by decode.
async fn bootstrap(prefill: &TenantEndpoint) -> Option<u16> {
    let info = match get(prefill, "/server_info").await {
        Some(info) => info,
        None => get(prefill, "/get_server_info").await?,
    };
    let is_prefill = info["disaggregation_mode"] == "prefill";
    let port = info["disaggregation_bootstrap_port"].as_u64();
    port.filter(|_| is_prefill)?.try_into().ok()
}

/// The first model that the server names, if it names one.
async fn model(endpoint: &TenantEndpoint) -> Option<String> {
    let value = get(endpoint, "/v1/models").await?;
    Some(value["data"][0]["id"].as_str()?.to_owned())
}

async fn get(endpoint: &TenantEndpoint, path: &str) -> Option<Value> {
    let limits = Limits::default();
    let end = tokio::time::Instant::now() + limits.node;
    let address = endpoint.address.with_path(path);
    let key = endpoint.key.as_ref();
    let body = net::get(&address, key, &endpoint.tls, limits.answer_bytes, end).await;
    serde_json::from_slice(&body.ok()?.into_bytes()).ok()
}

fn key(place: &str) -> anyhow::Result<Secret> {
    Ok(match place.strip_prefix("env:") {
        Some(name) => Secret::from_env(name)?,
        None => Secret::from_file(Path::new(place))?,
    })
}
