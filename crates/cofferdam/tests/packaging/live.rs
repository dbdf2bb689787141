//! What is drawn and alarmed about exists: a small serving with gate and watch beside it is asked.

use crate::{RULES, files, good, read};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::process::{Running, wait_for};
use testkit::{Api, SmallSpec, small_gguf};

const COFFERDAM: &str = env!("CARGO_BIN_EXE_cofferdam");

/// Of others: kube-state-metrics, and what the rules of watch say about engines.
const FOREIGN: [&str; 3] = ["kube_job_status_failed", "vllm:", "sglang:"];

/// Empty until there is one.
fn page(api: &Api) -> String {
    let reply = api.get("/metrics");
    match reply.status {
        200 => String::from_utf8(reply.body).unwrap(),
        _ => String::new(),
    }
}

/// What is answered to a scraper of Prometheus' older text form, without the head.
fn plain_page(api: &Api) -> String {
    let mut socket = TcpStream::connect(&api.addr).unwrap();
    let ask = "GET /metrics HTTP/1.1\r\nhost: a\r\naccept: text/plain\r\nconnection: close\r\n\r\n";
    socket.write_all(ask.as_bytes()).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

fn gauges(words: &[&str]) -> (Running, Api) {
    let running = Running::start(COFFERDAM, words);
    let addr = running.line_from(0, "where its gauges are", |line| {
        let rest = line.strip_prefix("gauges: http://")?;
        Some(rest.trim_end_matches("/metrics").to_owned())
    });
    (running, Api { addr, key: None })
}

/// Names of series of these pages.
fn series(pages: &[String]) -> BTreeSet<String> {
    let lines = pages.iter().flat_map(|it| it.lines());
    let lines = lines.filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

/// Names of metrics in an expression of Prometheus.
fn named(expression: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = expression.split(|c| !is_name(c));
    let ours = |word: &&str| {
        word.starts_with("cofferdam_") || word.contains(":") || word.starts_with("kube_")
    };
    words.filter(ours).map(str::to_owned).collect()
}

fn expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in files("packaging/monitoring/dashboards", ".json") {
        let board: Value = serde_json::from_str(&read(&file)).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let place = format!("{file}: {}", panel["title"]);
                found.push((place, target["expr"].as_str().unwrap().to_owned()));
            }
        }
    }
    let rules = read(RULES) + watch::rules::PROMETHEUS;
    let mut lines = rules.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.strip_prefix("expr: ") else {
            continue;
        };
        let mut whole = first.to_owned();
        while let Some(more) =
            lines.next_if(|it| !it.starts_with("labels") && !it.starts_with("for"))
        {
            whole += " ";
            whole += more;
        }
        found.push(("rules".into(), whole));
    }
    found
}

/// As somebody's Prometheus would: promtool reads the page and finds nothing to say about it.
fn checked_by_promtool(text: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        eprintln!("skipped, for there is no promtool here: check metrics");
        return;
    };
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    good(
        "promtool check metrics",
        Some(promtool.wait_with_output().unwrap()),
    );
}

#[test]
fn every_metric_that_is_drawn_or_alarmed_about_is_on_a_live_page() {
    let model = small_gguf(Path::new(env!("CARGO_TARGET_TMPDIR")), SmallSpec::default());
    let place = tempfile::tempdir().unwrap();
    let log = place.path().join("access.jsonl");
    let (model, log) = (model.to_str().unwrap(), log.to_str().unwrap());
    let mut words = vec!["serve", "--port=0", "--threads=1", "--max-context=256"];
    words.extend(["--model", model, "--access-log", log]);
    let journal = place.path().join("incidents.db");
    let journal = journal.to_str().unwrap();
    words.extend(["--incidents", journal, "--canaries", "--canary-every=1h"]);
    let serving = Running::start(COFFERDAM, &words);
    let api = serving.api();
    let name = &api.get("/v1/models").good()["data"][0]["id"];
    let prompt = [1001, 1002, 1003];
    let asked = json!({"model": name, "prompt": prompt, "max_tokens": 4});
    api.post("/v1/completions", &asked).good();

    let url = format!("http://{}", api.addr);
    let here = "--listen=127.0.0.1:0";
    // Nobody is at the second address, so that something shuts the gate.
    let fleet = ["gate", "--server", &url, "http://127.0.0.1:1"];
    let (gate, verdicts) = gauges(&[&fleet[..], &["--interval=100ms", here]].concat());
    let (watch, signals) = gauges(&["watch", "--log", log, "--follow", here]);
    let found = ["signal", "probe_finding", "so that a door is closed"];
    let signal = ["incident", "--incidents", journal];
    let signal = Command::new(COFFERDAM).args(signal).args(found).output();
    good("a signal", Some(signal.unwrap()));
    wait_for("a verdict, a line of the log, a closed door", || {
        let read = page(&signals).contains("cofferdam_watch_requests_total{");
        let closed = page(&api).contains("cofferdam_restricted{");
        (read && closed && !page(&verdicts).is_empty()).then_some(())
    });
    let pages = [page(&api), page(&verdicts), page(&signals)];
    let known = series(&pages);
    let expressions = expressions();
    assert!(expressions.len() > 60, "{}", expressions.len());
    let mut missing = Vec::new();
    for (place, expression) in &expressions {
        let names = named(expression);
        assert!(!names.is_empty(), "{place}: {expression}");
        for name in names {
            let foreign = FOREIGN.iter().any(|it| name.starts_with(it));
            if !foreign && !known.contains(&name) {
                missing.push(format!("{place}: {name}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "on no page:\n  {}",
        missing.join("\n  ")
    );

    checked_by_promtool(&plain_page(&api));
    checked_by_promtool(&pages[1]);
    for running in [gate, watch, serving] {
        running.signal(Signal::TERM);
        running.end();
    }
}
