//! The command without the engine is without the engine: who installs the operator's tools compiles
//! neither a transformer nor the protocol.

use super::tree::root;
use std::collections::BTreeSet;
use std::process::Command;

/// Crates of the engine, ours and those that only it needs.
const ENGINE: [&str; 17] = [
    "desk",
    "fabric",
    "gateway",
    "gguf",
    "handoff",
    "kernels",
    "model",
    "pages",
    "rcgen",
    "tokenizer",
    "wire",
    "worker",
    "minijinja",
    "ratatui",
    "rayon",
    "tracing",
    "tracing-subscriber",
];

/// Crates that the command is built from, with these flags.
fn crates(more: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root());
    cargo.args([
        "tree",
        "--offline",
        "--locked",
        "-p",
        "cofferdam",
        "-e",
        "normal,build",
    ]);
    let output = cargo
        .args(["--prefix", "none"])
        .args(more)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let tree = String::from_utf8(output.stdout).unwrap();
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_tools_alone_are_built_without_the_engine() {
    let (all, tools) = (crates(&[]), crates(&["--no-default-features"]));
    for name in ENGINE {
        assert!(all.contains(name), "{name} is not of the engine any more");
        assert!(!tools.contains(name), "the tools need {name}");
    }
    for name in ["gate", "probe", "watch"] {
        assert!(tools.contains(name), "{name} is among the tools");
    }
}
