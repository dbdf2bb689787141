//! Every world of the bounds that are quick, in both modes: every clause holds, everything that a
//! world is there to show is seen, and there are as many states as were written down, and the same
//! situations are met in them.
//!
//! `CHECKER_PIN=1 cargo test -p lab --test whole pinned` writes the numbers down anew;
//! with `CHECKER_WORLD=NAME` those of that world alone.

use lab::beside::side_by_side;
use lab::bound::Bound;
use lab::pinned;
use lab::scenario::{ALL, Mode, Scenario};
use lab::search::{Stop, explore};
use lab::situations;
use lab::world::World;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pinned.toml");

/// What is written down of a world.
#[derive(PartialEq, Debug)]
struct Pinned {
    states: u64,
    seen: Vec<&'static str>,
}

/// The only world that is asked about, if there is one.
fn one_world() -> Option<String> {
    std::env::var("CHECKER_WORLD").ok()
}

/// What there is in every world at this bound of which that is asked for; panics where a clause does
/// not hold.
fn explore_all(bound: Bound, asked: impl Fn(Mode, &str) -> bool) -> BTreeMap<String, Pinned> {
    let mut found = BTreeMap::new();
    let mut seen_somewhere = BTreeSet::new();
    let only = one_world();
    let asked =
        |mode, world: &str| asked(mode, world) && only.as_deref().is_none_or(|only| world == only);
    let worlds: Vec<_> = [Mode::Landing, Mode::Direct]
        .into_iter()
        .flat_map(|mode| ALL.iter().map(move |scenario| (mode, scenario)))
        .filter(|(mode, scenario)| asked(*mode, scenario.name))
        .filter_map(|(mode, it)| Some((mode, it, World::new(it.setup(bound, mode)?))))
        .collect();
    let mut limits = bound.limits();
    let lanes = std::mem::replace(&mut limits.threads, 1);
    let one = |(_, _, world): &(_, _, World)| explore(world, &limits, &mut |_| {});
    let size = |(mode, scenario, _): &(Mode, &Scenario, _)| {
        pinned::states(bound, *mode, scenario.name).unwrap_or_default()
    };
    side_by_side(
        &worlds,
        lanes,
        size,
        one,
        |(mode, scenario, world), report| {
            let key = pinned::key(bound, *mode, scenario.name);
            if let Some(found) = &report.violation {
                let timeline = lab::timeline::replay(world, &found.acts);
                let timeline = timeline.expect("a run of this world");
                panic!("{key}: {}\n{timeline}", found.violation);
            }
            assert_eq!(report.stop, Stop::Complete, "{key}");
            for situation in scenario.must_see(*mode) {
                let seen = report.tally.seen.contains_key(situation);
                assert!(seen, "{key}: never happened: {situation}");
            }
            seen_somewhere.extend(report.tally.seen.keys().copied());
            println!("{key}: {} states in {:?}", report.states, report.elapsed);
            let seen = report.tally.seen.keys().copied().collect();
            let states = report.states as u64;
            found.insert(key, Pinned { states, seen });
            ControlFlow::Continue(())
        },
    );
    // Some need more room than the smallest worlds have: they are asked for where there is.
    if bound == Bound::Quick && only.is_none() {
        let never = situations::ALL
            .iter()
            .filter(|it| !seen_somewhere.contains(*it));
        let never: Vec<_> = never.collect();
        assert!(
            never.is_empty(),
            "{bound}: no world has ever shown {never:?}"
        );
    }
    found
}

fn pinned_as(bound: Bound, key: &str) -> Option<Pinned> {
    let (mode, rest) = key.split_once('/').expect("mode/bound/world");
    let (_, world) = rest.split_once('/').expect("mode/bound/world");
    let modes = [Mode::Landing, Mode::Direct];
    let mode = modes.into_iter().find(|known| known.to_string() == mode);
    let mode = mode.expect("a mode");
    let states = pinned::states(bound, mode, world)?;
    let seen = pinned::situations(bound, mode, world)?;
    Some(Pinned { states, seen })
}

fn compare(bound: Bound, found: &BTreeMap<String, Pinned>) {
    if std::env::var_os("CHECKER_PIN").is_some() {
        return pin(bound, found);
    }
    for (key, found) in found {
        let pinned = pinned_as(bound, key);
        assert_eq!(
            pinned.as_ref(),
            Some(found),
            "{key}: the model has changed. If that is meant: CHECKER_PIN=1 cargo test -p \
             lab --test whole pinned"
        );
    }
}

/// Replaces the lines of this bound; of the largest, those of the worlds that were explored.
fn pin(bound: Bound, found: &BTreeMap<String, Pinned>) {
    use std::sync::{Mutex, PoisonError};
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let text = std::fs::read_to_string(FILE).expect("the file is there");
    let replaced = |line: &str| {
        let name = line
            .split(" = ")
            .next()
            .unwrap_or_default()
            .trim_matches('"');
        let world = name.strip_suffix("/sees").unwrap_or(name);
        let of_bound = line.contains(&format!("/{bound}/"));
        let all = bound != Bound::Deep && one_world().is_none();
        of_bound && (all || found.contains_key(world))
    };
    let others = text
        .lines()
        .filter(|line| line.contains(" = ") && !replaced(line));
    let mut lines: Vec<String> = others.map(str::to_owned).collect();
    for (key, Pinned { states, seen }) in found {
        lines.push(format!("\"{key}\" = {states}"));
        lines.push(format!(
            "\"{}\" = \"{}\"",
            pinned::sees(key),
            seen.join(", ")
        ));
    }
    lines.sort();
    let head = "# Distinct states of every world, and the situations that were met in it: mode/bound/world.\n\
                # Written by a test (tests/whole/pinned.rs).\n";
    std::fs::write(FILE, format!("{head}{}\n", lines.join("\n"))).expect("written");
}

#[test]
fn every_clause_holds_in_every_world_at_smoke() {
    compare(Bound::Smoke, &explore_all(Bound::Smoke, |_, _| true));
}

#[test]
fn every_clause_holds_in_every_world_at_quick() {
    compare(Bound::Quick, &explore_all(Bound::Quick, |_, _| true));
}

/// Small ones among the worlds of the largest bound. The others take minutes each.
const SMALL_AT_DEEP: [&str; 5] = ["calm", "caps", "echo", "scrub", "truncated"];

#[test]
fn every_clause_holds_in_the_smallest_worlds_at_deep() {
    let found = explore_all(Bound::Deep, |_, world| SMALL_AT_DEEP.contains(&world));
    assert!(
        found.len() > SMALL_AT_DEEP.len() || one_world().is_some(),
        "{found:?}"
    );
    compare(Bound::Deep, &found);
}
