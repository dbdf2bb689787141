//! Packages of PyPI and npm for tests that ask what other people's programs make of ours.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs packages in a tenth of the time that pip takes to choose their versions.
const UV: &str = "uv==0.13.9";

/// The interpreter of an environment with these packages of PyPI in it (`name==version`, parted by
/// spaces: a new version is a decision), made once below `base` and kept there.
pub fn python(base: &Path, packages: &str) -> PathBuf {
    let environment = made(base, packages, |environment| {
        let interpreter = environment.join("bin/python");
        run(Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment));
        run(Command::new(&interpreter)
            .args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check", UV]));
        run(Command::new(&interpreter)
            .args(["-m", "uv", "pip", "install", "--quiet", "--python"])
            .arg(&interpreter)
            .args(packages.split_whitespace()));
    });
    environment.join("bin/python")
}

/// A folder with these packages of npm in it (`name@version`), made likewise.
pub fn node(base: &Path, packages: &str) -> PathBuf {
    made(base, packages, |place| {
        run(Command::new("npm")
            .args(["install", "--silent", "--prefix"])
            .arg(place)
            .args(packages.split_whitespace()));
    })
}

/// The folder for these packages; `fill`ed if nobody has done so.
fn made(base: &Path, packages: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let name: String = packages.replace(|c| !plain(c), "-");
    let place = base.join(&name);
    let complete = place.join("complete");
    // Two tests that want the same one at once: the second waits, and finds it made.
    let lock = File::create(base.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    if !complete.exists() {
        let _ = std::fs::remove_dir_all(&place); // one that was not finished
        std::fs::create_dir_all(&place).unwrap();
        fill(&place);
        std::fs::write(&complete, "").unwrap();
    }
    place
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{erred}");
}
