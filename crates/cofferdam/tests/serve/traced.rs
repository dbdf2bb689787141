//! OpenTelemetry spans of requests, taken by a real little collector.

use super::running::{Serving, start};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use testkit::collector::{Collector, attribute};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";
/// A word that stands in the prompt, and must stand nowhere else.
const SECRET: &str = "marmalade";

fn ask(serving: &Serving, traceparent: &str) -> Value {
    let path = format!("/v1/completions HTTP/1.1\r\ntraceparent: {traceparent}\r\nX-Other:");
    let body = serde_json::json!({"prompt": format!("{SECRET} {SECRET}"), "max_tokens": 4, "temperature": 0});
    let (status, body) = serving.post(&path, &body);
    assert_eq!(status, 200, "{body}");
    body["choices"][0]["text"].clone()
}

fn time(span: &Value, name: &str) -> u128 {
    span[name].as_str().unwrap().parse().unwrap()
}

/// Below the client's span the request, below that the others, one after another.
fn judge(spans: &BTreeMap<String, Value>, log: &Value, names: &[&str]) {
    let request = &spans["request"];
    assert_eq!(
        (request["parentSpanId"].as_str(), &request["kind"]),
        (Some(CLIENT), &Value::from(2))
    );
    assert_eq!(
        attribute(request, "cofferdam.request"),
        log["request"].as_str()
    );
    assert_eq!(
        attribute(request, "cofferdam.engine_request"),
        log["engine_request"].as_str()
    );
    assert_eq!(attribute(request, "http.response.status_code"), Some("200"));
    assert_eq!(attribute(request, "gen_ai.usage.output_tokens"), Some("4"));
    assert_eq!(attribute(request, "cofferdam.outcome"), Some("ok"));
    let mut before = time(request, "startTimeUnixNano");
    for name in names {
        let span = &spans[*name];
        assert_eq!(span["parentSpanId"], request["spanId"], "{name}");
        assert_eq!(span["status"], serde_json::json!({}), "{name}");
        let (from, to) = (
            time(span, "startTimeUnixNano"),
            time(span, "endTimeUnixNano"),
        );
        assert!(
            before <= from && from <= to && to <= time(request, "endTimeUnixNano"),
            "{name}: {spans:?}"
        );
        before = from;
    }
    let end = |name: &str| time(&spans[name], "endTimeUnixNano");
    assert_eq!(end("prefill"), time(&spans["decode"], "startTimeUnixNano"));
    assert_eq!(spans.len(), names.len() + 1, "{:?}", spans.keys());
}

fn traced(words: &[&str], names: &[&str]) {
    let base = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let access_log = base.path().join("access.jsonl");
    let flags = [
        format!("--otlp-endpoint={}", collector.url),
        format!("--access-log={}", access_log.display()),
    ];
    let words: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .chain(words.iter().copied())
        .collect();
    let mut serving = start(base.path(), &words);
    ask(&serving, &format!("00-{TRACE}-{CLIENT}-01"));
    let spans = collector.trace(TRACE, &[&["request"], names].concat());
    // One that the client's tracing does not want, and one that is nobody's: a trace of its own.
    ask(
        &serving,
        &format!("00-{}-{CLIENT}-00", TRACE.replace('0', "f")),
    );
    ask(&serving, "nonsense");
    serving.signal(Signal::TERM);
    assert_eq!(serving.ends(), Some(0), "{}", serving.told());
    let log = fs::read_to_string(&access_log).unwrap();
    let log: Vec<Value> = log
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let log: Vec<_> = log
        .iter()
        .filter(|it| it["engine_request"].is_string())
        .collect();
    judge(&spans, log[0], names);
    let text = collector.text(); // what waited was handed on at the end
    assert!(
        !text.contains(SECRET) && !text.contains(&TRACE.replace('0', "f")),
        "{text}"
    );
    assert!(text.contains(log[2]["request"].as_str().unwrap()), "{text}");
    assert_eq!(text.matches("\"name\":\"request\"").count(), 2, "{text}");
    assert!(names.contains(&"handoff") != words.contains(&"--in-process"));
}

#[test]
fn spans_of_a_request_that_was_handed_over() {
    traced(&[], &["queue", "handoff", "prefill", "decode"]);
}

#[test]
fn spans_of_a_request_in_one_process() {
    traced(&["--in-process"], &["queue", "prefill", "decode"]);
}

/// One that hangs and one that is not there change nothing for requests; what is lost is counted.
#[test]
fn a_collector_that_is_away_or_hangs_is_nobodys_problem() {
    let hangs = Collector::that_hangs();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let base = tempfile::tempdir().unwrap();
    let plain = start(base.path(), &["--in-process"]);
    let right = ask(&plain, "");
    drop(plain);
    for url in [&hangs.url, &away] {
        let flag = format!("--otlp-endpoint={url}");
        let mut serving = start(base.path(), &["--in-process", &flag]);
        assert_eq!(ask(&serving, ""), right);
        if *url == hangs.url {
            hangs.connected(1);
            assert_eq!(ask(&serving, ""), right, "while it hangs");
        }
        serving.says("spans are dropped");
        let (_, page) = serving.get("/metrics");
        let dropped = page
            .as_str()
            .unwrap()
            .lines()
            .find(|it| it.starts_with("cofferdam_spans_dropped_total"));
        let dropped: f64 = dropped
            .unwrap()
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(dropped >= 1.0, "{page}");
        assert_eq!(ask(&serving, ""), right);
        serving.signal(Signal::TERM);
        assert_eq!(serving.ends(), Some(0), "{}", serving.told());
    }
    let mut wrong = super::running::command(base.path(), &["--otlp-endpoint=https://c:4318"]);
    let output = wrong.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let why = "https://c:4318: expected http://HOST:PORT";
    assert!(said.contains(&format!("--otlp-endpoint {why}")), "{said}");
    // A fleet has it in a variable for all of its programs: who set it looks for that name.
    let variable = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let mut wrong = super::running::command(base.path(), &[]);
    let output = wrong.env(variable, "https://c:4318").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{variable} {why}")), "{said}");
    assert!(!said.contains("--otlp-endpoint"), "{said}");
}
