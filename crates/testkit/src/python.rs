//! Python environments for tests that ask what other people's programs make of ours.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of an environment with this one package of PyPI in it (`name==version`: a new
/// version is a decision), made once below `base` and kept there.
pub fn python(base: &Path, package: &str) -> PathBuf {
    let environment = base.join(package.replace("==", "-"));
    let interpreter = environment.join("bin/python");
    let complete = environment.join("complete");
    // Two tests that want the same one at once: the second waits, and finds it made.
    let lock = File::create(base.join(format!("{package}.lock"))).unwrap();
    lock.lock().unwrap();
    if complete.exists() {
        return interpreter;
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&environment));
    run(Command::new(&interpreter)
        .args(["-m", "pip", "install", "--quiet"])
        .args(["--disable-pip-version-check", package]));
    std::fs::write(&complete, "").unwrap(); // an environment without it is made anew
    interpreter
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{erred}");
}
