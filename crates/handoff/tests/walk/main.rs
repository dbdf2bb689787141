//! Random walks over the three shipped machines: messages in any interleaving, everything that can
//! fail failing at any moment, restarts, and strangers that say well-formed nonsense. Whatever
//! happens nothing panics, no machine stops itself, pages add up (H-10), a step reads what belongs
//! there (H-1, H-3, H-13), a request has one outcome (H-6); and when the faults stop everything
//! comes to rest (H-11). A walk that fails is shrunk to the steps that matter.

mod acts;
mod checks;
mod dice;
mod effects;
mod faults;
mod memory;
mod strangers;
#[path = "../watch/mod.rs"]
mod watch;
mod world;

use dice::Dice;
use handoff::gateway::Outcome;
use proptest::prelude::*;
use std::collections::BTreeMap;
use world::{Node, World};

/// Steps after which a world without faults must be at rest.
const PATIENCE: usize = 20_000;

/// Goes on without faults until nothing happens any more, or for so many steps; whether it ended.
fn calm_down(world: &mut World, patience: usize) -> bool {
    let mut dice = Dice(1);
    for _ in 0..patience {
        let acts = world.acts();
        let Some(act) = dice.pick(&acts) else {
            return true;
        };
        world.apply(act, &mut dice);
    }
    false
}

fn walk(world: &mut World, steps: &[u64], requests: usize, faults: u64) {
    for step in steps {
        let mut dice = Dice(*step);
        if world.clients.len() < requests && dice.chance(8) {
            world.request(&mut dice);
        } else if dice.chance(faults) {
            world.fault(&mut dice);
        } else if dice.chance(1) {
            if let Some(request) = world.some_request(&mut dice) {
                let choice = dice.roll(2) as u16;
                world.tell_gateway(handoff::gateway::Event::StopChoice(request, choice));
            }
        } else {
            let acts = world.acts();
            if let Some(act) = dice.pick(&acts) {
                world.apply(act, &mut dice);
            }
        }
    }
}

/// Faults of every kind; then they stop, strangers leave, and time passes.
fn walk_through_faults(world: &mut World, steps: &[u64]) {
    if steps.len().is_multiple_of(2) {
        calm_down(world, PATIENCE);
    }
    let faults = [2, 5, 12][steps.len() / 2 % 3];
    walk(world, steps, 20, faults);
    let strangers = world
        .links
        .iter()
        .filter(|link| link.ends.contains(&Node::Stranger));
    let strangers: Vec<_> = strangers.map(|link| link.conn).collect();
    strangers.into_iter().for_each(|conn| world.cut(conn));
    // What is still waited for has a deadline, and deadlines come in any order.
    let mut dice = Dice(steps.len() as u64);
    for _ in 0..400 {
        world.dials = world.pairs().into_iter().map(|pair| (pair, 1)).collect();
        // An attempt that is told Busy asks again and again until a deadline helps.
        calm_down(world, 1000);
        if world.at_rest() {
            return;
        }
        world.some_deadline(&mut dice);
    }
}

fn steps(n: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), n / 2..n)
}

fn settings() -> ProptestConfig {
    ProptestConfig {
        cases: 150,
        max_shrink_iters: 4000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn h6_without_faults_every_request_is_answered_and_no_deadline_is_needed(
        steps in steps(600), ranks in prop::collection::vec(1..3u16, 1..3), decodes in 1..3usize,
        scrub: bool,
    ) {
        let mut world = World::new(&ranks, decodes, scrub);
        calm_down(&mut world, PATIENCE);
        walk(&mut world, &steps, 12, 0);
        prop_assert!(calm_down(&mut world, PATIENCE), "H-11: no end: {:?}", world.acts());
        for (n, client) in &world.clients {
            let rejected = matches!(client.outcome, Some(Outcome::Rejected(_)));
            prop_assert_eq!(rejected, client.spec.max_new == acts::TOO_MUCH, "request {}", n);
            let answered = client.outcome == Some(Outcome::Answered);
            prop_assert!(rejected || answered, "request {}: {:?}", n, client.outcome);
        }
        prop_assert!(world.at_rest());
    }

    #[test]
    fn h11_whatever_happens_rest_is_reached_when_the_faults_stop(
        steps in steps(900), ranks in prop::collection::vec(1..3u16, 1..3), decodes in 1..3usize,
        scrub: bool,
    ) {
        let mut world = World::new(&ranks, decodes, scrub);
        walk_through_faults(&mut world, &steps);
        let loads: Vec<_> = world.prefills.iter().map(|p| p.machine.load()).collect();
        let others: Vec<_> = world.decodes.iter().map(|d| d.machine.load()).collect();
        prop_assert!(world.at_rest(), "P {:?}, D {:?}, {:?}", loads, others, world.gateway.load());
    }
}

/// The same walk with lives that are other numbers, in the same order.
fn story(unit: u128, steps: &[u64], ranks: &[u16], decodes: usize) -> Vec<String> {
    let mut world = World::with_lives(unit, ranks, decodes, false);
    world.story = Some(Vec::new());
    walk_through_faults(&mut world, steps);
    world.story.unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 50, ..ProptestConfig::default() })]

    /// H-8: a life is all of its bits. In whichever byte lives differ, the same things happen.
    #[test]
    fn h8_what_happens_depends_on_every_byte_of_a_life_and_on_none_more_than_on_another(
        steps in steps(900), ranks in prop::collection::vec(1..3u16, 1..3), decodes in 1..3usize,
    ) {
        let told = story(u128::MAX / 255, &steps, &ranks, decodes);
        prop_assert!(told.len() > 100, "a walk on which nothing happens");
        for byte in [0, 7, 8, 15] {
            let other = story(1 << (8 * byte), &steps, &ranks, decodes);
            let same = told.iter().zip(&other).take_while(|(one, other)| one == other).count();
            let (here, there) = (told.get(same), other.get(same));
            prop_assert_eq!(here, there, "byte {} of a life", byte);
        }
    }
}

/// The walks go where it is interesting.
#[test]
fn every_situation_is_met_on_some_walk() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..150 {
        let mut dice = Dice(seed);
        let steps: Vec<u64> = (0..900 + seed).map(|_| dice.roll(u64::MAX)).collect();
        let ranks = [1 + (seed % 2) as u16, 1];
        let mut world = World::new(&ranks, 1 + (seed % 3 == 0) as usize, seed % 5 == 0);
        walk_through_faults(&mut world, &steps);
        for (what, times) in world.seen {
            *seen.entry(what).or_default() += times;
        }
    }
    let faults = [
        "WrongTag",
        "WrongOrdinal",
        "WrongFill",
        "WrongChecksum",
        "PageTwice",
        "BadBatch",
        "Short",
        "FirstToken",
        "WrongArena",
    ];
    let faults = faults.map(|fault| format!("Integrity({fault})"));
    let others = [
        "Answered",
        "Failed",
        "Rejected",
        "ClientLeft",
        "committed",
        "prefix hit",
        "expired",
        "duplicate",
        "put back",
        "busy",
        "another prompt",
        "unsettled",
        "fence",
        "late write",
        "write of a dead process",
        "ticket in Sync",
        "offer in Sync",
        // Why decode closed a connection.
        "Replaced",
        "Incompatible",
        "OutOfOrder",
        "Deadline",
        "Refused",
    ];
    for situation in faults.into_iter().chain(others.map(String::from)) {
        assert!(
            seen.contains_key(&situation),
            "never: {situation}, but {seen:#?}"
        );
    }
}
