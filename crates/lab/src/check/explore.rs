//! Exploring one world after the other.

use super::show;
use super::watch::Watch;
use super::worlds::Chosen;
use super::{Check, HOLDS, UNFINISHED, VIOLATED};
use super::{trace, watch};
use crate::defects::{self, Defect, Defective};
use crate::scenario::{Mode, Setup};
use crate::search::{Counterexample, Limits, Report, Stop};
use crate::world::Act;

/// Explores these worlds until one of them breaks a clause.
pub(super) fn run(check: &Check, worlds: &[Chosen], defect: Option<&Defect>) -> anyhow::Result<u8> {
    let mut limits = check.bound.limits();
    limits.threads = check.threads.unwrap_or(limits.threads);
    limits.states = check.states.unwrap_or(limits.states).min(limits.states);
    let mut done = Vec::new();
    for chosen in worlds {
        // In direct mode the slots of a write are page numbers, which are not renamed.
        limits.symmetry = check.symmetry && chosen.mode == Mode::Landing;
        let world = make(chosen, defect);
        let report = explore(check, chosen, &world, &limits);
        println!("{}", show::outcome(&chosen.name(), &report));
        if let Some(found) = &report.violation {
            show_counterexample(&world, found)?;
            trace::write(check, chosen, found)?;
            return Ok(VIOLATED);
        }
        done.push((chosen, report));
        // At once: who ends a run of half an hour early has not read the table behind it.
        for never in show::missing(&done[done.len() - 1..]) {
            println!("  was to show and never did: {never}");
        }
    }
    println!();
    print!("{}", show::clauses(&done));
    println!();
    print!("{}", show::situations(&done));
    let missing = show::missing(&done);
    if defect.is_none() && !missing.is_empty() {
        println!(
            "\nthese worlds were to show something that never happened, so they prove nothing:"
        );
        missing.iter().for_each(|line| println!("  {line}"));
        return Ok(VIOLATED);
    }
    let unfinished = done.iter().any(|(_, report)| report.stop != Stop::Complete);
    Ok(if unfinished { UNFINISHED } else { HOLDS })
}

/// The world as it is shipped, or with one decision swapped.
pub(super) fn make(chosen: &Chosen, defect: Option<&Defect>) -> Defective {
    world(chosen.setup.clone(), defect)
}

/// The same for any setup.
pub(super) fn world(setup: Setup, defect: Option<&Defect>) -> Defective {
    match defect {
        Some(defect) => (defect.world)(setup),
        None => defects::none(setup),
    }
}

fn explore(check: &Check, chosen: &Chosen, world: &Defective, limits: &Limits) -> Report<Act> {
    let mut watch = Watch::new(chosen.name(), check.quiet);
    world.explore(limits, &mut |now| watch.see(now))
}

fn show_counterexample(world: &Defective, found: &Counterexample<Act>) -> anyhow::Result<()> {
    println!("\nA shortest way there, {} steps:\n", found.acts.len());
    let mut timeline = world.replay(&found.acts)?;
    timeline.violation.get_or_insert(found.violation.clone());
    print!("{timeline}");
    if !found.then.is_empty() {
        println!("\nand without faults it goes on like this, or ends like this:");
        const SHOWN: usize = 20;
        for act in found.then.iter().take(SHOWN) {
            println!("  {act}");
        }
        if let Some(more @ 1..) = found.then.len().checked_sub(SHOWN) {
            println!("  … and {} more", watch::number(more as u64));
        }
    }
    Ok(())
}
