//! `self-test`: how many requests does `cofferdam probe` need to find a defect of our own engine?
//!
//! A whole server runs in this process, as for `reproduce`, with decisions swapped
//! ([`crate::defects`]); the probe asks it over HTTP like any other and does not know which.
//! [`cases`] says what is swapped and which suites are run.

mod cases;
mod table;
mod timings;

use crate::defects::swap::Swapped;
use crate::reproduce::stack::{Differs, KEYS, Shape, Stack};
use anyhow::Context;
use cases::{ALL, Case, NONE};
use clap::Args;
use gate::facts::net::{Address, Secret, Tls, TlsFiles};
use probe::suites::{Known, Stopped};
use probe::wire::Dialect;
use probe::{Budget, Kind, ProbeRun, Tenant, TenantEndpoint};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Tokens of a prompt that every engine here takes: the prefill pool of one with an edge, the context
/// of the others.
const LIMIT: u32 = 332;
/// Tokens of decode's pool: what two prompts want at once does not fit.
const POOL: u32 = 512;

/// Time after which a request without an answer hangs: long, because others may use the processors too.
const HANG: Duration = Duration::from_secs(120);

/// Settings.
#[derive(Debug, Args)]
pub(crate) struct SelfTest {
    /// Runs for each defect, each with a seed of its own.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=250))]
    seeds: u8,
    /// Only this defect; may be given more than once.
    #[arg(long, value_name = "ID")]
    defect: Vec<String>,
    /// Requests that a run may take to find something.
    #[arg(long, default_value_t = 400)]
    requests: u64,
    /// Requests to the engine without a defect, after the others; 0 leaves it out.
    #[arg(long, default_value_t = 1000)]
    healthy: u64,
    /// Write times to the first token of D-01's engine to this file, and do nothing else.
    #[arg(long, value_name = "FILE")]
    timings: Option<PathBuf>,
    /// Requests that are timed.
    #[arg(long, default_value_t = 500)]
    timed: u64,
    /// The weights, a GGUF file; SmolLM2-135M-Instruct is fetched if this is left out.
    #[arg(long, env = "COFFERDAM_MODEL")]
    model: Option<PathBuf>,
}

/// What one run came to.
#[derive(Clone, Debug)]
struct Outcome {
    /// The worst that was found.
    found: Option<Kind>,
    /// Requests until then, or all.
    requests: u64,
    /// Answers that could have shown a canary, and those that showed their own.
    telling: (u64, u64),
    /// Whether the engine noticed, and stopped itself.
    stopped: bool,
    /// What was said of it, for findings that nobody expects.
    says: Option<String>,
}

impl SelfTest {
    /// Runs it: 0 if every defect was found in every run, or made the engine stop, and nothing in the engine without one, 1 if
    /// not, 3 if it could not be run.
    pub(crate) fn run(self) -> ExitCode {
        match self.measure() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(3)
            }
        }
    }

    fn measure(&self) -> anyhow::Result<bool> {
        for id in &self.defect {
            let ids: Vec<_> = ALL.iter().map(|case| case.id).collect();
            let known = ids.contains(&id.as_str());
            // Nothing would be asked, and all of nothing is found.
            anyhow::ensure!(
                known,
                "no defect here is called {id}; there are {}",
                ids.join(", ")
            );
        }
        let model = match &self.model {
            Some(model) => model.clone(),
            None => gguf::fetch::Fetcher::new()?.ensure()?,
        };
        if let Some(file) = &self.timings {
            timings::write(&model, file, self.timed)?;
            return Ok(true);
        }
        let wanted =
            |case: &&Case| self.defect.is_empty() || self.defect.iter().any(|it| it == case.id);
        let mut good = true;
        table::opening();
        for case in ALL.iter().filter(wanted) {
            let mut outcomes = Vec::new();
            for seed in 0..self.seeds {
                let budget = Budget {
                    requests: self.requests,
                    until: Some(case.until),
                    ..budget()
                };
                let stack = start(&model, case)?;
                let mut outcome = ask(&stack, case, [seed + 1; 32], budget)?;
                outcome.stopped = stack.end().is_err();
                eprintln!("{} seed {seed}: {outcome:?}", case.id);
                outcomes.push(outcome);
            }
            let seen = |it: &Outcome| it.stopped || it.found.is_some_and(|kind| kind <= case.until);
            good &= outcomes.iter().all(seen);
            table::row(case, &outcomes);
        }
        if self.healthy > 0 {
            good &= self.healthy(&model)?;
        }
        Ok(good)
    }

    /// The engine as it is shipped, all suites again and again: nothing may be found.
    fn healthy(&self, model: &Path) -> anyhow::Result<bool> {
        let stack = start(model, &NONE)?;
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut asked = 0;
        for seed in 0..=u8::MAX {
            let budget = Budget {
                requests: self.healthy - asked,
                ..budget()
            };
            let outcome = ask(&stack, &NONE, [seed; 32], budget)?;
            asked += outcome.requests;
            eprintln!("no defect: {asked} requests, the last of them: {outcome:?}");
            outcomes.push(outcome);
            if asked >= self.healthy || outcomes.last().is_some_and(|it| it.requests == 0) {
                break;
            }
        }
        stack.end()?;
        table::healthy(&outcomes);
        Ok(outcomes.iter().all(|it| it.found.is_none()))
    }
}

