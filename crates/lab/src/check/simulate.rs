//! Running at random through worlds that are too large to be explored.

use super::watch::number;
use super::worlds::Chosen;
use super::{Check, HOLDS, VIOLATED};
use super::{explore, trace};
use crate::defects::Defect;
use crate::search::Counterexample;
use crate::simulate::{Length, large};

/// Runs every chosen world once for each seed, until a clause breaks.
pub(super) fn run(check: &Check, worlds: &[Chosen], defect: Option<&Defect>) -> anyhow::Result<u8> {
    for seed in check.seed..check.seed.saturating_add(check.runs) {
        for chosen in worlds {
            let name = chosen.name();
            let world = explore::world(large(&chosen.setup), defect);
            let run = world.simulate(seed, Length::default());
            let end = if run.violation.is_none() {
                "rested"
            } else {
                "a clause broke"
            };
            println!(
                "{name}, seed {seed}: {} steps, digest {:016x}, {} situations, {end}",
                number(run.steps as u64),
                run.digest,
                run.seen.len(),
            );
            let Some((violation, acts)) = run.violation else {
                continue;
            };
            println!(
                "\nseed {seed} breaks a clause; made short, {} steps:\n",
                acts.len()
            );
            let mut timeline = world.replay(&acts)?;
            timeline.violation.get_or_insert(violation.clone());
            print!("{timeline}");
            let then = Vec::new();
            let found = Counterexample {
                violation,
                acts,
                then,
            };
            trace::write(check, chosen, &found)?;
            return Ok(VIOLATED);
        }
    }
    Ok(HOLDS)
}
