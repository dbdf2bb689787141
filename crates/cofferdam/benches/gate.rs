//! `cofferdam gate` on 200 simulated nodes on loopback: wall time and memory of the whole command.
//!
//! `cargo bench -p cofferdam --bench gate` (or `--profile dev`, which needs no release build). The
//! nodes are threads of this process and answer from recordings of SGLang 0.5.23; they share the
//! processors with the command, so what is measured is an upper bound.

#[path = "../tests/gate/fake.rs"]
mod fake;

use fake::{Answer, Fake, recording, with_pool};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RUNS: usize = 5;
const PAIRS: usize = 100;

fn main() {
    let prefill = with_pool(recording("sglang-0.5.23-prefill"), 8000);
    let decode = with_pool(recording("sglang-0.5.23-decode"), 8000);
    let nodes: Vec<(Fake, Fake)> = (0..PAIRS)
        .map(|_| (Fake::recorded(&prefill), Fake::recorded(&decode)))
        .collect();
    measure("200 nodes, all good", &nodes, &[]);
    let silent: Vec<Fake> = (0..5).map(|_| Fake::always(Answer::Silence)).collect();
    measure("200 nodes and 5 that hang, --timeout 1s", &nodes, &silent);
}

fn measure(what: &str, nodes: &[(Fake, Fake)], silent: &[Fake]) {
    let mut words = vec!["gate", "--timeout", "1s", "--format", "json", "--prefill"];
    words.extend(nodes.iter().map(|it| it.0.url.as_str()));
    words.extend(silent.iter().map(|it| it.url.as_str()));
    words.push("--decode");
    words.extend(nodes.iter().map(|it| it.1.url.as_str()));
    let mut runs: Vec<Run> = (0..RUNS).map(|_| run(&words)).collect();
    runs.sort();
    let peak = runs.iter().map(|it| it.1).max().unwrap_or(0);
    let busy = runs.iter().map(|it| it.2).min().unwrap_or(0);
    let asked: usize = nodes
        .iter()
        .map(|it| it.0.asked().len() + it.1.asked().len())
        .sum();
    println!(
        "{what}: fastest {:?}, median {:?}, slowest {:?}; {} ms of CPU; peak {peak} KiB; {} \
         requests so far",
        runs[0].0,
        runs[RUNS / 2].0,
        runs[RUNS - 1].0,
        busy * 10,
        asked
    );
}

/// Wall time, the most memory that the process ever had in KiB, and ticks of CPU (10 ms each).
type Run = (Duration, u64, u64);

fn run(words: &[&str]) -> Run {
    let begin = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .args(words)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let stat = format!("/proc/{}/stat", child.id());
    let (mut peak, mut ticks) = (0, 0);
    let code = loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|it| it.strip_prefix("VmHWM:"));
        let size = line.and_then(|it| it.trim().split(' ').next()?.parse().ok());
        peak = peak.max(size.unwrap_or(0));
        // Behind the name: state is the first field, user and system time are 12 and 13.
        let text = std::fs::read_to_string(&stat).unwrap_or_default();
        let fields = text.rsplit_once(") ").map_or("", |it| it.1).split(' ');
        let times = fields
            .skip(11)
            .take(2)
            .filter_map(|it| it.parse::<u64>().ok());
        ticks = ticks.max(times.sum());
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert_eq!(
        code,
        Some(1),
        "every node was read: length-compared is violated"
    );
    (begin.elapsed(), peak, ticks)
}
