use super::{ALL, DEFECTS, Front, Scenario, Swapped};
use crate::model::{CLAUSES, Model};
use crate::search::{Limits, Stop, explore, second};
use std::collections::BTreeSet;

/// Distinct states of every world, at smoke and at the larger bounds. A model that has become smaller
/// without anybody wanting it fails.
const PINNED: [(&str, usize, usize); 12] = [
    ("door-together", 1643, 9453),
    ("door-pull", 314, 614),
    ("door-alone", 106, 106),
    ("door-router", 145, 412),
    ("door-two-prefills", 2035, 22_877),
    ("door-two-pairs", 604, 79_898),
    ("door-limits", 400, 6518),
    ("door-text", 460, 642),
    ("door-early", 1049, 2700),
    ("door-restart", 183, 10_199),
    ("door-private", 152, 152),
    ("door-stages", 21_441, 173_198),
];

fn named(name: &str) -> &'static Scenario {
    let known = ALL.iter().find(|scenario| scenario.name == name);
    known.expect("a world of that name")
}

fn holds(scenario: &Scenario, small: bool, clauses: &mut BTreeSet<&str>) -> usize {
    let world = Front::new((scenario.setup)(small));
    let report = explore(&world, &Limits::default(), &mut |_| {});
    println!(
        "{}: {} states, {:?}",
        scenario.name, report.states, report.elapsed
    );
    if let Some(found) = &report.violation {
        let timeline = crate::timeline::replay(&world, &found.acts);
        let timeline = timeline.expect("a run of this world");
        panic!(
            "{}: {}\n{timeline}\nthen {:?}",
            scenario.name, found.violation, found.then
        );
    }
    assert_eq!(report.stop, Stop::Complete);
    for situation in scenario.sees {
        let seen = report.tally.seen.contains_key(situation);
        assert!(seen, "{}: never happened: {situation}", scenario.name);
    }
    let judged = report.tally.clauses().into_iter();
    let judged = judged.filter(|(_, states, steps)| states + steps > 0);
    clauses.extend(judged.map(|(clause, ..)| clause));
    report.states
}

/// DR-4 is about what can follow, and judged by the search.
#[test]
fn every_clause_holds_in_every_world_of_the_door() {
    let mut clauses = BTreeSet::from(["DR-4"]);
    let found: Vec<_> = ALL
        .iter()
        .map(|scenario| {
            (
                scenario.name,
                holds(scenario, true, &mut clauses),
                holds(scenario, false, &mut clauses),
            )
        })
        .collect();
    assert_eq!(found, PINNED);
    for clause in CLAUSES.iter().filter(|it| it.starts_with("DR-")) {
        assert!(clauses.contains(clause), "{clause} was never judged");
    }
}

/// By another explorer, which shares nothing with the first but the world.
#[test]
fn two_explorers_find_as_many_states() {
    for scenario in ALL {
        let world = Front::new((scenario.setup)(true));
        let opinion = second::explore(world);
        assert!(opinion.holds, "{}", scenario.name);
        let pinned = PINNED.iter().find(|(name, ..)| *name == scenario.name);
        let pinned = pinned.map(|(_, small, _)| *small);
        assert_eq!(Some(opinion.states), pinned, "{}", scenario.name);
    }
}

#[test]
fn every_clause_has_a_defect_that_breaks_it() {
    for defect in DEFECTS {
        let setup = (named(defect.world).setup)(true);
        let world = Front::with_decisions(setup, defect.swapped);
        let report = explore(&world, &Limits::default(), &mut |_| {});
        let found = report
            .violation
            .unwrap_or_else(|| panic!("{defect}: nothing is broken"));
        assert_eq!(
            found.violation.clause, defect.clause,
            "{defect}: {}",
            found.violation
        );
        println!("{defect}: {} steps: {}", found.acts.len(), found.violation);
    }
}

#[test]
fn the_clauses_of_the_door_all_have_a_defect() {
    let clauses = CLAUSES.iter().filter(|it| it.starts_with("DR-"));
    for clause in clauses {
        assert!(
            DEFECTS.iter().any(|defect| defect.clause == *clause),
            "{clause}"
        );
    }
    assert!(DEFECTS.iter().all(|it| it.swapped != Swapped::Nothing));
    let mut acts = Vec::new();
    let world = Front::new((named("door-together").setup)(true));
    let (mut first, _) = world.initial();
    world.acts(&mut first, &mut acts);
    assert_eq!(acts.len(), 1, "it begins with somebody who asks");
}
