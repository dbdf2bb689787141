//! Logs of other programs, as they were recorded from them (crates/watch/tests/formats).

use super::{Place, run, text};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn fixture(name: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = crates.join("watch/tests/formats/fixtures").join(name);
    path.display().to_string()
}

/// The request logs of both workers of a pair, nothing told: the one answer that was wrong.
#[test]
fn the_incident_is_found_in_sglangs_own_logs_without_a_mapping() {
    let logs = [
        fixture("sglang-0.5.19-prefill.json.log"),
        fixture("sglang-0.5.19-decode.log"),
    ];
    let output = run(&["--log", &logs[0], &logs[1]]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let table = text(&output);
    for words in [
        "FOUND: 1 of 16 requests cannot be right\n",
        "51f362f81354471cb07b72ecd22e53da\n",
        "length of the prompt: prefill 1, decode 2536, answer 2536",
        "read with the preset sglang (SGLang: --log-requests",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let output = run(&["--log", &logs[1], "--preset", "sglang", "--format", "json"]);
    assert_eq!(
        output.status.code(),
        Some(3),
        "decode alone: {}",
        text(&output)
    );
    let last: Value = serde_json::from_str(text(&output).lines().last().unwrap()).unwrap();
    let summary = &last["summary"];
    assert_eq!(summary["preset"], "sglang");
    assert_eq!(summary["requests"], 8);
    assert_eq!(summary["bad_lines"], 0);
}

#[test]
fn a_log_that_lacks_lengths_says_what_to_read_instead() {
    let output = run(&["--log", &fixture("vllm-0.32-requests.log")]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let table = text(&output);
    assert!(table.starts_with("COULD NOT TELL: 8 requests"), "{table}");
    assert!(
        table.contains("have spans exported (--otlp-traces-endpoint, preset otlp)"),
        "{table}"
    );
    assert!(table.contains("lines are about something else"), "{table}");
}

#[test]
fn a_format_that_is_not_known_or_not_the_logs_is_a_mistake() {
    let place = Place::new();
    let fails = |words: &[&str], says: &str| {
        let output = run(words);
        let error = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words:?}: {error}{}",
            text(&output)
        );
        assert!(error.contains(says), "{says}: {error}");
    };
    let decode = fixture("sglang-0.5.19-decode.log");
    fails(
        &["--log", &decode, "--preset", "apache"],
        "there are envoy, litellm, nginx, otlp, sglang",
    );
    let other = "no line of 17 is about a request as the preset sglang-times has them";
    fails(&["--log", &decode, "--preset", "sglang-times"], other);
    // One server can write both; each request would count twice.
    let times = fs::read_to_string(fixture("sglang-0.5.19-decode-times.log")).unwrap();
    let both = place.write("both.log", &(fs::read_to_string(&decode).unwrap() + &times));
    fails(
        &["--log", &both],
        "several formats, sglang and sglang-times: say which with --preset",
    );
    let mapping = place.write(
        "m.toml",
        "[fields]\ntime = 't'\nseconds = []\nprompt_tokens = 'p'\n",
    );
    fails(
        &["--log", &decode, "--preset", "sglang", "--config", &mapping],
        "both say where the figures stand",
    );
}

/// What looks like a request's line and cannot be read is counted, and the silence is none.
#[test]
fn lines_that_a_preset_does_not_understand_are_counted() {
    let place = Place::new();
    let good = fs::read_to_string(fixture("sglang-0.5.19-decode.log")).unwrap();
    let good = good.replace("'prompt_tokens': 336", "'prompt_tokens': 'many'");
    let log = place.write("d.log", &format!("{good}[x] Finish: of another version\n"));
    let output = run(&["--log", &log]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let table = text(&output);
    assert!(
        table.contains("3 of 18 lines are not what the mapping says"),
        "{table}"
    );
    assert!(table.contains("prompt_tokens: no number"), "{table}");
}
