//! Tables: worlds, clauses, situations.

use super::table::Table;
use super::watch::number;
use super::worlds::{self, Chosen};
use crate::bound::Bound;
use crate::defects;
use crate::pinned;
use crate::search::{Report, Stop};
use crate::world::Act;
use std::collections::BTreeMap;

type Done<'a> = (&'a Chosen, Report<Act>);

/// Which worlds and defects there are.
pub(super) fn list(bound: Bound) -> anyhow::Result<String> {
    let mut worlds = Table::new(&["world", "mode", "states", "what is in it"]);
    for world in worlds::chosen(bound, &[], None)? {
        let pinned = pinned::states(bound, world.mode, &world.name);
        let pinned = pinned.map_or("?".to_owned(), number);
        worlds.row([
            world.name,
            world.mode.to_string(),
            pinned,
            world.about.to_owned(),
        ]);
    }
    for world in crate::door::ALL {
        let none = String::new();
        worlds.row([
            world.name.to_owned(),
            none.clone(),
            none,
            world.about.to_owned(),
        ]);
    }
    let mut known = Table::new(&["defect", "what is decided wrongly"]);
    for defect in defects::ALL {
        known.row([defect.id.to_owned(), defect.what.to_owned()]);
    }
    for defect in crate::door::DEFECTS {
        known.row([defect.clause.to_owned(), defect.what.to_owned()]);
    }
    Ok(format!(
        "Worlds of the bound {bound}:\n\n{worlds}\nDefects:\n\n{known}"
    ))
}

/// What came of a world, in a line.
pub(super) fn outcome<A>(world: &str, report: &Report<A>) -> String {
    let end = match report.stop {
        Stop::Complete => "every clause holds".to_owned(),
        Stop::Violation => match &report.violation {
            Some(found) => format!("VIOLATED: {}", found.violation),
            None => "VIOLATED".to_owned(),
        },
        Stop::States => "NOT FINISHED: as many states as the bound allows".to_owned(),
        Stop::Memory => "NOT FINISHED: as much memory as the bound allows".to_owned(),
        Stop::Time => "NOT FINISHED: as much time as the bound allows".to_owned(),
    };
    let seconds = report.elapsed.as_secs_f64();
    format!(
        "{world}: {} states, {} steps, depth {}, {} at rest, {seconds:.1} s, {}/s, {:.0} bytes a \
         state: {end}",
        number(report.states as u64),
        number(report.tally.steps),
        report.depth,
        number(report.rests as u64),
        number((report.states as f64 / seconds.max(1e-3)) as u64),
        report.bytes_per_state,
    )
}

/// What differs from what is written down of a world that was explored whole.
pub(super) fn unlike_pinned(key: &str, pinned: Option<u64>, states: u64) -> Option<String> {
    let line = format!("crates/lab/pinned.toml: \"{key}\" = {states}");
    match pinned {
        Some(pinned) if pinned == states => None,
        Some(pinned) => Some(format!("the model has changed, {pinned} are in {line}")),
        None => Some(format!("not in {line}")),
    }
}

/// In how many states each clause was judged, over all worlds.
pub(super) fn clauses(done: &[Done<'_>]) -> String {
    let mut counts: Vec<(&str, u64, u64)> = Vec::new();
    for (_, report) in done {
        for (at, (clause, states, steps)) in report.tally.clauses().into_iter().enumerate() {
            match counts.get_mut(at) {
                Some(line) => *line = (clause, line.1 + states, line.2 + steps),
                None => counts.push((clause, states, steps)),
            }
        }
        // Judged by fixpoint over the whole graph.
        if report.stop == Stop::Complete {
            for line in counts.iter_mut().filter(|line| OF_RUNS.contains(&line.0)) {
                line.1 += report.states as u64;
                line.2 += report.tally.steps;
            }
        }
    }
    let mut table = Table::new(&["clause", "holds in states", "judged on steps"]);
    // Those of the door are judged in other worlds.
    for (clause, states, steps) in counts.into_iter().filter(|(it, ..)| it.starts_with("H-")) {
        table.row([clause.to_owned(), number(states), number(steps)]);
    }
    table.to_string()
}

/// Clauses about runs: a deadlock (H-14) and an answer that never comes (H-18) are worlds from which
/// rest is out of reach (H-11).
const OF_RUNS: [&str; 3] = ["H-11", "H-14", "H-18"];

/// How often each interesting situation was met, over all worlds.
pub(super) fn situations(done: &[Done<'_>]) -> String {
    let mut seen: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (_, report) in done {
        for (situation, times) in &report.tally.seen {
            let line = seen.entry(situation).or_default();
            *line = (line.0 + times, line.1 + 1);
        }
    }
    let mut table = Table::new(&["situation", "on steps", "in worlds"]);
    for (situation, (times, worlds)) in seen {
        table.row([situation.to_owned(), number(times), number(worlds)]);
    }
    table.to_string()
}

/// What worlds were to show and did not.
pub(super) fn missing(done: &[Done<'_>]) -> Vec<String> {
    let complete = done
        .iter()
        .filter(|(_, report)| report.stop == Stop::Complete);
    let never = complete.flat_map(|(chosen, report)| {
        let missing = chosen
            .sees
            .iter()
            .filter(|situation| !report.tally.seen.contains_key(*situation));
        missing.map(|situation| format!("{}: {situation}", chosen.name()))
    });
    never.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_otherwise_is_said() {
        assert_eq!(unlike_pinned("landing/deep/calm", Some(7), 7), None);
        let other = unlike_pinned("landing/deep/calm", Some(8), 7).expect("said");
        assert!(other.contains("changed, 8") && other.ends_with("\"landing/deep/calm\" = 7"));
        let none = unlike_pinned("landing/deep/calm", None, 7).expect("said");
        assert!(
            none.starts_with("not in") && none.ends_with("= 7"),
            "{none}"
        );
    }
}
