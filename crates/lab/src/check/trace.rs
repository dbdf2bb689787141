//! Counterexamples on disk, and run again.

use super::explore;
use super::worlds::{self, Chosen};
use super::{Check, HOLDS, VIOLATED};
use crate::bound::Bound;
use crate::defects;
use crate::search::Counterexample;
use crate::timeline::Trace;
use crate::world::Act;
use anyhow::Context;
use std::path::Path;

/// The longest trace that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// Writes a counterexample where `--trace` says.
pub(super) fn write(
    check: &Check,
    chosen: &Chosen,
    found: &Counterexample<Act>,
) -> anyhow::Result<()> {
    let Some(file) = &check.trace else {
        return Ok(());
    };
    let trace = Trace {
        world: chosen.name.clone(),
        mode: chosen.mode.to_string(),
        bound: check.bound.to_string(),
        simulated: check.simulate,
        defect: check.defect.clone(),
        violation: Some(found.violation.to_string()),
        acts: found.acts.clone(),
    };
    let text = serde_json::to_string_pretty(&trace)?;
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    println!(
        "\nwritten to {}: run it again with --replay",
        file.display()
    );
    Ok(())
}

/// Runs a trace again through the shipped code, step by step.
pub(super) fn replay(file: &Path) -> anyhow::Result<u8> {
    let reading = || format!("reading {}", file.display());
    let length = std::fs::metadata(file).with_context(reading)?.len();
    anyhow::ensure!(
        length <= LONGEST,
        "{} is longer than any trace",
        file.display()
    );
    let text = std::fs::read_to_string(file).with_context(reading)?;
    let trace: Trace<Act> = serde_json::from_str(&text).with_context(reading)?;
    let bound: Bound = trace.bound.parse()?;
    let world = std::slice::from_ref(&trace.world);
    let chosen = worlds::chosen(bound, world, Some(&trace.mode))?;
    let chosen = chosen
        .first()
        .context("there is no such world in this mode")?;
    let defect = match &trace.defect {
        None => None,
        Some(id) => Some(defects::find(id).with_context(|| format!("no defect is called {id}"))?),
    };
    let setup = match trace.simulated {
        true => crate::simulate::large(&chosen.setup),
        false => chosen.setup.clone(),
    };
    let timeline = explore::world(setup, defect).replay(&trace.acts)?;
    print!("{timeline}");
    match (&timeline.violation, &trace.violation) {
        (Some(_), _) => Ok(VIOLATED),
        (None, None) => Ok(HOLDS),
        (None, Some(was)) if was.starts_with("H-11") => {
            println!("\n{was}\n(H-11 is about what can follow: `check` judges it)");
            Ok(VIOLATED)
        }
        (None, Some(was)) => {
            println!("\nnothing is violated here any more; when it was written: {was}");
            Ok(HOLDS)
        }
    }
}
