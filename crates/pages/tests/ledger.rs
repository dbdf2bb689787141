//! The ledger against a reference model, under random calls.

mod world;

use proptest::prelude::*;
use world::{Call, World, call};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// H-10 (counts sum), who holds what, tags never repeated, nothing freed while something pends,
    /// reservation all or nothing, and at rest every page back: after every call, whatever the
    /// calls.
    #[test]
    fn the_ledger_agrees_with_the_facts(
        scrub in any::<bool>(),
        calls in prop::collection::vec(call(), 1..120),
    ) {
        let mut world = World::new(scrub);
        for call in calls {
            world.make(call);
            world.compare();
        }
        world.bring_to_rest();
    }

    /// A checker may copy a world at any moment: the copy is equal, and what happens in one is
    /// not seen in the other.
    #[test]
    fn a_fork_is_equal_and_apart(calls in prop::collection::vec(call(), 1..60)) {
        let mut world = World::new(false);
        for call in calls {
            world.make(call);
        }
        let before = world.pool.fork_for_checker();
        prop_assert!(before == world.pool);
        world.make(Call::Reserve { by: 1, lane: 0, pages: 1 });
        world.make(Call::Release { grant: 0 });
        let mut fork = before;
        let copy = fork.fork_for_checker();
        prop_assert!(fork == copy && fork.cmp(&copy).is_eq());
        for grant in &world.grants {
            prop_assert!(fork.release(copy.fork_grant_for_checker(grant)).is_err(), "of another world");
        }
        prop_assert!(fork.recount() == fork.counts());
    }
}
