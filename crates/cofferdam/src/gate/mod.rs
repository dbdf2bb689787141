//! `cofferdam gate`: is this fleet safe to promote?
//!
//! [`args`] and the fleet file become a [`plan`]; [`read`] asks every node; the crate `gate` judges. With
//! `--interval` the [`interval`] module does so again and again.

pub mod args;
mod interval;
mod plan;
mod pools;
mod read;

use crate::colour;
use crate::exit::{Exit, Failure};
use crate::files::{replace, say};
use crate::runtime;
use anyhow::anyhow;
use args::{Format, Gate};
use gate::baseline::Baseline;
use gate::date::Date;
use gate::judge::{Rules, Subjects};
use gate::output::{self, Style};
use gate::{Report, check};
use plan::Plan;
use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs it; the exit code is the verdict's.
pub(crate) fn run(gate: &Gate) -> Result<Exit, Failure> {
    if gate.list {
        return say(&output::list());
    }
    if let Some(id) = &gate.explain {
        let check = check::find(id);
        let no_such = || Failure::usage(anyhow!("no check is called {id:?}; --list names all"));
        return say(&output::explain(check.ok_or_else(no_such)?, style()));
    }
    let plan = Plan::new(gate)?;
    let runtime = runtime::on_threads(2)?;
    if let Some(every) = gate.interval {
        return runtime.block_on(interval::run(gate, plan, every));
    }
    let subjects = runtime.block_on(read::all(&plan))?;
    let now = now();
    let report = judged(&plan, subjects, plan.baseline.as_ref(), now);
    write(gate, &plan, &report)?;
    Ok(exit(&report))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |it| it.as_secs())
}

fn judged(plan: &Plan, subjects: Subjects, baseline: Option<&Baseline>, now: u64) -> Report {
    let rules = Rules {
        context: plan.context,
        headroom: plan.headroom,
        today: Date::of_unix(now),
        table: &plan.table,
        baseline,
    };
    Report::new(subjects, &rules, &plan.allow, plan.strict, now)
}

fn exit(report: &Report) -> Exit {
    match report.verdict().exit_code() {
        0 => Exit::Good,
        code => Exit::from_number(code),
    }
}

fn style() -> Style {
    Style {
        colour: colour::wanted(std::io::stdout().is_terminal()),
        ..Style::default()
    }
}

fn shown(format: Format, plan: &Plan, report: &Report, style: Style) -> String {
    match format {
        Format::Table => output::table(report, style),
        Format::Json => format!("{:#}\n", output::json(report)),
        Format::Sarif => format!("{:#}\n", output::sarif(report, plan.artifact.as_deref())),
        Format::Junit => output::junit(report),
        Format::Prometheus => output::prometheus(report),
    }
}

/// Prints the report, and writes what else was asked for.
fn write(gate: &Gate, plan: &Plan, report: &Report) -> Result<(), Failure> {
    if let Some(path) = &gate.save {
        let baseline = Baseline::of(&report.subjects, report.at).to_json();
        replace(path, &baseline)?;
    }
    for wanted in &gate.report {
        let text = shown(wanted.format, plan, report, Style::default());
        replace(&wanted.file, &text)?;
    }
    say(&shown(gate.format, plan, report, style())).map(|_| ())
}
