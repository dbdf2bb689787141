use super::{ALL, DEFECTS, Front, Scenario, Swapped};
use crate::search::{Limits, Stop, explore};

fn named(name: &str) -> &'static Scenario {
    let known = ALL.iter().find(|scenario| scenario.name == name);
    known.expect("a world of that name")
}

#[test]
fn every_clause_holds_at_the_smallest_bound() {
    for scenario in ALL {
        let world = Front::new((scenario.setup)(true));
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
    }
}

#[test]
fn every_clause_has_a_defect_that_breaks_it() {
    for defect in DEFECTS {
        let setup = (named(defect.world).setup)(true);
        let report = explore(
            &Front::with_decisions(setup, defect.swapped),
            &Limits::default(),
            &mut |_| {},
        );
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
    let clauses = crate::model::CLAUSES
        .iter()
        .filter(|it| it.starts_with("DR-"));
    for clause in clauses {
        assert!(
            DEFECTS.iter().any(|defect| defect.clause == *clause),
            "{clause}"
        );
    }
    assert!(DEFECTS.iter().all(|it| it.swapped != Swapped::Nothing));
}
