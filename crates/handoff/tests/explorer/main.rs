//! A small explorer of the shipped machines: one gateway, one prefill, one decode, breadth-first
//! over whole worlds. Every page write is an event of its own that reads its source when it lands,
//! possibly after its submission was reported failed. It must be clean before anything is built on
//! the core, and it grows into the checker.
//!
//! What it bounds: two requests; messages of the gateway's connections arrive at once (those
//! between prefill and decode in any interleaving); one fault of each kind that a test names.

mod act;
mod effects;
mod search;
mod world;

use search::{Report, explore};
use world::{Faults, Setup};

/// Distinct worlds per run, at most: a few seconds on two busy cores.
const BOUND: usize = 120_000;

fn run(name: &str, setup: &Setup) -> Report {
    let report = explore(setup, BOUND);
    println!(
        "{name}: {} worlds, {} steps deep, complete: {}, seen: {:?}",
        report.worlds, report.depth, report.complete, report.seen
    );
    assert!(
        report.complete,
        "{name}: more worlds than the bound; it must be explored whole"
    );
    if let Some(violation) = &report.violation {
        panic!(
            "{name}: {}\n{}",
            violation.what,
            violation.timeline.join("\n")
        );
    }
    report
}

fn saw(report: &Report, situations: &[&str]) {
    for situation in situations {
        assert!(
            report.seen.contains_key(*situation),
            "never happened: {situation}"
        );
    }
}

/// H-14, H-18: the two compete for a decode pool that holds only one of them, and from every world
/// both are answered.
#[test]
fn without_faults_both_requests_are_answered() {
    let report = run("no faults", &Setup::default());
    saw(&report, &["answered", "committed", "taken", "step", "busy"]);
    assert!(
        !report.seen.contains_key("failed"),
        "nothing fails without a fault"
    );
}

#[test]
fn a_client_may_leave_at_any_moment() {
    let faults = Faults {
        leaves: 1,
        ..Faults::default()
    };
    let report = run(
        "a client leaves",
        &Setup {
            faults,
            ..Setup::default()
        },
    );
    saw(&report, &["left", "cancel", "abandoned", "answered"]);
}

#[test]
fn a_write_may_fail_and_land_later() {
    let faults = Faults {
        failed_writes: 1,
        ..Faults::default()
    };
    let report = run(
        "a write fails",
        &Setup {
            faults,
            ..Setup::default()
        },
    );
    saw(
        &report,
        &["unsettled", "late write", "fenced", "retried", "answered"],
    );
}

#[test]
fn the_connection_may_break() {
    let faults = Faults {
        breaks: 1,
        ..Faults::default()
    };
    let report = run(
        "the connection breaks",
        &Setup {
            faults,
            ..Setup::default()
        },
    );
    saw(&report, &["redialled", "stated again", "answered"]);
}

#[test]
fn any_deadline_may_pass() {
    let faults = Faults {
        deadlines: 1,
        ..Faults::default()
    };
    let report = run(
        "a deadline passes",
        &Setup {
            faults,
            ..Setup::default()
        },
    );
    saw(&report, &["deadline", "answered"]);
}

#[test]
fn a_break_and_a_deadline_together() {
    let faults = Faults {
        breaks: 1,
        deadlines: 1,
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![Setup::default().prompts[0].clone()],
        faults,
        ..Setup::default()
    };
    let report = run("a break and a deadline", &setup);
    saw(&report, &["redialled", "deadline", "fenced"]);
}

#[test]
fn a_failed_write_and_a_break_together() {
    let faults = Faults {
        breaks: 1,
        failed_writes: 1,
        ..Faults::default()
    };
    let mut setup = Setup {
        faults,
        ..Setup::default()
    };
    setup.prompts.truncate(1);
    setup.prompts[0].max_new = 1;
    let report = run("a failed write and a break", &setup);
    saw(&report, &["redialled", "unsettled", "late write", "fenced"]);
}

#[test]
fn a_prefix_is_shared_inside_one_domain_only() {
    let mut setup = Setup::default();
    setup.prompts[1].tokens = vec![1, 1, 2];
    let report = run("one domain", &setup);
    saw(&report, &["prefix hit"]);
    setup.prompts[1].domain = 9;
    let report = run("two domains", &setup);
    assert!(
        !report.seen.contains_key("prefix hit"),
        "H-13: no hit across domains"
    );
}
