//! On the real worlds: both explorers find as many states, and the reduction by symmetry reaches
//! nothing that is not there.

use super::second;
use super::{Limits, explore};
use crate::bound::Bound;
use crate::encode::Canonical;
use crate::model::{Model, Notes};
use crate::pinned;
use crate::scenario::{ALL, Mode, Setup};
use crate::world::World;
use std::collections::{HashSet, VecDeque};

/// The largest world that is tried several times.
const LARGEST: usize = 30_000;

#[test]
fn stateright_finds_as_many_states_in_every_world() {
    for mode in [Mode::Landing, Mode::Direct] {
        for scenario in ALL {
            let Some(setup) = scenario.setup(Bound::Smoke, mode) else {
                continue;
            };
            let world = World::new(setup);
            let ours = explore(&world, &Limits::default(), &mut |_| {});
            if ours.states > LARGEST {
                continue;
            }
            let theirs = second::explore(world);
            let name = scenario.name;
            assert!(ours.holds() && theirs.holds, "{name}/{mode}");
            assert_eq!(ours.states, theirs.states, "{name}/{mode}");
        }
    }
}

/// The largest world that stateright is asked about at quick; with `CHECKER_ALL=1` about all, which
/// takes minutes.
const LARGEST_AT_QUICK: u64 = 8_000;

/// With more faults, too: ours are those that are pinned (`tests/whole/pinned.rs` explores them). Worlds
/// are written whole here and in parts there.
#[test]
fn stateright_finds_as_many_states_at_quick() {
    let all = std::env::var_os("CHECKER_ALL").is_some();
    for mode in [Mode::Landing, Mode::Direct] {
        for scenario in ALL {
            let Some(setup) = scenario.setup(Bound::Quick, mode) else {
                continue;
            };
            let name = scenario.name;
            let ours = pinned::states(Bound::Quick, mode, name);
            if !all && ours.is_some_and(|states| states > LARGEST_AT_QUICK) {
                continue;
            }
            let theirs = second::explore(World::new(setup));
            assert!(theirs.holds, "{name}/{mode}");
            println!("{name}/{mode}: {} states", theirs.states);
            assert_eq!(ours, Some(theirs.states as u64), "{name}/{mode}");
        }
    }
}

/// Every life counts from one, so which life a number belongs to has to be right wherever it is
/// written. Where no two lives share a number nothing can be taken for another's; there are as many
/// states.
#[test]
fn whose_a_number_is_makes_no_difference_to_how_many_states_there_are() {
    let mut lives = 0;
    for mode in [Mode::Landing, Mode::Direct] {
        for scenario in ALL {
            let Some(setup) = scenario.setup(Bound::Smoke, mode) else {
                continue;
            };
            let faults = &setup.faults;
            let new = faults.prefill_spawns + faults.decode_spawns + faults.gateway_spawns;
            if new == 0 && setup.prefills == 1 && setup.decodes == 1 {
                continue;
            }
            lives += 1;
            let count = |numbers_apart| {
                let world = World::new(Setup {
                    numbers_apart,
                    ..setup.clone()
                });
                explore(&world, &Limits::default(), &mut |_| {}).states
            };
            assert_eq!(count(false), count(true), "{}/{mode}", scenario.name);
        }
    }
    assert!(lives >= 8, "{lives} worlds have two lives of one role");
}

/// Every state that can be reached, and the classes that they fall into.
fn classes(world: &World) -> (usize, usize) {
    let (mut plain, mut reduced) = (Canonical::default(), Canonical::symmetric());
    let (mut known, mut classes) = (HashSet::new(), HashSet::new());
    let mut queue = VecDeque::from([world.initial().0]);
    while let Some(mut state) = queue.pop_front() {
        world.encode(&state, &mut plain);
        if !known.insert(plain.bytes().to_vec()) {
            continue;
        }
        world.encode(&state, &mut reduced);
        classes.insert(reduced.bytes().to_vec());
        let mut acts = Vec::new();
        world.acts(&mut state, &mut acts);
        for act in acts {
            let mut after = world.fork(&mut state);
            world.apply(&mut after, &act, &mut Notes::default());
            queue.push_back(after);
        }
    }
    (known.len(), classes.len())
}

#[test]
fn symmetry_reaches_one_state_of_every_class_and_no_other() {
    let limits = Limits {
        symmetry: true,
        ..Limits::default()
    };
    let mut merged = 0;
    for scenario in ALL {
        let Some(setup) = scenario.setup(Bound::Smoke, Mode::Landing) else {
            continue;
        };
        let world = World::new(setup);
        let reduced = explore(&world, &limits, &mut |_| {});
        assert!(reduced.holds(), "{}", scenario.name);
        if reduced.states > LARGEST / 2 {
            continue;
        }
        let (states, classes) = classes(&world);
        let (name, reached) = (scenario.name, reduced.states);
        println!("{name}: {states} states in {classes} classes, {reached} reached");
        // True of the small worlds; where it is not, the module of the reduction says why: where a
        // sequence is put back, a page is given back and taken again in one step.
        match matches!(name, "growth" | "growth-faults") {
            true => assert!(reached <= classes, "{name}: a class that there is not"),
            false => assert_eq!(reached, classes, "{name}"),
        }
        merged += states - classes;
    }
    assert!(merged > 0, "there is something to reduce");
}
