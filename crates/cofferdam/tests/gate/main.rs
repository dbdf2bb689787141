//! `cofferdam gate` as an operator and a CI job meet it: real processes, servers on loopback.

mod docs;
mod fake;
mod files;
mod hostile;
mod interval;
mod ours;

use fake::{Fake, recording, with_pool};
use serde_json::Value;
use std::process::{Command, Output};

/// The program under test.
pub const COFFERDAM: &str = env!("CARGO_BIN_EXE_cofferdam");

/// Exit code and both outputs of `cofferdam gate`.
pub struct Said {
    /// 0, 1, 2 or 3.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// The report of `--format json`.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|it| panic!("{it}: {}{}", self.out, self.err))
    }

    /// Checks of which a finding shuts the gate.
    pub fn failing(&self) -> Vec<String> {
        let json = self.json();
        let findings = json["findings"].as_array().unwrap();
        let failing = findings.iter().filter(|it| it["fails"] == true);
        let mut ids: Vec<String> = failing
            .map(|it| it["check"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Answers of a check, in the order of the report.
    pub fn answers(&self, check: &str) -> Vec<String> {
        let json = self.json();
        let findings = json["findings"].as_array().unwrap();
        let of = findings.iter().filter(|it| it["check"] == check);
        of.map(|it| it["answer"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Runs it with these words.
pub fn gate(words: &[&str]) -> Said {
    gate_with(words, |_| {})
}

/// [`gate`] with a command that is changed before.
pub fn gate_with(words: &[&str], change: impl FnOnce(&mut Command)) -> Said {
    let mut command = Command::new(COFFERDAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COFFERDAM_")) {
        command.env_remove(name);
    }
    command.arg("gate").args(words);
    change(&mut command);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Said {
        code: status.code().expect("no signal"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Law: 200 is not a test. Both servers answer every question with 200.
#[test]
fn unequal_pools_of_an_old_version_are_violated_and_the_worst_is_first() {
    let prefill = Fake::recorded(&recording("sglang-0.5.19-prefill"));
    let decode = Fake::recorded(&with_pool(recording("sglang-0.5.19-decode"), 8000));
    let words = ["--prefill", &prefill.url, "--decode", &decode.url];
    let said = gate(&words);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].starts_with("gate: VIOLATED "), "{}", said.out);
    let first = lines
        .iter()
        .position(|it| it.starts_with("VIOLATED "))
        .unwrap();
    assert_eq!(
        lines[first..first + 3],
        [
            "VIOLATED  pool-holds-context",
            &format!("  {}", prefill.url),
            "  pool 2,000 < context 4,096: 49 %"
        ]
    );
    assert!(said.out.contains("the incident"), "{}", said.out);
    let said = gate(&[&words[..], &["--format", "json"]].concat());
    assert_eq!(
        said.failing(),
        [
            "advertised-fits",
            "door-check",
            "length-compared",
            "minimum-version",
            "no-stale-pages",
            "pool-holds-context",
            "prompt-limits-equal",
        ]
    );
    let never = prefill
        .asked()
        .into_iter()
        .filter(|(path, _)| path.contains("flush"));
    assert_eq!(never.count(), 0, "/flush_cache acts on GET");
}

#[test]
fn equal_pools_of_the_newest_version_lack_only_the_length_comparison() {
    let prefill = Fake::recorded(&with_pool(recording("sglang-0.5.23-prefill"), 8000));
    let decode = Fake::recorded(&with_pool(recording("sglang-0.5.23-decode"), 8000));
    let words = ["--prefill", &prefill.url, "--decode", &decode.url];
    let said = gate(&[&words[..], &["--format", "json"]].concat());
    assert_eq!(
        (said.code, said.failing()),
        (1, vec!["length-compared".to_owned()])
    );
    let allowed = [&words[..], &["--allow", "length-compared=limits are equal"]].concat();
    let said = gate(&allowed);
    assert_eq!(said.code, 0, "{}", said.out);
    assert!(
        said.out.contains("reason: limits are equal"),
        "{}",
        said.out
    );
    let strict = gate(&[&allowed[..], &["--strict", "--format", "json"]].concat());
    assert_eq!(strict.code, 1);
    assert!(
        strict.failing().contains(&"kv-checksum".to_owned()),
        "{:?}",
        strict.failing()
    );
    let more = gate(&[&words[..], &["--context", "8000", "--format", "json"]].concat());
    assert_eq!(more.failing(), ["length-compared", "pool-holds-context"]);
    let wide = gate(&[&words[..], &["--headroom", "1.96", "--format", "json"]].concat());
    assert_eq!(wide.failing(), ["length-compared", "pool-holds-context"]);
}

#[test]
fn usage_is_2_and_says_what_is_wrong() {
    let url = "http://127.0.0.1:1";
    let cases: [(&[&str], &str); 12] = [
        (&[], "nothing to look at"),
        (
            &["--server", "ftp://a"],
            "it must begin with http:// or https://",
        ),
        (
            &["--server", "http://user:secret@a"],
            "it holds credentials",
        ),
        (&["--server", url, "--server", url], "is given twice"),
        (
            &["--server", url, "--allow", "no-such=x"],
            "no check is called \"no-such\"",
        ),
        (
            &["--server", url, "--allow", "length-compared"],
            "without a reason",
        ),
        (
            &["--server", url, "--headroom", "0.9"],
            "0.9 is not from 1 to 100",
        ),
        (&["--server", url, "--timeout", "5"], "is no time"),
        (&["--explain", "no-such"], "--list names all"),
        (
            &["--server", url, "--key-env", "NOT_SET_ANYWHERE"],
            "the environment has no NOT_SET",
        ),
        (
            &["--log", "-", "--interval", "1s"],
            "which standard input (-) cannot",
        ),
        (
            &["--server", url, "--since", "no/such.json"],
            "no/such.json",
        ),
    ];
    for (words, says) in cases {
        let said = gate(words);
        assert_eq!(said.code, 2, "{words:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(says), "{words:?}: {}", said.err);
        assert!(!said.err.contains("secret@"), "{}", said.err);
    }
}

#[test]
fn checks_are_listed_and_explained() {
    let said = gate(&["--list"]);
    assert_eq!(said.code, 0);
    assert_eq!(said.out.lines().count(), gate::check::CHECKS.len());
    for check in gate::check::CHECKS {
        assert!(said.out.contains(&format!("{} ", check.id)), "{}", check.id);
        let explained = gate(&["--explain", check.id]);
        assert_eq!(explained.code, 0);
        assert!(explained.out.contains(check.link), "{}", explained.out);
    }
}

#[test]
fn a_start_up_log_is_read_from_a_file_or_standard_input() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate/tests/fixtures");
    let log = fixtures.join("sglang-0.5.23-single/server.log");
    let log = log.to_str().unwrap();
    let said = gate(&["--log", log, "--format", "json"]);
    assert_eq!(said.code, 1);
    assert_eq!(said.answers("pool-holds-context"), ["violated"]);
    let file = std::fs::File::open(log).unwrap();
    let said = gate_with(&["--log", "server=-"], |command| {
        command.stdin(file);
    });
    assert_eq!(said.code, 1);
    assert!(
        said.out.contains("pool 2,000 < context 4,096: 49 %"),
        "{}",
        said.out
    );
}
