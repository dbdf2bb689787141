//! `cofferdam probe`: does it leak?
//!
//! [`args`] become a [`plan`]; crate `probe` asks, looks and judges.

pub mod args;
mod plan;

use crate::evidence;
use crate::exit::{Exit, Failure};
use crate::files::{replace, say};
use crate::runtime;
use ::probe::ask::prompt;
use ::probe::report::{self, ProbeReport, ProbeVerdict};
use ::probe::suites::{Known, Stopped, Suite};
use ::probe::{Author, Canaries, ProbeRun, Tenant};
use anyhow::Context;
use args::{Format, Probe};
use attest::Signer;
use plan::Plan;
#[cfg(feature = "engine")]
pub(crate) use plan::tenants;
use std::fmt::Write;
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Runs it; the exit code is the verdict's.
pub(crate) fn run(args: &Probe) -> Result<Exit, Failure> {
    let mut plan = Plan::new(args).map_err(Failure::usage)?;
    if args.dry_run {
        return say(&dry(args, &plan));
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => drawn().map_err(Failure::found)?,
    };
    let runtime = runtime::on_this_thread()?;
    let signer = args.evidence_key.as_deref().map(Signer::load);
    let signer = signer.transpose().map_err(Failure::usage)?;
    let asked = runtime.block_on(asked(args, &mut plan, seed));
    let (report, tested) = asked.map_err(Failure::found)?;
    // Both are tried: one that cannot be written does not take the other with it.
    let written = write(args, &report);
    say(&shown(args.format, &report))?;
    written?;
    if let (Some(signer), Some(file)) = (&signer, &args.evidence_out) {
        replace(file, &evidence::signed(signer, &report, tested)?)?;
    }
    Ok(match report.verdict() {
        ProbeVerdict::Clean => Exit::Good,
        ProbeVerdict::Found => Exit::Found,
        ProbeVerdict::CouldNotTell => Exit::Unreachable,
    })
}

/// What a run was about, before it and after it.
type Both = (Option<evidence::Tested>, Option<evidence::Tested>);

/// The whole run. However it ends, there is a report.
async fn asked(
    args: &Probe,
    plan: &mut Plan,
    seed: [u8; 32],
) -> anyhow::Result<(ProbeReport, Both)> {
    let mut told = Signals::new()?;
    let (mut interrupted, before) = tokio::select! {
        (cannot, before) = prepared(plan) => (cannot, before),
        name = told.next() => (Some(name.to_owned()), None),
    };
    if let Some(why) = &interrupted {
        eprintln!("{why}");
    }
    let run = ProbeRun::new(plan.endpoints.clone(), seed, plan.budget);
    let suites = suites(&run, plan, args, seed, &mut told, &mut interrupted).await;
    if !args.no_shrink && interrupted.is_none() {
        tokio::select! {
            () = ::probe::shrink::shrink(&run) => {}
            never = tell(&run, "shrink") => never,
            name = told.next() => eprintln!("shrink: {name}"),
        }
    }
    let report = ProbeReport::new(args.url.clone(), seed, &run, suites);
    let after = match args.evidence_out {
        Some(_) if interrupted.is_none() => plan.workers().await,
        _ => None,
    };
    Ok((report, (before, after)))
}

/// What the server says of itself: why it cannot be asked, if so; and the workers that are tested.
async fn prepared(plan: &mut Plan) -> (Option<String>, Option<evidence::Tested>) {
    if let Some(why) = plan.cannot_ask().await {
        return (Some(why), None);
    }
    plan.ask().await;
    (None, plan.workers().await)
}

/// Signals that end a run: what was found so far is reported.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| unix::signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "it was ended (SIGTERM)",
            _ = self.interrupt.recv() => "it was interrupted (SIGINT)",
            _ = self.hang_up.recv() => "its terminal went away (SIGHUP)",
        }
    }
}

/// The files that were asked for.
fn write(args: &Probe, report: &ProbeReport) -> Result<(), Failure> {
    let each = args.report.iter();
    let each: Vec<_> = each
        .map(|wanted| replace(&wanted.file, &shown(wanted.format, report)))
        .collect();
    each.into_iter().collect()
}

