use super::*;
use crate::encode::Canonical;
use crate::toy::{Act, Toy};
use std::collections::BTreeMap;
use std::time::Duration;

fn search(toy: &Toy, limits: &Limits) -> Report<Act> {
    explore(toy, limits, &mut |_| {})
}

fn whole(toy: &Toy) -> Report<Act> {
    search(toy, &Limits::default())
}

/// As simple as it can be written down: one queue, whole byte strings.
fn naive(toy: &Toy) -> usize {
    let mut known = BTreeMap::new();
    let mut canonical = Canonical::default();
    let mut queue = std::collections::VecDeque::from([toy.initial().0]);
    while let Some(mut world) = queue.pop_front() {
        toy.encode(&world, &mut canonical);
        if known.insert(canonical.bytes().to_vec(), ()).is_some() {
            continue;
        }
        let mut acts = Vec::new();
        toy.acts(&mut world, &mut acts);
        for act in acts {
            let mut after = toy.fork(&mut world);
            toy.apply(&mut after, &act, &mut Default::default());
            queue.push_back(after);
        }
    }
    known.len()
}

#[test]
fn it_finds_every_world_once_whatever_the_threads_and_the_memory() {
    let toy = Toy {
        jobs: 7,
        ..Toy::default()
    };
    let one = search(
        &toy,
        &Limits {
            threads: 1,
            ..Limits::default()
        },
    );
    assert!(one.holds());
    assert_eq!(one.states, naive(&toy));
    assert!(
        one.states > 3 * BLOCK,
        "{} are too few to try anything",
        one.states
    );
    let tight = search(
        &toy,
        &Limits {
            threads: 3,
            resident: 0,
            ..Limits::default()
        },
    );
    assert_eq!(tight.stop, Stop::Memory);
    for keep in [0, u64::MAX] {
        let other = search(
            &toy,
            &Limits {
                threads: 3,
                keep,
                ..Limits::default()
            },
        );
        assert_eq!(
            (other.states, other.depth, other.rests),
            (one.states, one.depth, one.rests)
        );
        assert_eq!(other.tally.steps, one.tally.steps);
        assert_eq!(other.tally.seen, one.tally.seen);
        assert_eq!(other.tally.clauses(), one.tally.clauses());
    }
}

#[test]
fn a_counterexample_is_a_shortest_one_and_its_acts_lead_there() {
    let toy = Toy {
        crowded: 2,
        ..Toy::default()
    };
    let report = whole(&toy);
    assert_eq!(report.stop, Stop::Violation);
    let found = report.violation.expect("two may hold machines");
    assert_eq!(found.violation.to_string(), "H-3: 2 hold a machine");
    assert_eq!(found.acts, [Act::Take(0), Act::Take(1)]);
}

/// H-11: a machine that is lost with its job is found although something can always happen.
#[test]
fn a_world_without_a_way_to_rest_is_found_behind_a_circle() {
    let toy = Toy {
        leaks: true,
        ..Toy::default()
    };
    let found = whole(&toy).violation.expect("a job is lost");
    assert_eq!(found.violation.clause, "H-11");
    assert_eq!(found.acts, [Act::Take(0), Act::Break(0)]);
    assert!(!found.then.is_empty());
    assert!(found.then.iter().all(|act| !matches!(act, Act::Break(_))));
}

/// H-11: that a run may go round for ever is not what it forbids.
#[test]
fn a_circle_with_a_way_out_is_fine() {
    let toy = Toy {
        rounds: 3,
        ..Toy::default()
    };
    let report = whole(&toy);
    assert!(report.holds());
    assert!(report.rests > 0);
}

#[test]
fn a_search_that_cannot_finish_says_why_and_claims_nothing() {
    let toy = Toy {
        jobs: 7,
        leaks: true,
        ..Toy::default()
    };
    let few = search(
        &toy,
        &Limits {
            states: 100,
            ..Limits::default()
        },
    );
    assert_eq!((few.stop, few.violation.is_none()), (Stop::States, true));
    let again = search(
        &toy,
        &Limits {
            states: 100,
            threads: 1,
            ..Limits::default()
        },
    );
    assert_eq!(again.tally.seen, few.tally.seen);
    let short = search(
        &toy,
        &Limits {
            time: Duration::ZERO,
            ..Limits::default()
        },
    );
    assert_eq!(short.stop, Stop::Time);
}

#[test]
fn it_says_how_it_goes() {
    let mut depths = Vec::new();
    let report = explore(&Toy::default(), &Limits::default(), &mut |now| {
        depths.push(now.depth)
    });
    assert_eq!(depths.last(), Some(&report.depth));
    assert!(depths.is_sorted());
    assert!(report.bytes_per_state > 0.0);
    assert!(report.tally.seen["broken"] > 0);
}

/// Two explorers that have nothing in common but the world find the same number of worlds.
#[test]
fn stateright_finds_as_many() {
    for jobs in 1..6 {
        for rounds in [0, 3] {
            let toy = Toy {
                jobs,
                rounds,
                ..Toy::default()
            };
            let (ours, theirs) = (whole(&toy), super::second::explore(toy));
            assert_eq!((ours.states, true), (theirs.states, theirs.holds));
        }
    }
    let toy = Toy {
        crowded: 2,
        ..Toy::default()
    };
    assert!(!super::second::explore(toy).holds);
}
