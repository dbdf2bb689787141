//! Rules of the whole repository that can be checked by reading it (CONTRIBUTING.md lists them).
//!
//! A rule that only a reviewer keeps is forgotten under pressure; one that fails the build is not.

mod clauses;
mod kept_by;
mod layers;
mod links;
mod manual;
mod models;
mod tools;
mod tree;
mod twins;
mod waits;
mod ways_out;

use tree::{File, Kind, files, root};

/// The longest file, in lines.
const LINES_MAX: usize = 800;
/// The median of all files, in lines.
const MEDIAN_MAX: usize = 300;

/// Asserts that nothing was found, and lists everything if something was.
fn assert_none(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

fn rust_files() -> Vec<File> {
    files()
        .into_iter()
        .filter(|file| file.kind == Kind::Rust)
        .collect()
}

/// `FILE:LINE: text` for every line of `file` that contains one of `words`.
fn lines_with<'a>(file: &'a File, words: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    let found = file.text.lines().enumerate();
    found
        .filter(|(_, line)| words.iter().any(|word| line.contains(word)))
        .map(|(number, line)| format!("{}:{}: {}", file.path, number + 1, line.trim()))
}

#[test]
fn files_are_short() {
    let mut lengths: Vec<_> = rust_files()
        .iter()
        .map(|file| (file.text.lines().count(), file.path.clone()))
        .collect();
    lengths.sort();
    let long = lengths.iter().filter(|(length, _)| *length > LINES_MAX);
    let long = long
        .map(|(length, path)| format!("{path}: {length} lines"))
        .collect();
    assert_none(long, &format!("a file has at most {LINES_MAX} lines"));
    let (median, _) = lengths[lengths.len() / 2];
    assert!(
        median < MEDIAN_MAX,
        "the median is {median} lines, not below {MEDIAN_MAX}"
    );
}

#[test]
fn names_of_modules_say_what_is_in_them() {
    let empty = ["utils", "util", "helpers", "helper", "common", "misc"];
    let parts = |path: &str| {
        let parts = path.split(['/', '.']).map(str::to_owned);
        parts.collect::<Vec<_>>()
    };
    let found = rust_files().into_iter().map(|file| file.path);
    let found = found.filter(|path| {
        parts(path)
            .iter()
            .any(|part| empty.contains(&part.as_str()))
    });
    assert_none(
        found.collect(),
        "no module is called utils, helpers or common",
    );
}

#[test]
fn nothing_is_left_unfinished_or_switched_off() {
    // Put together here, so that this file does not find itself.
    let words = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("#[ign", "ore"),
        concat!("db", "g!("),
    ];
    let files = rust_files();
    let found = files
        .iter()
        .flat_map(|file| lines_with(file, &words))
        .collect();
    assert_none(found, "no unfinished code, no tests that are switched off");
}

#[test]
fn no_file_names_a_developers_machine() {
    let words = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/Us", "ers/"),
        concat!("\"/wo", "rk/"),
        concat!(" /wo", "rk/"),
    ];
    let files = files();
    let found = files
        .iter()
        .flat_map(|file| lines_with(file, &words))
        .collect();
    assert_none(found, "no path of a developer's machine");
}

#[test]
fn nothing_large_is_kept() {
    let large = files().into_iter().filter(|file| file.bytes > 1 << 20);
    assert_none(large.map(|file| file.path).collect(), "no file over 1 MiB");
}

#[test]
fn unsafe_code_is_forbidden_but_in_two_crates() {
    let exempt = ["kernels", "fabric"];
    let files = rust_files();
    let mut roots = 0;
    let mut found = Vec::new();
    for file in &files {
        let Some((krate, rest)) = file.in_crate() else {
            continue;
        };
        if !matches!(rest, "src/lib.rs" | "src/main.rs") || exempt.contains(&krate) {
            continue;
        }
        roots += 1;
        if !file.text.contains("#![forbid(unsafe_code)]") {
            found.push(file.path.clone());
        }
    }
    assert!(
        roots >= 8,
        "looked at {roots} crates only: is the layout another one?"
    );
    assert_none(
        found,
        "every crate but kernels and fabric has #![forbid(unsafe_code)]",
    );
}

#[test]
fn every_crate_keeps_the_workspaces_rules() {
    let manifests = files();
    let manifests = manifests
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"));
    let wanted = [
        "[lints]\nworkspace = true",
        "license.workspace",
        "version.workspace",
    ];
    let lacks = |file: &&File| wanted.iter().any(|part| !file.text.contains(part));
    let found = manifests
        .filter(lacks)
        .map(|file| file.path.clone())
        .collect();
    assert_none(
        found,
        "every crate has the workspace's lints, licence and version",
    );
}

#[test]
fn ci_runs_exactly_the_test_command_of_the_readme() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    let is_test = |line: &&str| line.starts_with("cargo test");
    let commands: Vec<_> = readme.lines().filter(is_test).collect();
    assert_eq!(
        commands,
        ["cargo test --workspace"],
        "the README has one test command"
    );
    let step = format!("step {}", commands[0]);
    assert!(
        ci.lines().any(|line| line == step),
        ".ci/run has no line {step:?}"
    );
}

#[test]
fn the_licence_is_there() {
    let text = std::fs::read_to_string(root().join("LICENSE")).unwrap();
    assert!(text.contains("Apache License") && text.contains("Version 2.0"));
}
