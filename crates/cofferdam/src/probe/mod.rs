//! `cofferdam probe`: does it leak?
//!
//! [`args`] become a [`plan`]; crate `probe` asks, looks and judges.

pub mod args;
mod plan;

use crate::evidence;
use crate::exit::{Exit, Failure};
use crate::files::{replace, say};
use ::probe::ask::prompt;
use ::probe::report::{self, Report, Verdict};
use ::probe::suites::{Known, Stopped, Suite};
use ::probe::{Author, Canaries, Run, Tenant};
use anyhow::Context;
use args::{Format, Probe};
use control::evidence::Signer;
use plan::Plan;
use std::fmt::Write;
use std::time::Duration;

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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .map_err(Failure::found)?;
    let signer = args.evidence_key.as_deref().map(Signer::load);
    let signer = signer.transpose().map_err(Failure::usage)?;
    let (report, tested) = runtime.block_on(async {
        plan.ask().await;
        let before = plan.workers().await;
        let run = Run::new(plan.endpoints.clone(), seed, plan.budget);
        let suites = suites(&run, &plan).await;
        if !args.no_shrink {
            tokio::select! {
                () = ::probe::shrink::shrink(&run) => {}
                never = tell(&run, "shrink") => never,
                _ = tokio::signal::ctrl_c() => eprintln!("shrink: it was interrupted"),
            }
        }
        let report = Report::new(args.url.clone(), seed, &run, suites);
        (report, (before, plan.workers().await))
    });
    for wanted in &args.report {
        replace(&wanted.file, &shown(wanted.format, &report))?;
    }
    say(&shown(args.format, &report))?;
    if let (Some(signer), Some(file)) = (&signer, &args.evidence_out) {
        replace(file, &evidence::signed(signer, &report, tested)?)?;
    }
    Ok(match report.verdict() {
        Verdict::Clean => Exit::Good,
        Verdict::Found => Exit::Found,
        Verdict::CouldNotTell => Exit::Unreachable,
    })
}

/// All suites, one after the other. An interrupt ends the one that runs, and is said.
async fn suites(run: &Run, plan: &Plan) -> Vec<(Suite, Option<Stopped>)> {
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
    let mut ended = Vec::new();
    for suite in &plan.suites {
        eprintln!("{}: {}", suite.name(), suite.sends());
        let stopped = tokio::select! {
            done = suite.run(run, known) => done.err(),
            never = tell(run, suite.name()) => never,
            _ = tokio::signal::ctrl_c() => {
                Some(Stopped::Needs("it was interrupted".to_owned()))
            }
        };
        if let Some(stopped) = &stopped {
            eprintln!("{}: {stopped}", suite.name());
        }
        let interrupted =
            matches!(&stopped, Some(Stopped::Needs(it)) if it == "it was interrupted");
        ended.push((*suite, stopped));
        if interrupted {
            break;
        }
    }
    ended
}

/// Says how far it is, until it is dropped.
async fn tell<T>(run: &Run, suite: &str) -> T {
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

fn shown(format: Format, report: &Report) -> String {
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
    let drawn = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    anyhow::ensure!(
        drawn.context("the system gives no randomness")? == seed.len(),
        "the system gives too little randomness"
    );
    Ok(seed)
}
