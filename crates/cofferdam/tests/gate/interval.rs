//! `--interval`: the last verdicts as gauges, and a pool that shrinks under a live server.

use crate::COFFERDAM;
use crate::fake::{Fake, recording, with_pool};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;

use testkit::process::{Running, wait_for};

fn scrape(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

/// The gate on a server whose pool is 8000 at first, and where its gauges are.
fn watching(node: &Fake, words: &[&str]) -> (Running, String) {
    let mut all = vec!["gate", "--server", &node.url, "--interval", "100ms"];
    all.extend(["--listen", "127.0.0.1:0"]);
    all.extend(words);
    let running = Running::start(COFFERDAM, &all);
    let address = running.line_from(0, "where its gauges are", |line| {
        let rest = line.strip_prefix("gauges: http://")?;
        Some(rest.trim_end_matches("/metrics").to_owned())
    });
    (running, address)
}

#[test]
fn a_pool_that_shrinks_is_a_violation_within_an_interval() {
    let pool = |pool| with_pool(recording("sglang-0.5.23-single"), pool);
    let node = Fake::recorded(&pool(8000));
    let (running, address) = watching(&node, &[]);
    wait_for("the first verdict", || {
        scrape(&address, "/metrics")
            .contains("cofferdam_gate_verdict 1\n")
            .then_some(())
    });
    // Still large enough for the context, but another one: a change of capacity.
    node.becomes(&pool(6000));
    running.line_from(0, "that the pool moved", |line| {
        line.contains("unchanged").then_some(())?;
        line.contains("pool of dp 0: 8,000 -> 6,000 (-25 %)")
            .then_some(())
    });
    node.becomes(&pool(2000));
    running.line_from(0, "that the pool is too small", |line| {
        line.contains("pool-holds-context").then_some(())?;
        line.contains("holds -> violated: pool 2,000 < context 4,096: 49 %")
            .then_some(())
    });
    let text = scrape(&address, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("cofferdam_gate_verdict 0\n"), "{text}");
    assert!(text.contains(",rank=\"dp 0\"} 2000\n"), "{text}");
    assert!(scrape(&address, "/other").starts_with("HTTP/1.1 404 "));
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(1), "the last verdict");
}

#[test]
fn it_ends_cleanly_and_a_good_verdict_is_0() {
    let node = Fake::recorded(&with_pool(recording("sglang-0.5.23-single"), 8000));
    let (running, address) = watching(&node, &[]);
    wait_for("three readings", || {
        let text = scrape(&address, "/metrics");
        let reads = text
            .lines()
            .find_map(|it| it.strip_prefix("cofferdam_gate_reads_total "));
        (reads?.parse::<u64>().unwrap() >= 3).then_some(())
    });
    let tables = running
        .lines()
        .iter()
        .filter(|it| it.starts_with("gate: "))
        .count();
    assert_eq!(tables, 1, "it is printed when something changes");
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(0), "{:?}", ended.lines);
}