fn budget() -> Budget {
    Budget {
        tokens: u64::MAX,
        time: Duration::from_secs(3600),
        rate: 0.0,
        request_time: HANG,
        ..Budget::default()
    }
}

fn start(model: &Path, case: &Case) -> anyhow::Result<Stack> {
    let shape = Shape {
        page_size: 4,
        prefill_pool: if case.edge { LIMIT } else { POOL },
        context: if case.edge { POOL } else { LIMIT },
        decode_pool: POOL.into(),
    };
    start_as(model, case, shape)
}

fn start_as(model: &Path, case: &Case, shape: Shape) -> anyhow::Result<Stack> {
    let differs = Differs {
        decisions: Swapped(case.swaps),
        scrub: false,
        cache: case.cache,
        traced: false,
    };
    Stack::start_by(model, shape, differs)
}

/// The server of a stack, as both tenants reach it.
fn endpoints(stack: &Stack) -> anyhow::Result<BTreeMap<Tenant, TenantEndpoint>> {
    let mut endpoints = BTreeMap::new();
    for (n, (_, key)) in KEYS.iter().enumerate() {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), key)?;
        let endpoint = TenantEndpoint {
            address: Address::parse(&format!("http://{}", stack.api.addr))?,
            key: Some(Secret::from_file(file.path())?),
            tls: Tls::new(&TlsFiles::default())?,
            dialect: Dialect::Completions,
            model: None,
        };
        endpoints.insert(Tenant(n as u8), endpoint);
    }
    Ok(endpoints)
}

/// Runs a client to its end.
fn ask_all<T>(client: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the client's runtime")?;
    Ok(runtime.block_on(client))
}

/// Asks as `cofferdam probe` would.
fn ask(stack: &Stack, case: &Case, seed: [u8; 32], budget: Budget) -> anyhow::Result<Outcome> {
    let endpoints = endpoints(stack)?;
    let run = ask_all(async {
        let run = ProbeRun::new(endpoints, seed, budget);
        let known = Known {
            // With an edge, the prompt alone must fit into the pool; else an answer follows it.
            limit: Some(u64::from(LIMIT) - u64::from(!case.edge)),
            pool: Some(POOL.into()),
            ..Known::default()
        };
        for suite in case.suites {
            if let Err(Stopped::Spent(_)) = suite.run(&run, &known).await {
                break;
            }
        }
        run
    })?;
    let counts = run.counts();
    let telling = counts.telling();
    let findings = run.findings();
    let found = findings.iter().find(|it| it.kind.convicts());
    Ok(Outcome {
        found: found.map(|it| it.kind),
        requests: counts.requests,
        stopped: false,
        telling: (telling.answers, telling.own),
        says: found.map(|it| it.says.clone()),
    })
}
