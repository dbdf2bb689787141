//! The layers of ARCHITECTURE.md: which crate may use which, and what the core may not know.

use super::tree::{File, Kind, files, root};
use super::{assert_none, lines_with};
use std::collections::BTreeMap;

/// Pure crates: events and time come in as arguments.
const CORE: [&str; 2] = ["pages", "handoff"];

/// What the core may neither depend on nor name.
const BANNED: [&str; 12] = [
    "tokio",
    "std::net",
    "std::time",
    "std::thread",
    "std::fs",
    "std::process",
    "std::env",
    "rand",
    "rand_core",
    "chacha20",
    "getrandom",
    "HashMap",
];

fn manifest(path: &str) -> toml::Table {
    std::fs::read_to_string(root().join(path))
        .unwrap()
        .parse()
        .unwrap()
}

/// Names below `[dependencies]` (not those for tests).
fn dependencies(krate: &str) -> Vec<String> {
    let manifest = manifest(&format!("crates/{krate}/Cargo.toml"));
    let table = manifest.get("dependencies").and_then(|it| it.as_table());
    table.map_or(Vec::new(), |table| table.keys().cloned().collect())
}

/// Our crates, lowest first: the order in the root manifest is the order of the layers.
fn layers() -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let paths = text
        .lines()
        .filter(|line| line.contains("path = \"crates/"));
    let names = paths.map(|line| line.split(' ').next().unwrap().to_owned());
    names
        .enumerate()
        .map(|(layer, name)| (name, layer))
        .collect()
}

#[test]
fn a_crate_uses_only_those_below_it() {
    let layers = layers();
    assert!(layers.len() >= 10, "{layers:?}");
    let mut found = Vec::new();
    for (krate, layer) in &layers {
        for used in dependencies(krate) {
            if layers.get(&used).is_some_and(|below| below >= layer) {
                found.push(format!("{krate} uses {used}"));
            }
        }
    }
    assert_none(
        found,
        "a crate may use only what stands above it in the root Cargo.toml",
    );
}

/// The map of ARCHITECTURE.md: who uses somebody stands above it.
#[test]
fn the_map_shows_them_in_that_order() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = text.split("## Layers").nth(1).unwrap();
    let map = map.split("```").nth(1).unwrap();
    let name = |line: &str| {
        let line = line.trim_start_matches([' ', '│', '├', '└', '─']);
        line.split(' ').next().unwrap_or_default().to_owned()
    };
    let places: BTreeMap<_, _> = map.lines().map(name).zip(0..).collect();
    let ships = layers().into_keys().filter(|krate| {
        let beside = ["lab", "faults", "scripted", "testkit", "guard-core"];
        !beside.contains(&krate.as_str())
    });
    let mut found = Vec::new();
    for krate in ships {
        let Some(place) = places.get(&krate) else {
            found.push(format!("{krate} is not on it"));
            continue;
        };
        for used in dependencies(&krate) {
            if places.get(&used).is_some_and(|below| below < place) {
                found.push(format!("{krate} uses {used}, which stands above it"));
            }
        }
    }
    assert_none(
        found,
        "ARCHITECTURE.md: a crate uses only what stands below it",
    );
}

#[test]
fn only_tests_use_the_testkit_and_the_scripted_engine() {
    // The attacks are tests that can also be typed.
    let may = ["testkit", "faults"];
    let users = layers()
        .into_keys()
        .filter(|name| !may.contains(&name.as_str()));
    let users = users.chain(["cofferdam".to_owned()]);
    let for_tests = ["testkit".to_owned(), "scripted".to_owned()];
    let found = users
        .filter(|name| dependencies(name).iter().any(|it| for_tests.contains(it)))
        .collect();
    assert_none(
        found,
        "testkit and scripted are dependencies for tests only",
    );
}

/// The part of a source file that ships: tests stand at the end, behind their attribute.
fn shipped(file: &File) -> File {
    let end = file.text.find("#[cfg(test)]").unwrap_or(file.text.len());
    File {
        text: file.text[..end].to_owned(),
        ..file.clone()
    }
}

#[test]
fn the_core_knows_no_io_no_clock_no_threads_and_no_randomness() {
    let mut found = Vec::new();
    for krate in CORE {
        let used = dependencies(krate);
        found.extend(
            used.into_iter()
                .filter(|name| BANNED.contains(&name.as_str())),
        );
        let source = format!("crates/{krate}/src/");
        for file in files() {
            let is_test = file.path.ends_with("tests.rs") || file.path.contains("/tests/");
            if file.kind != Kind::Rust || !file.path.starts_with(&source) || is_test {
                continue;
            }
            let shipped = shipped(&file);
            let named = lines_with(&shipped, &BANNED);
            // A comment may say what the core does not know.
            found.extend(named.filter(|line| !line.contains(": //")));
        }
    }
    assert_none(found, "pages and handoff are pure");
}
