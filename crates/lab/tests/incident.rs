//! The incident on real weights, as the command shows it: every cell of its table.
//!
//! What leaks depends on arithmetic, so how many answers leak is not fixed here, only that the one
//! that is shown does; and what a safeguard does not stop must come out byte for byte as without it.

use serde_json::Value;
use std::process::Command;

/// Runs the command at the small size and gives what it wrote as JSON.
fn reproduced() -> Value {
    let dir = tempfile::tempdir().unwrap();
    let (json, report) = (dir.path().join("o.json"), dir.path().join("o.html"));
    let ran = Command::new(env!("CARGO_BIN_EXE_cofferdam-lab"))
        .args(["reproduce", "incident", "--prompts=3", "--model"])
        .arg(testkit::weights::path())
        .arg("--json")
        .arg(&json)
        .arg("--report")
        .arg(&report)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}\n{said}\n{errors}", ran.status);
    assert!(said.contains("EACH SAFEGUARD ALONE"), "{said}");
    let page = std::fs::read_to_string(report).unwrap();
    for part in [
        "<svg",
        "<mark>",
        "Each safeguard, alone",
        "prefers-color-scheme",
    ] {
        assert!(page.contains(part), "the report has no {part}");
    }
    assert!(!page.contains("<script"), "a report runs nothing");
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
}

/// The table: safeguard, then what B gets, and a word of what it is told.
const TABLE: [(&str, Gets, &str); 11] = [
    (
        "start",
        Gets::NoStart,
        "the largest --max-context that fits is 332",
    ),
    (
        "edge",
        Gets::Error(400, &["context_length_exceeded"]),
        "the limit is 332 tokens",
    ),
    (
        "admission",
        Gets::Error(400, &["context_length_exceeded"]),
        "prefill takes at most 332",
    ),
    (
        "expect",
        Gets::Error(502, &["integrity_wrong_tokens"]),
        "another prompt",
    ),
    (
        "ticket",
        Gets::Error(502, &["integrity_wrong_tokens", "prefill_failed"]),
        "",
    ),
    ("tags", Gets::Leak, ""),
    ("order", Gets::Leak, ""),
    (
        "fill",
        Gets::Error(502, &["integrity_wrong_fill"]),
        "more or fewer tokens",
    ),
    ("checksum", Gets::Leak, ""),
    (
        "coverage",
        Gets::Error(502, &["integrity_missing_page"]),
        "never came",
    ),
    (
        "scrub",
        Gets::Error(502, &["decode_failed"]),
        "forward pass",
    ),
];

enum Gets {
    NoStart,
    Error(u16, &'static [&'static str]),
    Leak,
}

#[test]
fn every_cell_of_the_table() {
    let seen = reproduced();
    let none = &seen["none"];
    the_incident(&seen);

    let rows = seen["alone"].as_array().unwrap();
    assert_eq!(rows.len(), TABLE.len());
    for (row, (id, gets, word)) in rows.iter().zip(&TABLE) {
        assert_eq!(row["safeguard"], *id);
        match gets {
            Gets::NoStart => {
                let why = row["refused_to_start"].as_str().unwrap();
                assert!(why.contains(word), "{id}: {why}");
                assert_eq!(row["asked"], 0);
                assert_eq!(row["stops_it"], true);
                continue;
            }
            Gets::Error(status, codes) => is_error(id, row, (*status, codes, word)),
            Gets::Leak => {
                assert_eq!(row["stops_it"], false, "{id}");
                // It changes nothing at all, and that is what is to be said of it.
                assert_eq!(row["over"][0], none["over"][0], "{id}");
            }
        }
        nothing_is_held(id, row);
        for good in ["control", "fill"] {
            assert_eq!(row[good]["status"], 200, "{id}");
            assert_eq!(row[good], none[good], "{id}: what is good stays good");
        }
    }
    let edge = (400, &["context_length_exceeded"][..], "332 tokens");
    is_error("all", &seen["all_but_start"], edge);
    assert_eq!(seen["all_but_start"]["asked"], 3);
}

/// What the edge refuses no worker hears of; what prefill rejects holds nothing anywhere (H-5).
fn nothing_is_held(id: &str, row: &Value) {
    let steps = row["steps"].as_array().unwrap();
    let any = |who: &str| steps.iter().any(|step| step["who"] == who);
    let reserves = |step: &Value| step["what"].as_str().unwrap().contains("Reserves");
    match id {
        "edge" => assert!(!any("prefill") && !any("decode"), "{steps:#?}"),
        "admission" | "expect" => assert!(!steps.iter().any(reserves), "{steps:#?}"),
        _ => assert!(steps.iter().any(reserves), "{id}: {steps:#?}"),
    }
}

/// Nothing of A's, and this error, for every one that asked.
fn is_error(id: &str, row: &Value, (status, codes, word): (u16, &[&str], &str)) {
    assert_eq!(row["stops_it"], true, "{id}");
    assert_eq!(
        (&row["leaked_sentence"], &row["leaked_secret"]),
        (&0.into(), &0.into())
    );
    for answer in row["over"].as_array().unwrap() {
        assert_eq!(answer["status"], status, "{id}: {answer}");
        let code = answer["code"].as_str().unwrap();
        assert!(codes.contains(&code), "{id}: {answer}");
        assert!(
            answer["message"].as_str().unwrap().contains(word),
            "{id}: {answer}"
        );
        assert_eq!(answer["text"], Value::Null, "{id}");
    }
}

/// Without safeguards: 200, the right count, and A's sentence, from A's positions.
fn the_incident(seen: &Value) {
    let (none, shown) = (&seen["none"], &seen["none"]["over"][0]);
    assert_eq!(shown["status"], 200);
    assert_eq!(shown["prompt_tokens"], 333);
    let (text, sentence) = (
        shown["text"].as_str().unwrap(),
        seen["sentence"].as_str().unwrap(),
    );
    assert!(text.contains(sentence), "{text}");
    assert_eq!(shown["leak"], "sentence");
    let asks = seen["asks"]["over"].as_array().unwrap();
    assert_eq!(none["over"].as_array().unwrap().len(), asks.len());
    for (ask, answer) in asks.iter().zip(none["over"].as_array().unwrap()) {
        // All of them are answered as if all were well, whatever the text is.
        assert_eq!(
            (&answer["status"], &answer["prompt_tokens"]),
            (&200.into(), &ask["tokens"])
        );
        let sent = ask["body"].to_string();
        for word in ["Northwind", "vault", "tiger", "lotus"] {
            assert!(
                !sent.contains(word),
                "B never sends what it must not get: {sent}"
            );
        }
    }
    let attended = &none["pool"]["attended"];
    assert_eq!(attended["written_for_b"], 1);
    assert_eq!(attended["written_for_a"], 332);
    assert_eq!(attended["never_written"], 0);
    assert_eq!(none["pool"]["reserved_pages"], 84);
    let steps = none["steps"].as_array().unwrap();
    let says = |word: &str| {
        steps
            .iter()
            .any(|it| it["what"].as_str().unwrap().contains(word))
    };
    for word in [
        "Here it goes wrong",
        "84 pages; it holds 1",
        "Commits: 84 pages",
    ] {
        assert!(says(word), "no step says {word:?}: {steps:#?}");
    }
}
