//! The explorer sees the check that ships, and not only the one that looks at everything: pools whose
//! check before a step looks at less than it must are caught at the smallest bound.

use lab::bound::Bound;
use lab::scenario::{Mode, Scenario};
use lab::search::explore;
use lab::world::World;

/// A pool that does not look at everything before a step. One type for all of them: each would
/// compile the machines anew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Looks {
    /// At nothing.
    Nowhere,
    /// At what is new in a table, and never again.
    Once,
    /// At what has changed, and not at what is new.
    Again,
    /// At what it must.
    AtAll,
}

impl pages::Decisions for Looks {
    fn looks_again(self, new: bool) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Once => new,
            Self::Again => !new,
            Self::AtAll => true,
        }
    }
}

impl handoff::Decisions for Looks {}

#[test]
fn h1_a_pool_whose_check_looks_at_less_than_it_must_is_caught_at_smoke() {
    for mode in [Mode::Landing, Mode::Direct] {
        for looks in [Looks::Nowhere, Looks::Once, Looks::Again, Looks::AtAll] {
            let calm = Scenario::named("calm").and_then(|it| it.setup(Bound::Smoke, mode));
            let world = World::with_decisions(calm.expect("it has this mode"), looks);
            let report = explore(&world, &Bound::Smoke.limits(), &mut |_| {});
            let broken = report.violation.map(|found| found.violation);
            println!("{mode}, {looks:?}: {} states, {broken:?}", report.states);
            let clause = broken.map(|violation| violation.clause);
            let expected = (looks != Looks::AtAll).then_some("H-1");
            assert_eq!(clause, expected, "{mode}, {looks:?}");
        }
    }
}
