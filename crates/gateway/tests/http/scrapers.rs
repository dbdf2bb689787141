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

/// How many samples this parser finds.
fn parsed(parser: &str, page: &str) -> usize {
    let program = format!(
        "import sys\nfrom prometheus_client.{parser} import text_string_to_metric_families as read\n\
         print(sum(len(family.samples) for family in read(sys.stdin.read())))"
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
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}
