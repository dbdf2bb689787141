//! `docs/defects.md` and the timelines, made from what the checker finds and compared with what is
//! in the repository. `DEFECTS_UPDATE=1` writes them anew.

use super::arrival::NotLookedAt;
use super::hunt::{Broken, Outcome, Wanted, hunt};
use super::list::{HARMLESS, STALE_IN};
use super::release::StaleEndpoint;
use super::safeguards::NoArena;
use super::swap::Swap;
use super::worlds::World;
use super::{ALL, Defect};
use crate::scenario::Mode;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Worlds in which somebody is looked for who reads what is not his.
const NEAR: usize = 6_000;
/// Worlds in which a defect must show.
const FAR: usize = 60_000;
/// Worlds that are explored when the page is written, where nothing breaks.
const MOST: usize = 100_000;
/// Worlds that are explored again by every run of the test.
const AGAIN: usize = 4_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The repository's file is this text; or it is made so, if that was asked for.
fn updating() -> bool {
    std::env::var_os("DEFECTS_UPDATE").is_some()
}

fn keep(path: &Path, text: &str, wrong: &mut Vec<String>) {
    if updating() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("written");
    } else if std::fs::read_to_string(path).ok().as_deref() != Some(text) {
        wrong.push(path.display().to_string());
    }
}

/// Every defect is found, in the world that its row names and by the shortest way; the same world
/// without it is clean. All that is said about it is in the repository.
#[test]
fn defects_are_found_and_the_table_says_so() {
    let mut wrong = Vec::new();
    let mut rows = String::new();
    let mut behind = String::new();
    let mut shown_in = BTreeSet::new();
    for defect in ALL {
        let world = World::named(defect.shown_in);
        let setup = world.setup(defect.mode);
        let found = match hunt(setup, defect.swaps, Wanted::Any, FAR) {
            Outcome::Broken(found) => found,
            Outcome::Holds(worlds) if harmless(defect).is_some() => {
                row_of_harmless(&mut rows, defect, worlds);
                continue;
            }
            other => {
                wrong.push(format!("{} is not found: {other:?}", defect.id));
                continue;
            }
        };
        shown_in.insert((world.name, defect.mode));
        keep(
            &timeline_of(defect),
            &timeline(defect, world, &found),
            &mut wrong,
        );
        row(&mut rows, defect, &found);
        stands_behind(&mut behind, defect, world);
    }
    let (clean, stale) = (clean(shown_in, &mut wrong), stale(&mut wrong));
    let middle = MIDDLE.replace("NEAR", &number(NEAR));
    let text = format!("{HEAD}{rows}{middle}{behind}{stale}{clean}{}", worlds());
    keep(&root().join("docs/defects.md"), &text, &mut wrong);
    assert!(
        wrong.is_empty(),
        "not what is found now (DEFECTS_UPDATE=1 writes them): {wrong:?}"
    );
}

/// The worlds in which defects are shown, without any.
fn clean(shown_in: BTreeSet<(&str, Mode)>, wrong: &mut Vec<String>) -> String {
    let lines = shown_in
        .into_iter()
        .filter_map(|(name, mode)| whole(CLEAN, name, mode, &[], wrong));
    format!("{CLEAN}{}", lines.collect::<String>())
}

/// D-24 in several worlds, alone and with what stands behind it gone.
fn stale(wrong: &mut Vec<String>) -> String {
    let mut lines = String::from(STALE);
    for name in STALE_IN {
        for mode in [Mode::Landing, Mode::Direct] {
            lines.extend(whole(STALE, name, mode, &[&StaleEndpoint], wrong));
        }
    }
    lines.push_str(BEHIND_STALE);
    let gone: &[&dyn Swap] = &[&StaleEndpoint, &NoArena, &NotLookedAt];
    for name in STALE_IN {
        lines.extend(whole(BEHIND_STALE, name, Mode::Landing, gone, wrong));
    }
    lines
}

/// A world in which nothing breaks, in a line of the table below that head. A world is explored
/// further when the table is written than by every run of this test.
fn whole(
    head: &str,
    name: &str,
    mode: Mode,
    swaps: &'static [&'static dyn Swap],
    wrong: &mut Vec<String>,
) -> Option<String> {
    let setup = World::named(name).setup(mode);
    let known = written(head, name, mode).filter(|_| !updating());
    let large = known.as_ref().filter(|known| digits(known) > AGAIN);
    let limit = if large.is_some() { AGAIN } else { MOST };
    let worlds = match (hunt(setup, swaps, Wanted::Any, limit), large) {
        (Outcome::Unfinished(_), Some(known)) => known.clone(),
        (Outcome::Unfinished(worlds), None) => format!("{}, not all", number(worlds)),
        (Outcome::Holds(worlds), _) => number(worlds),
        (Outcome::Broken(broken), _) => {
            wrong.push(format!("{name}, {mode}: {}", broken.violation));
            return None;
        }
    };
    Some(format!("| {name}, {mode} | {worlds} |\n"))
}

/// How many worlds the repository says that were explored there.
fn written(head: &str, name: &str, mode: Mode) -> Option<String> {
    let text = std::fs::read_to_string(root().join("docs/defects.md")).ok()?;
    let title = head.lines().find(|line| line.starts_with("##"))?;
    let (_, table) = text.split_once(title)?;
    let row = format!("| {name}, {mode} | ");
    let cell = table.lines().find_map(|line| line.strip_prefix(&row))?;
    Some(cell.trim_end_matches(" |").to_owned())
}

