//! Exploring worlds, as many at a time as there are threads.

use super::show;
use super::watch::Watches;
use super::worlds::Chosen;
use super::{Check, HOLDS, UNFINISHED, VIOLATED};
use super::{trace, watch};
use crate::beside::side_by_side;
use crate::defects::{self, Defect, Defective};
use crate::pinned;
use crate::scenario::{Mode, Setup};
use crate::search::{Counterexample, Limits, Stop};
use crate::world::Act;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Explores these worlds until one of them breaks a clause.
pub(super) fn run(check: &Check, worlds: &[Chosen], defect: Option<&Defect>) -> anyhow::Result<u8> {
    let mut limits = limits(check);
    let threads = check.threads.unwrap_or(limits.threads);
    let until = Instant::now() + together(check);
    // A defect is shown in the first world.
    let lanes = if defect.is_some() {
        1
    } else {
        threads.min(worlds.len())
    };
    limits.threads = threads / lanes.max(1);
    let watches = Watches::new(check.quiet);
    let size = |chosen: &Chosen| {
        pinned::states(check.bound, chosen.mode, &chosen.name).unwrap_or_default()
    };
    let one = |chosen: &Chosen| {
        let mut limits = limits.clone();
        let left = until.saturating_duration_since(Instant::now());
        limits.time = limits.time.min(left);
        // In direct mode the slots of a write are page numbers, which are not renamed.
        limits.symmetry = check.symmetry && chosen.mode == Mode::Landing;
        let mut watch = watches.of(chosen.name());
        make(chosen, defect).explore(&limits, &mut |now| watch.see(now))
    };
    let (mut done, mut violated, mut unlike) = (Vec::new(), None, 0);
    side_by_side(worlds, lanes, size, one, |chosen, report| {
        watches.say(&show::outcome(&chosen.name(), &report));
        if let Some(found) = report.violation {
            violated = Some((chosen, found));
            return ControlFlow::Break(());
        }
        let whole = report.holds() && defect.is_none() && !check.symmetry;
        if whole && let Some(key) = chosen.pinned_as(check.bound) {
            let pinned = pinned::states(check.bound, chosen.mode, &chosen.name);
            let differs = show::unlike_pinned(&key, pinned, report.states as u64);
            unlike += usize::from(pinned.is_some() && differs.is_some());
            differs
                .into_iter()
                .for_each(|line| watches.say(&format!("  {line}")));
        }
        done.push((chosen, report));
        // At once: who ends a run of half an hour early has not read the table behind it.
        for never in show::missing(&done[done.len() - 1..]) {
            watches.say(&format!("  was to show and never did: {never}"));
        }
        ControlFlow::Continue(())
    });
    if let Some((chosen, found)) = violated {
        show_counterexample(&make(chosen, defect), &found)?;
        trace::write(check, chosen, &found)?;
        return Ok(VIOLATED);
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
    if unlike > 0 {
        println!("\nof {unlike} worlds another number of states is written down (above)");
        return Ok(VIOLATED);
    }
    let unfinished = done.iter().any(|(_, report)| report.stop != Stop::Complete);
    Ok(if unfinished { UNFINISHED } else { HOLDS })
}

/// What a world may take: as much as the bound allows, or less if that was asked for.
fn limits(check: &Check) -> Limits {
    let mut limits = check.bound.limits();
    limits.states = check.states.unwrap_or(limits.states).min(limits.states);
    if let Some(gib) = check.memory {
        limits = limits.within(gib << 30);
    }
    limits
}

/// The time that all of them together may take.
fn together(check: &Check) -> Duration {
    let minutes = |minutes| Duration::from_secs(minutes * 60);
    check.minutes.map_or(check.bound.together(), minutes)
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
