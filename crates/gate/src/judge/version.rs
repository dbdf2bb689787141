//! Versions against the table of advisories.

use super::Member;
use crate::advisories::{Advisory, CHECKS_OF_TABLE, Table};
use crate::check::{Check, KNOWN_ADVISORIES, LENGTH_COMPARED};
use crate::facts::{Engine, Fact, Figure, Version};
use crate::finding::{Answer, Evidence, Finding};

pub(super) fn judge(member: &Member, table: &Table, findings: &mut Vec<Finding>) {
    for check in CHECKS_OF_TABLE {
        judge_check(member, table, check, findings);
    }
}

fn judge_check(member: &Member, table: &Table, check: &'static Check, findings: &mut Vec<Finding>) {
    let engine = member.node.engine.as_ref().map(|it| it.value);
    let new = |answer, says: String| {
        let evidence = [shown("version", &member.node.version)];
        Finding::new(check, member.subject(), answer, says).with(evidence)
    };
    let engine = match engine {
        Ok(engine) if engine.is_supported() => engine,
        // What runs there is not known: any entry may apply to it.
        _ => {
            let needs_handoff = |it: &&Advisory| it.check == check && !it.only_handoff;
            if member.hands_over() || table.advisories.iter().any(|it| needs_handoff(&it)) {
                findings.push(new(Answer::Unknown, "the engine is not known".to_owned()));
            }
            return;
        }
    };
    let applies = |it: &&Advisory| {
        it.check == check && it.engine == engine && (!it.only_handoff || member.hands_over())
    };
    let entries: Vec<&Advisory> = table.advisories.iter().filter(applies).collect();
    if entries.is_empty() && check != &KNOWN_ADVISORIES {
        return; // the question does not arise for this engine
    }
    let version = match &member.node.version {
        Ok(version) => &version.value,
        Err(_) if entries.is_empty() => {
            // This rests on the engine alone.
            let says = format!("no entry of {} is about {engine} here", table.date);
            let mut finding = new(Answer::Holds, says);
            finding.evidence.clear();
            findings.push(finding);
            return;
        }
        Err(why) => {
            findings.push(new(
                Answer::Unknown,
                format!("version of {engine} unknown: {why}"),
            ));
            return;
        }
    };
    let before = findings.len();
    let mut refused = Vec::new();
    for entry in entries {
        let mut todo = todo(entry, version, table);
        let affected = match affects(entry, version, table) {
            Affects::Yes | Affects::Perhaps(_) if entry.guarded && member.node.guard.is_ok() => {
                match table.guard_was_run(engine, version) {
                    true => {
                        refused.push(entry);
                        continue;
                    }
                    false => {
                        todo = format!(
                            "use a version in which cofferdam-guard was run ({engine} {}), and try there what \
                             it refuses",
                            runs(engine, table)
                        );
                        Affects::Perhaps(format!(
                            "cofferdam-guard refuses it where it was run, and it was not run in {version}"
                        ))
                    }
                }
            }
            other => other,
        };
        let (answer, says) = match affected {
            Affects::No => continue,
            Affects::Yes => (
                Answer::Violated,
                format!("{engine} {version}: {}", entry.gist),
            ),
            Affects::Perhaps(why) => (
                Answer::Unknown,
                format!("{engine} {version}: {why}: {}", entry.gist),
            ),
        };
        let mut finding = new(answer, says).change(todo);
        finding.advisory = Some(entry.id.clone());
        finding.link = Some(entry.link.clone());
        findings.push(finding);
    }
    if findings.len() > before {
        return;
    }
    let (Some(entry), Ok(guard)) = (refused.first(), &member.node.guard) else {
        findings.push(new(Answer::Holds, unaffected(engine, version, table)));
        return;
    };
    let says = match check == &LENGTH_COMPARED {
        true => format!("cofferdam-guard {} compares", guard.value),
        false => format!(
            "cofferdam-guard {} refuses what {engine} {version} does here: {}",
            guard.value, entry.gist
        ),
    };
    let guard = [shown("guard", &member.node.guard)];
    findings.push(new(Answer::Holds, says).with(guard));
}

/// What to do, and whether the guard does it, in a version in which it can be done.
fn todo(entry: &Advisory, version: &Version, table: &Table) -> String {
    let todo = &entry.todo;
    if !entry.guarded {
        return todo.clone();
    }
    match table.guard_was_run(entry.engine, version) {
        true => format!("run cofferdam-guard on both sides; else {todo}"),
        false => format!(
            "{todo} (cofferdam-guard refuses it, and was run in {} {} only)",
            entry.engine,
            runs(entry.engine, table)
        ),
    }
}

/// The versions in which the guard was run.
fn runs(engine: Engine, table: &Table) -> String {
    let runs = table.guard_runs.get(&engine).into_iter().flatten();
    let runs: Vec<_> = runs.map(ToString::to_string).collect();
    runs.join(", ")
}

fn shown(what: &str, version: &Fact<Figure<Version>>) -> Evidence {
    Evidence {
        what: what.into(),
        value: match version {
            Ok(version) => Ok(version.value.text().into()),
            Err(why) => Err(why.to_string()),
        },
        source: version.as_ref().ok().map(|it| it.source.clone()),
    }
}

enum Affects {
    No,
    Yes,
    Perhaps(String),
}

fn affects(entry: &Advisory, version: &Version, table: &Table) -> Affects {
    // A build on the way to a release may have what the release brought, or lack it.
    let early = |it: &Option<Version>| it.clone().filter(|it| version.is_on_the_way_to(it));
    if let Some(release) = early(&entry.since).or(early(&entry.fixed)) {
        return Affects::Perhaps(format!("it is a build on the way to {release}"));
    }
    if entry.since.as_ref().is_some_and(|since| version < since) {
        return Affects::No;
    }
    if let Some(from) = entry.seen_from.as_ref().filter(|from| version < *from) {
        return Affects::Perhaps(format!("seen in {from}, older versions were not looked at"));
    }
    if let Some(fixed) = &entry.fixed {
        if version >= fixed {
            return Affects::No;
        }
    } else if table
        .seen_through
        .get(&entry.engine)
        .is_some_and(|seen| version > seen)
    {
        let seen = &table.seen_through[&entry.engine];
        let why = format!(
            "not fixed in {seen}, and the table of {} knows no newer",
            table.date
        );
        return Affects::Perhaps(why);
    }
    match &entry.condition {
        Some(condition) => Affects::Perhaps(format!("if {condition}")),
        None => Affects::Yes,
    }
}

fn unaffected(engine: Engine, version: &Version, table: &Table) -> String {
    let newer = table
        .seen_through
        .get(&engine)
        .filter(|seen| version > *seen);
    match newer {
        Some(seen) => format!(
            "{engine} {version} has the fixes that the table of {} knows (it ends at {seen})",
            table.date
        ),
        None => format!("no entry of {} applies to {engine} {version}", table.date),
    }
}
