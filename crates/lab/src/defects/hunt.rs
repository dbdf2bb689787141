//! Looking for the shortest way on which a clause breaks.

use super::swap::{Swap, Swapped};
use crate::encode::Canonical;
use crate::model::{Model, Notes, Violation};
use crate::scenario::Setup;
use crate::search::{self, Counterexample, Limits, Stop};
use crate::timeline;
use crate::world::{Act, World};
use std::time::Duration;

/// Which violations end a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Any.
    Any,
    /// Only that a reader uses bytes that are not its own, or a client gets what is another's: what
    /// all the other clauses are there to prevent. Whatever else breaks on the way is passed over.
    Harm,
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// A clause broke.
    Broken(Broken),
    /// Everything was explored, so many worlds, and none broke.
    Holds(usize),
    /// So many worlds were explored, which are not all.
    Unfinished(usize),
}

/// A clause broke.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which, and how.
    pub violation: Violation,
    /// On the shortest way.
    pub steps: usize,
    /// Worlds explored until then.
    pub worlds: usize,
    /// The way.
    pub timeline: String,
}

/// Explores so many worlds, at most, with these decisions swapped.
pub fn hunt(
    setup: Setup,
    swaps: &'static [&'static dyn Swap],
    wanted: Wanted,
    worlds: usize,
) -> Outcome {
    let model = Wanting {
        world: World::with_decisions(setup, Swapped(swaps)),
        wanted,
    };
    let limits = Limits {
        states: worlds,
        time: Duration::from_secs(15 * 60),
        ..Limits::default()
    };
    let report = search::explore(&model, &limits, &mut |_| ());
    match (report.violation, report.stop) {
        (Some(found), _) => Outcome::Broken(broken(&model, found, report.states)),
        (None, Stop::Complete) => Outcome::Holds(report.states),
        (None, _) => Outcome::Unfinished(report.states),
    }
}

fn broken(model: &Wanting, found: Counterexample<Act>, worlds: usize) -> Broken {
    let Counterexample {
        violation,
        acts,
        then,
    } = found;
    let told = timeline::replay(model, &acts);
    let mut told = told.expect("what was found can be run again");
    told.violation.get_or_insert(violation.clone());
    let mut timeline = told.to_string();
    if !then.is_empty() {
        timeline.push_str("\nand without faults it goes on like this, and never comes to rest:\n");
        let shown = then.iter().take(12).map(|act| format!("  {act}\n"));
        timeline.extend(shown);
    }
    Broken {
        violation,
        steps: acts.len(),
        worlds,
        timeline,
    }
}

/// A world in which only what is wanted is a violation.
struct Wanting {
    world: World<Swapped>,
    wanted: Wanted,
}

impl Wanting {
    fn pass_over(&self, notes: &mut Notes) {
        let harm = |violation: &Violation| {
            let what = violation.what.as_str();
            let begins = ["a step of", "a pass of", "a token of another"];
            begins.iter().any(|begins| what.starts_with(begins)) || what.contains(" is read at ")
        };
        if self.wanted == Wanted::Harm && !notes.violation.as_ref().is_some_and(harm) {
            notes.violation = None;
        }
    }
}

impl Model for Wanting {
    type State = <World<Swapped> as Model>::State;
    type Act = Act;

    fn initial(&self) -> (Self::State, Notes) {
        let (state, mut notes) = self.world.initial();
        self.pass_over(&mut notes);
        (state, notes)
    }

    fn acts(&self, state: &mut Self::State, out: &mut Vec<Act>) {
        self.world.acts(state, out);
    }

    fn is_fault(&self, act: &Act) -> bool {
        self.world.is_fault(act)
    }

    fn apply(&self, state: &mut Self::State, act: &Act, notes: &mut Notes) {
        self.world.apply(state, act, notes);
        self.pass_over(notes);
    }

    fn judge(&self, state: &Self::State, notes: &mut Notes) {
        self.world.judge(state, notes);
        self.pass_over(notes);
    }

    fn fork(&self, state: &mut Self::State) -> Self::State {
        self.world.fork(state)
    }

    fn at_rest(&self, state: &mut Self::State) -> bool {
        self.wanted == Wanted::Harm || self.world.at_rest(state)
    }

    fn encode(&self, state: &Self::State, out: &mut Canonical) {
        self.world.encode(state, out);
    }

    fn describe(
        &self,
        before: &mut Self::State,
        act: &Act,
        after: &mut Self::State,
    ) -> Vec<String> {
        self.world.describe(before, act, after)
    }
}
