//! `/metrics` as the official parsers read it.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use gateway::engine::{Count, Finish};
use serde_json::json;

use crate::support::{Server, request};

/// The version that was tested; kept so that a new one is a decision.
const PARSERS: &str = "prometheus-client==0.23.1";

#[tokio::test]
async fn both_forms_of_metrics_are_read_by_the_official_parsers() {
    let server = Server::start().await;
    // Every name that real workers have, and one that the gateway's engine has.
    let count = |(name, help, value)| Count { name, help, value };
    server.engine.change(|facts| {
        for worker in &mut facts.workers {
            let named = wire::Counters::default().named();
            worker.counters = named.into_iter().map(count).collect();
        }
        facts.counters = vec![count(("connections", "Connections to workers", 3))];
    });
    let reply = server.begin("/v1/completions", json!({"prompt": "abc"}));
    server.engine.next().await.say("xy", Finish::Stop).await;
    assert_eq!(reply.await.unwrap().status, 200);
    let form = async |accept: &str| {
        let bytes = request("GET", "/metrics", &[("accept", accept)], "");
        let reply = server.connect().await.send(&bytes).await;
        (reply.headers["content-type"].clone(), reply.text())
    };
    let (media, open) = form("application/openmetrics-text;version=1.0.0,text/plain;q=0.1").await;
    assert_eq!(
        media,
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let (media, plain) = form("text/plain;version=0.0.4").await;
    assert_eq!(media, "text/plain; version=0.0.4; charset=utf-8");
    for page in [&open, &plain] {
        let families = page.lines().filter(|line| line.starts_with("# TYPE "));
        let names: Vec<&str> = families
            .map(|line| line.split(' ').nth(2).unwrap())
            .collect();
        let unique: BTreeSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "a family stands once");
    }
    for line in [
        "cofferdam_connections 1",
        "cofferdam_engine_connections_total{role=\"gateway\"} 3",
        "cofferdam_prompt_tokens_total 3",
        "cofferdam_engine_prompt_tokens_total{role=\"decode\",worker=\"decode-0\"} 0",
    ] {
        assert!(open.lines().any(|l| l == line), "{line}\n{open}");
        assert!(plain.lines().any(|l| l == line), "{line}\n{plain}");
    }
    assert!(
        plain.contains("# TYPE cofferdam_requests_total counter\n"),
        "{plain}"
    );
    assert!(
        plain.contains("# HELP cofferdam_requests_total "),
        "{plain}"
    );
    let samples = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    for (parser, page) in [("openmetrics.parser", &open), ("parser", &plain)] {
        assert_eq!(
            parsed(parser, page),
            samples(page),
            "{parser} reads every sample"
        );
    }
}

/// Names are whatever an operator has called a host: a parser reads them as they were.
#[tokio::test]
async fn names_with_any_characters_are_read_as_they_are() {
    let server = Server::start().await;
    let names = [
        "a\"b",
        "a\\b",
        "a\\",
        "a\\nb",
        "a\nb",
        "a\r\nb\rc",
        "http://[::1]:80/{x=\"y\"} 1 # EOF",
        "\n# EOF\n",
        "# TYPE cofferdam_ready counter",
        "tab\tand  spaces ",
        "\u{e9}\u{2028}\u{85}\u{1f980}\u{0}",
        "",
    ];
    server.engine.change(|facts| {
        let like = facts.workers[0].clone();
        facts.workers = vec![like; names.len()];
        for (worker, name) in facts.workers.iter_mut().zip(names) {
            worker.name = name.to_owned();
        }
    });
    for (parser, accept) in [
        ("openmetrics.parser", "application/openmetrics-text"),
        ("parser", "text/plain"),
    ] {
        let bytes = request("GET", "/metrics", &[("accept", accept)], "");
        let page = server.connect().await.send(&bytes).await.text();
        let found = "import json\nprint(json.dumps([sample.labels['worker'] for family in families \
                     for sample in family.samples if sample.name == 'cofferdam_pool_tokens']))";
        let read: Vec<String> = serde_json::from_str(&said(parser, &page, found)).unwrap();
        assert_eq!(read, names, "{parser}");
    }
}

/// An engine may call a counter as one of the gateway's own families, whichever: it is then another.
#[tokio::test]
async fn no_counter_of_an_engine_takes_the_name_of_a_family() {
    let server = Server::start().await;
    let families = async || {
        let page = server.get("/metrics").await.text();
        let types = page
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE cofferdam_"));
        let names = types.map(|line| line.split(' ').next().unwrap().to_owned());
        (names.collect::<Vec<_>>(), page)
    };
    server.engine.change(|facts| {
        facts.counters.clear();
        facts
            .workers
            .iter_mut()
            .for_each(|worker| worker.counters.clear());
    });
    families().await; // a request, which is counted
    let (own, _) = families().await;
    assert!(
        own.contains(&"requests".to_owned()) && own.len() > 15,
        "{own:?}"
    );
    let count = |name: &String| Count {
        name: name.clone().leak(),
        help: "of an engine",
        value: 1,
    };
    server.engine.change(|facts| {
        facts.counters = own.iter().map(count).collect();
        facts.workers[0].counters = own.iter().map(count).collect();
    });
    let (all, page) = families().await;
    let unique: BTreeSet<&String> = all.iter().collect();
    assert_eq!(
        (all.len(), unique.len()),
        (2 * own.len(), all.len()),
        "{page}"
    );
    parsed("openmetrics.parser", &page);
}

/// How many samples this parser finds.
fn parsed(parser: &str, page: &str) -> usize {
    let count = "print(sum(len(family.samples) for family in families))";
    said(parser, page, count).trim().parse().unwrap()
}

/// What a program says of the families that this parser finds.
fn said(parser: &str, page: &str, program: &str) -> String {
    let program = format!(
        "import sys\nfrom prometheus_client.{parser} import text_string_to_metric_families as read\n\
         families = list(read(sys.stdin.buffer.read().decode()))\n{program}"
    );
    let python = testkit::python(Path::new(env!("CARGO_TARGET_TMPDIR")), PARSERS);
    let mut python = Command::new(python)
        .args(["-c", &program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    python
        .stdin
        .take()
        .unwrap()
        .write_all(page.as_bytes())
        .unwrap();
    let output = python.wait_with_output().unwrap();
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{parser}: {erred}\n{page}");
    String::from_utf8(output.stdout).unwrap()
}