/// All suites, one after the other. After each, the files hold what was found so far, whatever
/// happens then. A signal ends the one that runs, and what was not run is said to be so.
async fn suites(
    run: &ProbeRun,
    plan: &Plan,
    args: &Probe,
    seed: [u8; 32],
    told: &mut Signals,
    interrupted: &mut Option<String>,
) -> Vec<(Suite, Option<Stopped>)> {
    let figure = |it: Option<u64>| it.map_or("unknown".to_owned(), |it| it.to_string());
    let known = &plan.known;
    eprintln!(
        "limit {}, pool {}, context {} (tokens); about {} requests, {} at most",
        figure(known.limit),
        figure(known.pool),
        figure(known.context),
        plan.requests(),
        plan.budget.requests
    );
    let why = |why: Option<&str>| Some(Stopped::Needs(why.unwrap_or("it was not run").to_owned()));
    let ended = plan.suites.iter();
    let ended = ended.map(|it| (*it, why(interrupted.as_deref())));
    let mut ended: Vec<_> = ended.collect();
    for n in 0..ended.len() {
        if interrupted.is_some() {
            break;
        }
        let suite = ended[n].0;
        if let Some(reason) = plan.senseless(suite) {
            eprintln!("{}: {reason}", suite.name());
            ended[n].1 = why(Some(reason));
            continue;
        }
        eprintln!("{}: {}", suite.name(), suite.sends());
        let stopped = tokio::select! {
            done = suite.run(run, known) => done.err(),
            never = tell(run, suite.name()) => never,
            name = told.next() => {
                *interrupted = Some(name.to_owned());
                why(Some(name))
            }
        };
        if let Some(stopped) = &stopped {
            eprintln!("{}: {stopped}", suite.name());
        }
        ended[n].1 = stopped;
        let so_far = ProbeReport::new(args.url.clone(), seed, run, ended.clone());
        if let Err(failure) = write(args, &so_far) {
            eprintln!("{failure}"); // said again in the end, with its exit code
        }
    }
    ended
}

/// Says how far it is, until it is dropped.
async fn tell<T>(run: &ProbeRun, suite: &str) -> T {
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let counts = run.counts();
        let found: u64 = counts.findings.values().sum();
        eprintln!(
            "{suite}: {} requests, {} tokens, {found} findings",
            counts.requests, counts.tokens
        );
    }
}

fn shown(format: Format, report: &ProbeReport) -> String {
    match format {
        Format::Table => report::table(report),
        Format::Json => format!("{:#}\n", report::json(report)),
        Format::Junit => report::junit(report),
        Format::Html => report::html(report),
    }
}

/// What would be sent.
fn dry(args: &Probe, plan: &Plan) -> String {
    let mut out = String::new();
    let budget = &plan.budget;
    let _ = writeln!(
        out,
        "would ask {} for at most {} requests, {} tokens, {} s; {} a second, {} at once",
        args.url,
        budget.requests,
        budget.tokens,
        budget.time.as_secs(),
        budget.rate,
        budget.at_once
    );
    for suite in Suite::ALL {
        let wanted = plan.suites.contains(&suite);
        let mark = if wanted { "+" } else { "-" };
        let _ = write!(out, "{mark} {:<10} {}", suite.name(), suite.sends());
        if let Some(why) = suite.hurts() {
            let _ = write!(out, ". Can hurt: {why}");
        }
        let _ = writeln!(out);
    }
    let author = Author {
        tenant: Tenant(0),
        request: 0,
    };
    let marked = Canaries::new(args.seed.unwrap_or_default()).mark(author, 3);
    let _ = writeln!(
        out,
        "about {} requests in all. A prompt of three sentences, as tenant A would send it:\n{}",
        plan.suites
            .iter()
            .map(|it| it.requests(&Known::default()))
            .sum::<u64>(),
        prompt(&marked, 0, true)
    );
    out
}

/// A seed that nobody can guess.
fn drawn() -> anyhow::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the system gives no random bits")?;
    Ok(seed)
}
