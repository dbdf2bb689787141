//! The `check` command, as somebody types it.

use std::process::{Command, Output};

fn check(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam-lab"));
    command.arg("check").args(args).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_world_in_which_every_clause_holds() {
    let output = check(&["--bound", "smoke", "--world", "calm", "--mode", "landing"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("calm/landing:") && said.contains("every clause holds"),
        "{said}"
    );
    for line in ["H-1 ", "H-3 ", "H-10", "H-11", "answered", "committed"] {
        assert!(
            said.lines().any(|said| said.starts_with(line)),
            "no {line}: {said}"
        );
    }
}

/// The counterexample is shown, written, and the same when it is run again.
#[test]
fn a_defect_is_found_and_its_run_can_be_run_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("found.json");
    let path = file.to_str().expect("a plain name");
    let found = check(&["--bound", "smoke", "--defect", "D-02", "--trace", path]);
    let first = said(&found);
    assert_eq!(found.status.code(), Some(1), "{first}");
    assert!(
        first.contains("VIOLATED: H-") && first.contains("A shortest way"),
        "{first}"
    );
    let again = check(&["--replay", path]);
    assert_eq!(again.status.code(), Some(1));
    let timeline = |text: &str| {
        let from = text
            .find("\nstep ")
            .or(text.starts_with("step ").then_some(0));
        let text = text[from.expect("a timeline")..].trim_start();
        text.split("\n\n").next().map(str::to_owned)
    };
    assert_eq!(timeline(&first), timeline(&said(&again)));
}

#[test]
fn what_could_not_be_finished_is_not_claimed() {
    for (limit, most, end) in [
        ("--states", "100", "as many states"),
        ("--minutes", "0", "as much time"),
        ("--memory", "0", "as much memory"),
    ] {
        let output = check(&["--bound", "smoke", "--world", "leave", limit, most]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(3), "{limit}: {said}");
        assert!(said.contains(&format!("NOT FINISHED: {end}")), "{said}");
    }
}

#[test]
fn what_is_not_understood_is_said() {
    for args in [
        &["--world", "nowhere"][..],
        &["--mode", "sideways"],
        &["--bound", "bottomless"],
        &["--defect", "D-xx"],
        &["--seed", "1"],
        &["--replay", "/nowhere/at/all.json"],
    ] {
        let output = check(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty());
    }
    let output = check(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(said(&output).contains("late-write") && said(&output).contains("D-02"));
}

#[test]
fn a_seed_decides_a_run() {
    let run = || {
        check(&[
            "--simulate",
            "--seed",
            "5",
            "--world",
            "deadline",
            "--mode",
            "landing",
        ])
    };
    let (one, two) = (run(), run());
    assert_eq!(one.status.code(), Some(0), "{}", said(&one));
    assert!(said(&one).contains("digest"));
    assert_eq!(said(&one), said(&two));
}
