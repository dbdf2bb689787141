//! Type names that more than one library makes public. A name that two crates share may hide that one
//! declares again what the other has: each such name stands here with the reason why these are two
//! things. Programs, laboratories, the testkit and the scripted engine are left out: nobody builds on their types.
//!
//! It reads lines: what a macro declares (`Grant`) and what stands in a module inside a file is not seen,
//! and a type that says the same under another name (`wire::Sampling`, `model`'s `SamplingParams`) neither.

use super::{assert_none, rust_files};
use std::collections::{BTreeMap, BTreeSet};

const NO_LIBRARIES: [&str; 5] = ["cofferdam", "faults", "lab", "scripted", "testkit"];

const OWN: &str = "every crate's own, and never in scope together";
const APART: &str = "a library for somebody else's engine, which knows nothing of ours";

/// Name and reason, in the order of the alphabet.
const ALLOWED: [(&str, &str); 18] = [
    ("Answer", "a check's answer; a running request"),
    (
        "Ask",
        "what is asked of sampling; of an engine that is not ours",
    ),
    ("Config", OWN),
    (
        "Decisions",
        "of a ledger; of the machines, which include it",
    ),
    (
        "Engine",
        "what computes, behind HTTP; which software a node runs; what the door knows of one",
    ),
    (
        "Entry",
        "what can be lost, in the machines; a line of the journal",
    ),
    ("Error", OWN),
    (
        "Event",
        "what happens to a request, at HTTP, at the embedded engine, in the machines",
    ),
    ("Evidence", "of a check, of a fence, of a writer's end"),
    ("Fault", "what a client is told; a kind of integrity fault"),
    ("Limits", OWN),
    ("OutOfRange", OWN),
    ("Receiver", "of an arena; of a connection"),
    ("Refusal", OWN),
    (
        "Role",
        "in the protocol; in a certificate, which the tools read without the protocol; of others' nodes",
    ),
    ("Secret", APART),
    ("Sender", "into an arena; of a connection"),
    (
        "Steering",
        "what HTTP wants of any engine; the embedded engine's",
    ),
];

/// The name that a line makes public.
fn public(line: &str) -> Option<&str> {
    let after = line.strip_prefix("pub ")?;
    let (kind, name) = after.split_once(' ')?;
    let kinds = ["struct", "enum", "trait", "type", "union"];
    let end = |c: char| !c.is_alphanumeric();
    kinds.contains(&kind).then(|| name.split(end).next())?
}

#[test]
fn a_name_in_two_libraries_has_its_reason() {
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files() {
        let Some((krate, path)) = file.in_crate() else {
            continue;
        };
        if NO_LIBRARIES.contains(&krate) || !path.starts_with("src/") {
            continue;
        }
        for name in file.text.lines().filter_map(public) {
            let known = homes.entry(name.to_owned()).or_default();
            known.insert(krate.to_owned());
        }
    }
    let shared = homes.iter().filter(|(_, homes)| homes.len() > 1);
    let shared: BTreeMap<_, _> = shared.map(|(name, homes)| (name.as_str(), homes)).collect();
    let allowed: BTreeMap<_, _> = ALLOWED.into_iter().collect();
    assert_eq!(allowed.len(), ALLOWED.len(), "a name stands here twice");
    let without = shared
        .iter()
        .filter(|(name, _)| !allowed.contains_key(*name));
    let without = without.map(|(name, homes)| format!("{name} in {homes:?}"));
    assert_none(without.collect(), "one word, one home, or a reason here");
    let old = allowed.keys().filter(|name| !shared.contains_key(*name));
    let old = old.map(|name| (*name).to_owned()).collect();
    assert_none(old, "these names have one home now; take them out here");
}
