//! H-11 has no back door: who is starved for ever is found by exploring, whatever there is of
//! retries, because "it may try again" is no end.

use super::{Limits, explore};
use crate::bound::Bound;
use crate::model::Model;
use crate::scenario::{Faults, Mode, Prompt, Scenario, Setup};
use crate::world::{Act, World};
use handoff::Decisions;

/// Machines in which one decision starves somebody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Starves {
    /// Nobody.
    Nobody,
    /// An attempt that was told Busy once is never let in.
    WhoWaited,
    /// Pages that a step held are lost when it fails.
    AfterFailure,
}

impl pages::Decisions for Starves {}

impl Decisions for Starves {
    fn lets_in(self, waited: bool) -> bool {
        self != Self::WhoWaited || !waited
    }

    fn step_gives_back(self, failed: bool) -> bool {
        self != Self::AfterFailure || !failed
    }
}

/// The way to the nearest world from which there is no way to rest.
fn starved(setup: &Setup, decisions: Starves) -> Option<Vec<Act>> {
    let world = World::with_decisions(setup.clone(), decisions);
    let report = explore(&world, &Limits::default(), &mut |_| {});
    let found = report.violation?;
    assert_eq!(found.violation.clause, "H-11", "{}", found.violation.what);
    // What it says can be done again, and ends where nothing is at rest.
    let (mut state, _) = world.initial();
    for act in found.acts.iter().chain(&found.then) {
        let mut possible = Vec::new();
        world.acts(&mut state, &mut possible);
        assert!(possible.contains(act), "{act}");
        world.apply(&mut state, act, &mut Default::default());
    }
    assert!(!world.at_rest(&mut state));
    Some(found.acts)
}

/// Two requests compete for a pool that holds one: the second is told to wait, and asks again for
/// ever.
#[test]
fn who_was_told_to_wait_and_is_never_let_in_is_found() {
    let calm = Scenario::named("calm").and_then(|calm| calm.setup(Bound::Smoke, Mode::Landing));
    let calm = calm.expect("a world of that name");
    assert_eq!(starved(&calm, Starves::Nobody), None);
    let way = starved(&calm, Starves::WhoWaited).expect("somebody waits for ever");
    println!("found in {} steps", way.len());
    // Nothing helps from the beginning on: both are on their way to decode already.
    assert!(way.len() < 30, "{way:?}");
}

/// A client leaves while a step names its pages, and then the step fails.
#[test]
fn pages_that_a_failed_step_never_gives_back_are_found() {
    let faults = Faults {
        leaves: 1,
        failed_computes: 1,
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![Prompt::new(&[1], 3)],
        prefill_pages: 1,
        decode_pages: 2,
        faults,
        ..Setup::default()
    };
    assert_eq!(starved(&setup, Starves::Nobody), None);
    let way = starved(&setup, Starves::AfterFailure).expect("pages are lost");
    println!("found in {} steps", way.len());
    assert!(!way.is_empty() && way.len() < 40, "{way:?}");
}
