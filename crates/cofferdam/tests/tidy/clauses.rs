//! The clauses of the handoff (H-…): those that tests cite exist, and `docs/clauses.md` says
//! which tests cite which, and which clauses no test cites.
//!
//! `TIDY_UPDATE=1 cargo test -p cofferdam --test tidy` writes the report.

use super::assert_none;
use super::tree::{File, Kind, files, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Number and gist of every clause. H-4 is part of H-2, H-12 of H-6.
const CLAUSES: [(u32, &str); 16] = [
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
];
/// Defects of the design's table are D-01 to this one.
const DEFECTS_MAX: u32 = 28;

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

fn report() -> String {
    let mut citations: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for file in other_files() {
        for clause in cited(test_text(&file), "H-") {
            citations.entry(clause).or_default().push(file.path.clone());
        }
    }
    let mut text = String::from(
        "# Clauses of the handoff and the tests that cite them\n\n\
         Written by `TIDY_UPDATE=1 cargo test -p cofferdam --test tidy`; a test compares it.\n\
         H-4 is part of H-2, H-12 of H-6.\n",
    );
    let none = Vec::new();
    for (number, gist) in CLAUSES {
        writeln!(text, "\n**H-{number}** {gist}\n").unwrap();
        let cites = citations.get(&number).unwrap_or(&none);
        cites
            .iter()
            .for_each(|path| writeln!(text, "- `{path}`").unwrap());
        if cites.is_empty() {
            writeln!(text, "- no test cites it").unwrap();
        }
    }
    text
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
