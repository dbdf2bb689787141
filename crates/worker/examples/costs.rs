//! What the handoff and `--scrub` cost, as ratios inside one run:
//!
//! ```text
//! cargo run --release -p worker --example costs -- MODEL.gguf
//! ```
//! Every figure is the median of several rounds in which both sides take turns.

#[allow(dead_code)] // tests use more of it
#[path = "../tests/pair/edge.rs"]
mod edge;

use edge::{Edge, Pair};
use gguf::File;
use handoff::Spec;
use model::{KvLayout, KvMemory, LoadOptions, Model};
use pages::{Config, Domain, PageId, Pool};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::Ask;
use worker::EngineConfig;
use worker::local::{Event, Local};

const ROUNDS: usize = 5;
const CONTEXT: u32 = 4096;
const NEW: u32 = 65;

fn main() {
    let model = PathBuf::from(std::env::args().nth(1).expect("usage: costs MODEL.gguf"));
    let per_page = scrub(&model);
    let engine = EngineConfig {
        max_context: Some(CONTEXT),
        ..EngineConfig::new(&model)
    };
    let local = Local::start(&engine).unwrap();
    let pair = Pair::start_with(tempfile::tempdir().unwrap(), model, |shape| {
        shape.prefill = engine.clone();
        shape.decode = engine.clone();
    });
    let mut edge = pair.edge(1);
    edge.ready(&spec(1, 0, 1));
    for n in [64, 512, 2048] {
        let mut alone = Vec::new();
        let mut handed = Vec::new();
        for round in 0..ROUNDS {
            alone.push(without(&local, spec(n, round as u32, NEW)));
            handed.push(with(&mut edge, spec(n, round as u32, NEW)));
        }
        let (alone, handed) = (medians(&alone), medians(&handed));
        let pages = n.div_ceil(16) as f64;
        println!(
            "prompt {n}: first token {:.1} ms, with handoff {:.1} ms (ratio {:.3}); decode {:.1} \
             tokens/s, with handoff {:.1} (ratio {:.3}); scrubbing its pages would add {:.4} %",
            alone.0 * 1e3,
            handed.0 * 1e3,
            handed.0 / alone.0,
            1.0 / alone.1,
            1.0 / handed.1,
            alone.1 / handed.1,
            pages * per_page / alone.0 * 100.0,
        );
    }
}

/// Seconds that scrubbing one page takes.
fn scrub(model: &Path) -> f64 {
    let file = File::open(model).unwrap();
    let layout = KvLayout::new(
        Model::load(&file, LoadOptions::default()).unwrap().config(),
        16,
    );
    let config = Config {
        pages: 512,
        page_size: 16,
        scrub: true,
    };
    let mut kv = KvMemory::allocate(layout, &Pool::new(config).0).unwrap();
    let begun = Instant::now();
    for page in 0..512 {
        kv.scrub(PageId::new(page)).unwrap();
    }
    let per_page = begun.elapsed().as_secs_f64() / 512.0;
    println!(
        "scrub: {:.1} us a page of {} bytes",
        per_page * 1e6,
        layout.page_bytes()
    );
    per_page
}

/// Another prompt in every round, so that no cache helps.
fn spec(n: u32, round: u32, max_new: u32) -> Spec {
    let ask = Ask {
        ignore_eos: true,
        ..Ask::greedy()
    };
    let tokens = (0..n).map(|i| 500 + (i * 37 + round * 1009) % 20_000);
    Spec {
        sampling: ask.encode(),
        ..Spec::new(Domain::new(u64::from(round)), tokens.collect(), max_new)
    }
}

/// Seconds to the first token, and seconds a token from then on.
fn without(local: &Local, spec: Spec) -> (f64, f64) {
    let begun = Instant::now();
    let mut running = local
        .submit(spec, begun + Duration::from_secs(600))
        .unwrap();
    let mut times = Vec::new();
    while let Some(event) = running.events.blocking_recv() {
        if let Event::Token { .. } = event {
            times.push(begun.elapsed().as_secs_f64());
        }
    }
    summary(&times)
}

fn with(edge: &mut Edge, spec: Spec) -> (f64, f64) {
    let begun = Instant::now();
    let request = edge.submit(spec);
    let mut times = Vec::new();
    for token in 1..=NEW as usize {
        edge.until("a token", |edge| {
            edge.answers[&request]
                .tokens
                .first()
                .is_some_and(|tokens| tokens.len() >= token)
        });
        times.push(begun.elapsed().as_secs_f64());
    }
    edge.answers(&[request]);
    summary(&times)
}

fn summary(times: &[f64]) -> (f64, f64) {
    let (first, last) = (times[0], times[times.len() - 1]);
    (first, (last - first) / (times.len() - 1) as f64)
}

fn medians(rounds: &[(f64, f64)]) -> (f64, f64) {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (first, each) = (rounds.iter().map(|r| r.0), rounds.iter().map(|r| r.1));
    (median(first.collect()), median(each.collect()))
}
