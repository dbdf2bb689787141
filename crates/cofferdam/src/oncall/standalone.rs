//! `cofferdam canary`: canaries for ever through somebody else's door, such as SGLang's router or vLLM's.

use super::canaries::signal_of;
use super::command::signalled;
use crate::args::Canary;
use crate::exit::{Exit, Failure};
use crate::files::say;
use crate::probe::tenants;
use crate::runtime;
use crate::stop::Stop;
use ::probe::vigil::{Allowance, Sums, Tally, Vigil, VigilStep};
use ::probe::{Tenant, TenantEndpoint};
use anyhow::anyhow;
use gate::facts::Node;
use gate::facts::net::{Address, Limits, NetTarget, describe};
use oncall::{Life, Signal};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One canary; longer is no answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the servers are asked again what they take and who they are.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Runs it until a signal, or for as many steps as were wanted.
pub(crate) fn run(it: &Canary) -> Result<Exit, Failure> {
    let endpoints = tenants(
        &it.url,
        (it.key_a.as_deref(), it.key_b.as_deref()),
        (it.ca.as_deref(), it.dialect, it.model.as_deref()),
    );
    let endpoints = endpoints.map_err(Failure::usage)?;
    let one_key = endpoints[&Tenant(0)].key == endpoints[&Tenant(1)].key;
    if one_key {
        eprintln!(
            "--key-a and --key-b are one key, or none: both tenants are one to the server, and what \
             crosses between them is called a leak all the same"
        );
    }
    let runtime = runtime::on_this_thread()?;
    let tally = runtime.block_on(watched(it, endpoints))?;
    said(&tally)
}

async fn watched(
    it: &Canary,
    endpoints: BTreeMap<Tenant, TenantEndpoint>,
) -> Result<Watched, Failure> {
    let mut all = Watched::default();
    let mut stop = Stop::new()?;
    let mut servers = Servers::new(it, &endpoints[&Tenant(0)]).map_err(Failure::usage)?;
    let mut vigil = Vigil::new(endpoints, PATIENCE, super::canaries::seed);
    let mut allowance = Allowance::new(it.tokens);
    let mut every = tokio::time::interval(it.every);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut turn, mut said_never) = (0_usize, false);
    while it.steps.is_none_or(|steps| (turn as u64) < steps) {
        let step = async {
            every.tick().await;
            servers.ask().await;
            allowance.grows();
            let limit = it.limit.or(servers.limit);
            let next = VigilStep::ALL[turn % VigilStep::ALL.len()];
            let never = allowance.never(limit);
            if let Some(why) = never.filter(|_| !std::mem::replace(&mut said_never, true)) {
                eprintln!("{why} (--tokens)");
            }
            let next = allowance.step(next, limit)?;
            Some((next, vigil.step(next, &[], limit).await))
        };
        let done = tokio::select! {
            done = step => done,
            () = stop.next() => return Ok(all),
        };
        let Some((step, stepped)) = done else {
            continue;
        };
        turn += 1;
        allowance.spent(stepped.tokens);
        all.sums.add(&stepped.sums());
        all.tally
            .add(oncall::times::now() / 60_000, &stepped.sums());
        for found in &stepped.found {
            let Some(signal) = signal_of(found.kind) else {
                continue;
            };
            let says = format!("step {}: {}", step.name(), found.says);
            println!("FOUND {}: {says}", signal.as_str());
            if let Some(path) = &it.incidents {
                let signal = Signal {
                    signal,
                    lives: servers.lives.clone(),
                    request: None,
                    tenant: None,
                    says,
                    source: "canary".to_owned(),
                };
                let policy = it.incident_policy.as_deref();
                signalled(path, signal, policy, it.model.as_deref().unwrap_or(&it.url))?;
            }
        }
    }
    Ok(all)
}

#[derive(Default)]
struct Watched {
    sums: Sums,
    tally: Tally,
}

fn said(all: &Watched) -> Result<Exit, Failure> {
    let sums = all.sums;
    let (verdict, exit) = match (sums.found, sums.one_in()) {
        (0, Some(_)) => ("nothing found", Exit::Good),
        (0, None) => (
            "could not tell: no canary was gone on with",
            Exit::Unreachable,
        ),
        _ => ("FOUND", Exit::Found),
    };
    let hour = all
        .tally
        .since((oncall::times::now() / 60_000).saturating_sub(59));
    let power = |sums: &Sums| match sums.one_in() {
        Some(n) => format!("a leak in more than one of {n} answers would have been seen with 95 %"),
        None => "nothing would have been seen".to_owned(),
    };
    say(&format!(
        "{verdict}: {} canaries, {} answers that could have shown one, {} showed their own, {} findings\n  \
         all of it: {}\n  the last hour: {}\n",
        sums.sent,
        sums.telling,
        sums.seen,
        sums.found,
        power(&sums),
        power(&hour)
    ))?;
    Ok(exit)
}

/// What the servers say of themselves, from time to time.
struct Servers {
    targets: Vec<NetTarget>,
    asked: Option<Instant>,
    limit: Option<u64>,
    /// Of the workers, or of the server where none are named.
    lives: Vec<Life>,
}

impl Servers {
    fn new(it: &Canary, of: &TenantEndpoint) -> anyhow::Result<Self> {
        let workers = [&it.prefill, &it.decode].into_iter().flatten();
        let target = |url: &String| -> anyhow::Result<NetTarget> {
            Ok(NetTarget {
                name: url.clone(),
                address: Address::server(url).map_err(|why| anyhow!("{url}: {why}"))?,
                key: of.key.clone(),
                tls: of.tls.clone(),
            })
        };
        let mut targets = workers.map(target).collect::<Result<Vec<_>, _>>()?;
        if targets.is_empty() {
            targets.push(target(&it.url)?);
        }
        Ok(Self {
            targets,
            asked: None,
            limit: None,
            lives: Vec::new(),
        })
    }

    async fn ask(&mut self) {
        if self.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            return;
        }
        self.asked = Some(Instant::now());
        let nodes: Vec<Node> = describe(&self.targets, &Limits::default())
            .await
            .into_iter()
            .flatten()
            .collect();
        let limits = nodes
            .iter()
            .filter_map(|it| Some(it.max_prompt.as_ref().ok()?.value));
        // What is known stays known while nobody answers.
        self.limit = limits.min().or(self.limit);
        let life = |node: &Node| {
            let version = node.version.as_ref().map(|it| it.value.to_string());
            let started = node.life.as_ref().map(|it| it.value.as_str()).ok()?;
            Some(Life {
                engine: node.name.clone(),
                life: wire::short_name(&[&node.name, &version.unwrap_or_default(), started]),
            })
        };
        let lives: Vec<Life> = nodes.iter().filter_map(life).collect();
        if !lives.is_empty() {
            self.lives = lives;
        }
    }
}