/// 1,234,567 as 1234567.
fn digits(number: &str) -> usize {
    let digits = number.chars().filter(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap_or(0)
}

/// 1234567 as 1,234,567.
fn number(n: usize) -> String {
    let digits = n.to_string();
    let digits = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = digits.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn timeline_of(defect: &Defect) -> PathBuf {
    let file = format!("crates/lab/tests/timelines/{}.txt", defect.id);
    root().join(file)
}

fn timeline(defect: &Defect, world: &World, found: &Broken) -> String {
    let Defect {
        id,
        what,
        mode,
        trigger,
        ..
    } = defect;
    let trigger = if trigger.is_empty() { "none" } else { trigger };
    format!(
        "{id}: {what}\nworld:   {} ({}), {mode} mode\ntrigger: {trigger}\n\n{}",
        world.name, world.about, found.timeline
    )
}

const HEAD: &str = "\
# Defects that real systems had, or that this design could have had

Generated by `DEFECTS_UPDATE=1 cargo test -p lab defects` and compared by the same test.
Each row is one decision of the shipped code, swapped through its type parameter; the checker finds a
shortest way to a world in which a clause of [handoff.md](handoff.md) does not hold. *Worlds* are
the distinct worlds explored until then. A found defect is the defect's own: without the swaps every
clause holds in the same world, trigger of the world included ([The same worlds without a
defect](#the-same-worlds-without-a-defect)). The ways themselves, step by step, are in
[crates/lab/tests/timelines](../crates/lab/tests/timelines); `cofferdam-lab check --defect D-05` finds
one anew. What this design makes unsayable, so that there is nothing to swap, is shown by tests that
must not compile (`crates/lab/src/defects/unsayable.rs`).

| | defect | seen in | trigger | world, mode | breaks | steps | worlds | what stops it |
|---|---|---|---|---|---|--:|--:|---|
";

fn harmless(defect: &Defect) -> Option<&'static str> {
    let of = HARMLESS.iter().find(|(id, _)| *id == defect.id);
    of.map(|(_, why)| *why)
}

fn row_of_harmless(rows: &mut String, defect: &Defect, worlds: usize) {
    let Defect {
        id,
        what,
        seen,
        trigger,
        shown_in,
        mode,
        ..
    } = defect;
    let why = harmless(defect).unwrap_or_default();
    let line = format!(
        "| {id} | {what} | {seen} | {trigger} | {shown_in}, {mode} | nothing | – | {worlds}, all | {why} |"
    );
    writeln!(rows, "{line}").expect("a String takes it");
}

fn row(rows: &mut String, defect: &Defect, found: &Broken) {
    let Defect {
        id,
        what,
        seen,
        trigger,
        shown_in,
        mode,
        decision,
        ..
    } = defect;
    let trigger = if trigger.is_empty() { "none" } else { trigger };
    let (clause, steps, worlds) = (found.violation.clause, found.steps, found.worlds);
    let line = format!(
        "| [{id}](../crates/lab/tests/timelines/{id}.txt) | {what} | {seen} | {trigger} | \
         {shown_in}, {mode} | {clause} | {steps} | {worlds} | {decision} |"
    );
    writeln!(rows, "{line}").expect("a String takes it");
}

const MIDDLE: &str = "
## What would still stop it

The table above ends where a clause breaks. This one goes on: with the decision swapped, how far is it
to what all clauses are there to prevent, that somebody reads bytes that are not his, or a client
gets what is another's? Where a safeguard behind it still stops it, the next line takes that away as
well. A search ends after NEAR worlds; *not near* says that nobody was reached in that many, and
*never* that all worlds were explored.

| | gone beside the decision itself | somebody reads what is not his |
|---|---|---|
";

const STALE: &str = "
## A stale endpoint

D-24 breaks nothing: every clause holds in each of these worlds with it. Between two lives of decode
there is no decision to swap, because prefill keeps its endpoints under the life that they belong to.
The numbers are those of the same worlds without it: nowhere did the comparison have a difference to find.

| world, mode | worlds |
|---|--:|
";

const BEHIND_STALE: &str = "
### With the comparison of arenas and the checksum gone as well

| world, mode | worlds |
|---|--:|
";

const CLEAN: &str = "
## The same worlds without a defect

Every clause holds in each of them: explored whole when this page was written if they have up to 100,000
worlds, and again, up to 4,000, by every run of the test.

| world, mode | worlds |
|---|--:|
";

fn stands_behind(lines: &mut String, defect: &Defect, world: &World) {
    for behind in defect.behind {
        let outcome = hunt(world.setup(defect.mode), behind.swaps, Wanted::Harm, NEAR);
        let reached = match outcome {
            Outcome::Broken(found) => {
                format!("in {} steps ({})", found.steps, found.violation.clause)
            }
            Outcome::Holds(_) => "never".to_owned(),
            Outcome::Unfinished(_) => "not near".to_owned(),
        };
        let line = format!("| {} | {} | {reached} |", defect.id, behind.gone);
        writeln!(lines, "{line}").expect("a String takes it");
    }
}

fn worlds() -> String {
    let mut text =
        String::from("\n## Worlds\n\n| world | what is different from a calm one |\n|---|---|\n");
    for world in super::worlds::ALL {
        writeln!(text, "| {} | {} |", world.name, world.about).expect("a String takes it");
    }
    text
}
