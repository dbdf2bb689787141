//! Every world at the smallest bound: explored whole, every clause holds, and it shows what it is
//! there for. And the world knows nothing of what is tried on the machines in it.

use lab::bound::Bound;
use lab::model::CLAUSES;
use lab::scenario::{ALL, Mode};
use lab::search::explore;
use lab::world::World;
use std::collections::BTreeSet;
use std::path::Path;

fn every_world(mode: Mode) {
    let mut clauses = BTreeSet::new();
    for scenario in ALL {
        let Some(setup) = scenario.setup(Bound::Smoke, mode) else {
            continue;
        };
        let report = explore(&World::new(setup), &Bound::Smoke.limits(), &mut |_| {});
        let name = scenario.name;
        if let Some(violation) = &report.violation {
            panic!("{name}, {mode}: {violation:?}");
        }
        assert!(report.holds(), "{name}, {mode}: {:?}", report.stop);
        for situation in scenario.must_see(mode) {
            let seen = report.tally.seen.contains_key(situation);
            assert!(seen, "{name}, {mode}: never {situation}");
        }
        let judged = report.tally.clauses().into_iter();
        let judged = judged.filter(|(_, states, steps)| states + steps > 0);
        clauses.extend(judged.map(|(clause, ..)| clause));
    }
    // Those about runs are judged by fixpoint.
    let of_runs = ["H-11", "H-14", "H-18"];
    let of_a_world = |clause: &&&str| clause.starts_with("H-") && !of_runs.contains(clause);
    for clause in CLAUSES.iter().filter(of_a_world) {
        assert!(
            clauses.contains(clause),
            "{mode}: {clause} was never judged"
        );
    }
}

#[test]
fn every_world_holds_where_writes_land_in_an_arena() {
    every_world(Mode::Landing);
}

#[test]
fn every_world_holds_where_writes_land_in_decodes_pages() {
    every_world(Mode::Direct);
}

#[test]
fn the_world_and_its_properties_know_no_defect() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![source.join("situations.rs")];
    for folder in ["properties", "world", "scenario", "traces"] {
        let entries = std::fs::read_dir(source.join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    assert!(files.len() > 12);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let named = text.as_bytes().windows(4).any(|four| {
            four.starts_with(b"D-") && four[2].is_ascii_digit() && four[3].is_ascii_digit()
        });
        assert!(!named, "{} names a defect", file.display());
        assert!(
            !text.to_lowercase().contains("defect"),
            "{}",
            file.display()
        );
    }
}
