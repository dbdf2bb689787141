//! Exploring the worlds of the door: by name, all of them beside the others, or with a defect of its
//! own.

use super::watch::Watches;
use super::{Check, HOLDS, UNFINISHED, VIOLATED, show};
use crate::bound::Bound;
use crate::door::{ALL, DEFECTS, Front, Scenario, Swapped};
use crate::search::{Report, Stop, explore};
use crate::timeline;
use anyhow::{Context, bail};

/// What the names of its worlds begin with, and those of its clauses.
const WORLDS: &str = "door-";
const CLAUSES: &str = "DR-";

/// Explores them if they are asked for. None: others are to be explored as well, or instead.
pub(super) fn run(check: &Check) -> anyhow::Result<Option<u8>> {
    let named: Vec<&String> = check
        .world
        .iter()
        .filter(|it| it.starts_with(WORLDS))
        .collect();
    let defect = check.defect.as_ref().filter(|it| it.starts_with(CLAUSES));
    if named.is_empty() && defect.is_none() {
        let all = check.world.is_empty() && check.mode.is_none() && check.defect.is_none();
        if !all || check.simulate {
            return Ok(None);
        }
        let done = worlds(check, &ALL.iter().collect::<Vec<_>>(), Swapped::Nothing)?;
        return Ok((done == VIOLATED).then_some(done));
    }
    if named.len() < check.world.len() || check.simulate || check.trace.is_some() {
        bail!("worlds of the door are explored for themselves, and neither simulated nor traced");
    }
    let find = |name: &&String| {
        let known = ALL.iter().find(|it| it.name == name.as_str());
        known.with_context(|| format!("no world is called {name}; see --list"))
    };
    let mut chosen: Vec<&Scenario> = named.iter().map(find).collect::<Result<_, _>>()?;
    let mut swapped = Swapped::Nothing;
    if let Some(clause) = defect {
        let known = DEFECTS.iter().find(|it| it.clause == clause.as_str());
        let known = known.with_context(|| format!("no defect breaks {clause}; see --list"))?;
        swapped = known.swapped;
        let shown_in = ALL.iter().filter(|it| it.name == known.world);
        chosen.extend(shown_in.filter(|_| named.is_empty()));
    }
    worlds(check, &chosen, swapped).map(Some)
}

fn worlds(check: &Check, chosen: &[&Scenario], swapped: Swapped) -> anyhow::Result<u8> {
    let mut limits = check.bound.limits();
    limits.threads = check.threads.unwrap_or(limits.threads);
    limits.states = check.states.unwrap_or(limits.states).min(limits.states);
    let watches = Watches::new(check.quiet);
    let mut unfinished = false;
    for scenario in chosen {
        let setup = (scenario.setup)(check.bound == Bound::Smoke);
        let world = Front::with_decisions(setup, swapped);
        let mut watch = watches.of(scenario.name.to_owned());
        let report = explore(&world, &limits, &mut |now| watch.see(now));
        println!("{}", show::outcome(scenario.name, &report));
        if let Some(found) = &report.violation {
            println!("\nA shortest way there, {} steps:\n", found.acts.len());
            print!("{}", timeline::replay(&world, &found.acts)?);
            println!("\n{}", found.violation);
            return Ok(VIOLATED);
        }
        let never = never(scenario, &report);
        if swapped == Swapped::Nothing && !never.is_empty() {
            println!("  was to show and never did: {}", never.join(", "));
            return Ok(VIOLATED);
        }
        unfinished |= report.stop != Stop::Complete;
    }
    Ok(if unfinished { UNFINISHED } else { HOLDS })
}

fn never<A>(scenario: &Scenario, report: &Report<A>) -> Vec<&'static str> {
    let sees = scenario.sees.iter().copied();
    sees.filter(|it| report.stop == Stop::Complete && !report.tally.seen.contains_key(it))
        .collect()
}
