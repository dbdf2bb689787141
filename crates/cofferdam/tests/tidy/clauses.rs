//! The clauses of the handoff (H-…): those that tests cite exist, and `docs/clauses.md` says
//! which code keeps which, which properties judge it and which tests cite it.
//!
//! `TIDY_UPDATE=1 cargo test -p cofferdam --test tidy` writes the report.

use super::assert_none;
use super::kept_by::KEPT_BY;
use super::tree::{File, Kind, files, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Number and gist of every clause. H-4 is part of H-2, H-12 of H-6.
const CLAUSES: [(u32, &str); 18] = [
    (
        1,
        "every byte that is used was written by the write that sealed it, for this reader",
    ),
    (
        2,
        "coverage and length: what is committed is exactly the prompt",
    ),
    (
        3,
        "no pending write but of the present grant; pending reads keep a page",
    ),
    (5, "rejected is terminal; no forward pass before a ticket"),
    (6, "one outcome, set once; no byte before Committed"),
    (
        7,
        "Closed only after every write has completed successfully",
    ),
    (8, "identity is minted by the owner of the thing named"),
    (
        9,
        "nothing is cached and no token leaves before verification",
    ),
    (
        10,
        "pages in all states add up to the pool; at rest only free and cached",
    ),
    (11, "progress: rest is reachable from everywhere"),
    (13, "isolation domain: prefixes are shared inside one only"),
    (14, "order of resources: no deadlock"),
    (15, "deadlines end ownership, they never prove quiescence"),
    (16, "caps on tokens and retries"),
    (
        17,
        "no residue: nothing behind the filled slots leaves a worker",
    ),
    (18, "every message of the current epoch is answered"),
    (
        19,
        "growth: the oldest sequence always gets the pages it needs, whatever peers do",
    ),
    (
        20,
        "continuation: what was put back goes on behind what was said, nothing lost or twice",
    ),
];
/// Number and gist of every clause of the door (DR-…).
const OF_THE_DOOR: [(u32, &str); 13] = [
    (
        1,
        "no byte is released before prefill was judged by its body",
    ),
    (
        2,
        "an answer whose engines have computed another prompt is none",
    ),
    (3, "one outcome, and an answer of one attempt"),
    (4, "every leg ends"),
    (
        5,
        "no leg is aborted in the middle of a transfer, but for its age",
    ),
    (
        6,
        "another try only before anything was released, and where no old leg is",
    ),
    (7, "no identifier is used twice"),
    (8, "what does not fit measured limits reaches no engine"),
    (9, "an engine is blamed for its own failures only"),
    (10, "every request ends by its deadline"),
    (11, "a reference to pages is used by its own attempt, once"),
    (12, "an answer under another's name is not released"),
    (
        13,
        "who is private is asked for operators only, and who is named alone",
    ),
];
/// Where the checker judges clauses.
const PROPERTIES: &str = "crates/lab/src/";
/// Judged over all worlds together, by the explorer's fixpoint, and not over one.
const PROGRESS: [u32; 2] = [11, 14];
/// Defects of the design's table are D-01 to this one.
const DEFECTS_MAX: u32 = 32;

/// Numbers that follow `prefix` as words of their own in `text`: `H-` in "H-7," but not in
/// "SHA-256" or "H-xyz".
fn cited(text: &str, prefix: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(prefix) {
        let before = text[..at].chars().next_back();
        let digits: String = text[at + prefix.len()..]
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        if before.is_none_or(|c| !c.is_alphanumeric()) {
            found.extend(digits.parse::<u32>().ok());
        }
    }
    found
}

/// What of a file is test code: all of it, or what stands behind the attribute.
fn test_text(file: &File) -> &str {
    let all = ["/tests/", "tests.rs", "/benches/"];
    if all.iter().any(|part| file.path.contains(part)) {
        return &file.text;
    }
    file.text
        .find("#[cfg(test)]")
        .map_or("", |at| &file.text[at..])
}

fn other_files() -> impl Iterator<Item = File> {
    let is_ours = |file: &File| file.path.starts_with("crates/cofferdam/tests/tidy/");
    files()
        .into_iter()
        .filter(move |file| file.kind == Kind::Rust && !is_ours(file))
}

/// Files that cite a clause, by clause.
type Citations = BTreeMap<u32, Vec<String>>;

/// What the checker and the tests cite.
fn citations() -> (Citations, Citations) {
    let (mut properties, mut tests) = (Citations::new(), Citations::new());
    for file in other_files() {
        if file.path.starts_with(PROPERTIES) {
            for clause in cited(&file.text, "H-") {
                properties
                    .entry(clause)
                    .or_default()
                    .push(file.path.clone());
            }
        }
        for clause in cited(test_text(&file), "H-") {
            tests.entry(clause).or_default().push(file.path.clone());
        }
    }
    (properties, tests)
}

fn report() -> String {
    let (properties, tests) = citations();
    let mut text = String::from(
        "# Clauses of the handoff: the code that keeps them, and what checks it\n\n\
         Written by `TIDY_UPDATE=1 cargo test -p cofferdam --test tidy`; a test compares it, and a\n\
         clause that nothing keeps, no property judges or no test cites fails the build.\n\
         H-4 is part of H-2, H-12 of H-6.\n",
    );
    for (number, gist) in CLAUSES {
        writeln!(text, "\n## H-{number}: {gist}\n").unwrap();
        for (_, file, what, does) in KEPT_BY.iter().filter(|(clause, ..)| *clause == number) {
            writeln!(text, "- kept by `{what}` in `crates/{file}`: {does}").unwrap();
        }
        for (kind, files) in [("judged by", &properties), ("cited by", &tests)] {
            for path in files.get(&number).into_iter().flatten() {
                writeln!(text, "- {kind} `{path}`").unwrap();
            }
        }
    }
    text.push_str(
        "\n# Clauses of the door\n\n\
         Said in [door.md](door.md), with the code that keeps each.\n",
    );
    for (number, gist) in OF_THE_DOOR {
        writeln!(text, "\n## DR-{number}: {gist}\n").unwrap();
        for path in citing_the_door(number) {
            writeln!(text, "- in `{path}`").unwrap();
        }
    }
    text
}

/// Files that name this clause of the door.
fn citing_the_door(number: u32) -> Vec<String> {
    let named = other_files().filter(|file| cited(&file.text, "DR-").contains(&number));
    named.map(|file| file.path).collect()
}

#[test]
fn every_clause_of_the_door_is_kept_judged_and_broken_once() {
    let mut found = Vec::new();
    for (number, _) in OF_THE_DOOR {
        let files = citing_the_door(number);
        let places = [
            "crates/handoff/src/door/",
            "crates/lab/src/door/",
            "crates/lab/src/door/defects.rs",
        ];
        let lacks = places
            .iter()
            .filter(|place| !files.iter().any(|file| file.starts_with(**place)));
        found.extend(lacks.map(|place| format!("DR-{number} is not named in {place}")));
    }
    for file in other_files() {
        let cited = cited(&file.text, "DR-");
        let unknown = cited.iter().filter(|n| !(1..=13).contains(*n));
        found.extend(unknown.map(|n| format!("{}: DR-{n}", file.path)));
    }
    assert_none(
        found,
        "every clause of the door has code, a property and a defect",
    );
}

#[test]
fn every_clause_is_kept_judged_and_tested() {
    let (properties, tests) = citations();
    let mut found = Vec::new();
    for (number, _) in CLAUSES {
        let kept = KEPT_BY.iter().any(|(clause, ..)| *clause == number);
        let judged = properties.contains_key(&number) || PROGRESS.contains(&number);
        let lacks = [
            (kept, "code"),
            (judged, "property"),
            (tests.contains_key(&number), "test"),
        ];
        let lacks = lacks.iter().filter(|(has, _)| !has);
        found.extend(lacks.map(|(_, what)| format!("H-{number} has no {what}")));
    }
    assert_none(found, "every clause has code, a property and a test");
}

#[test]
fn the_code_that_keeps_a_clause_is_there() {
    let files = files();
    let missing = KEPT_BY.iter().filter(|(_, file, what, _)| {
        let path = format!("crates/{file}");
        !files
            .iter()
            .any(|file| file.path == path && file.text.contains(what))
    });
    let missing = missing.map(|(clause, file, what, _)| format!("H-{clause}: {what} in {file}"));
    assert_none(
        missing.collect(),
        "code that keeps a clause is where the report says",
    );
}

#[test]
fn clauses_that_are_cited_exist() {
    let known: BTreeSet<u32> = CLAUSES.iter().map(|(number, _)| *number).collect();
    let mut found = Vec::new();
    for file in other_files() {
        let clauses = cited(&file.text, "H-");
        found.extend(
            clauses
                .difference(&known)
                .map(|n| format!("{}: H-{n}", file.path)),
        );
        let defects = cited(&file.text, "D-").into_iter();
        let unknown = defects.filter(|n| !(1..=DEFECTS_MAX).contains(n));
        found.extend(unknown.map(|n| format!("{}: D-{n:02}", file.path)));
    }
    assert_none(found, "only clauses and defects of the design are cited");
}

#[test]
fn the_report_of_clauses_is_up_to_date() {
    let path = root().join("docs/clauses.md");
    let report = report();
    if std::env::var_os("TIDY_UPDATE").is_some() {
        std::fs::write(&path, &report).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == report,
        "docs/clauses.md is old: TIDY_UPDATE=1 cargo test -p cofferdam --test tidy"
    );
}

#[test]
fn citations_are_found_as_words() {
    assert_eq!(
        cited("H-1, (H-17) H-x SHA-256 /H-2", "H-"),
        BTreeSet::from([1, 2, 17])
    );
}
