//! Beyond every bound: the machines that ship, three workers of each kind, forty-eight requests,
//! faults of every kind that the world has. A seed that fails is printed, and shrinks:
//! `cofferdam-lab check --simulate --seed N --world …` shows it.

use lab::bound::Bound;
use lab::scenario::{ALL, Mode, Scenario, Setup};
use lab::simulate::{Length, Run, large, run};
use lab::world::{Act, World};

fn setup(name: &str, mode: Mode) -> Option<Setup> {
    Scenario::named(name).and_then(|it| it.setup(Bound::Quick, mode))
}

fn go(name: &str, mode: Mode, seed: u64, steps: usize) -> Option<Run<Act>> {
    let setup = large(&setup(name, mode)?);
    assert!(setup.prompts.len() >= 48 && setup.prefills >= 3 && setup.decodes >= 3);
    let length = Length {
        steps,
        ..Length::default()
    };
    let run = run(&World::new(setup), seed, length);
    if let Some((violation, acts)) = &run.violation {
        let acts: Vec<String> = acts.iter().map(ToString::to_string).collect();
        panic!(
            "{name}/{mode}, seed {seed}: {violation}\n{}",
            acts.join("\n")
        );
    }
    Some(run)
}

#[test]
fn a_seed_decides_a_run_of_the_machines() {
    let of = |seed| go("two-decodes", Mode::Landing, seed, 10_000).expect("it has this mode");
    let (one, again, other) = (of(7), of(7), of(8));
    assert_eq!(one, again);
    assert_ne!(one.digest, other.digest);
    println!("{} steps", one.steps);
    assert!(one.steps > 1_000, "{} steps are few", one.steps);
}

#[test]
fn every_world_comes_to_rest_with_forty_eight_requests() {
    let mut answered = 0;
    for scenario in ALL {
        for mode in [Mode::Landing, Mode::Direct] {
            let run = go(scenario.name, mode, 7, 400);
            answered += run.map_or(0, |run| run.seen.get("answered").copied().unwrap_or(0));
        }
    }
    assert!(answered > 200, "only {answered} requests were answered");
}
