//! Real weights, eight requests at once, one of them over the model's whole context: every answer
//! equals that of the engine in one process, and every page comes back. Minutes, so no test:
//!
//! ```text
//! cargo run --release -p worker --example full_context -- MODEL.gguf
//! ```

#[allow(dead_code)] // tests use more of it
#[path = "../tests/pair/edge.rs"]
mod edge;

use edge::Pair;
use handoff::Spec;
use handoff::gateway::Outcome;
use pages::Domain;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wire::Ask;
use worker::EngineConfig;
use worker::local::{Event, Local};

const NEW: u32 = 32;

fn main() {
    let model = PathBuf::from(
        std::env::args()
            .nth(1)
            .expect("usage: full_context MODEL.gguf"),
    );
    let engine = EngineConfig::new(&model);
    let local = Local::start(&engine).unwrap();
    let context = local.ready().max_context;
    let lengths = [context - NEW, 1, 17, 300, 1000, 64, 128, 2048];
    let specs: Vec<Spec> = (0u32..).zip(lengths).map(|(i, n)| spec(i, n)).collect();
    let begun = Instant::now();
    let running: Vec<_> = specs
        .iter()
        .map(|spec| {
            local
                .submit(spec.clone(), begun + Duration::from_secs(3600))
                .unwrap()
        })
        .collect();
    let expected: Vec<Vec<u32>> = running
        .into_iter()
        .map(|mut running| {
            let mut tokens = Vec::new();
            while let Some(event) = running.events.blocking_recv() {
                if let Event::Token { token, .. } = event {
                    tokens.push(token.id);
                }
            }
            tokens
        })
        .collect();
    println!("in one process: {:.1} s", begun.elapsed().as_secs_f64());
    drop(local);

    let pair = Pair::start_with(tempfile::tempdir().unwrap(), model, |shape| {
        shape.prefill = engine.clone();
        shape.decode = engine.clone();
    });
    let mut edge = pair.edge(1);
    edge.patience = Duration::from_secs(3600);
    edge.ready(&spec(9, 1));
    let begun = Instant::now();
    let requests: Vec<_> = specs.iter().map(|spec| edge.submit(spec.clone())).collect();
    let answers = edge.answers(&requests);
    for ((answer, expected), spec) in answers.iter().zip(&expected).zip(&specs) {
        assert_eq!(answer.outcome, Some(Outcome::Answered));
        let tokens: Vec<u32> = answer.tokens[0].iter().map(|token| token.id).collect();
        assert_eq!(tokens, *expected, "prompt of {} tokens", spec.tokens.len());
    }
    let pool = pair.decode.ready.pool_tokens;
    let (prefill, decode) = (edge.prefill, edge.decode);
    for conn in [prefill, decode] {
        println!("{:?}", edge.at_rest(conn, pool, 16));
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("with a handoff: {seconds:.1} s; all 8 answers equal, context {context}");
}

fn spec(i: u32, n: u32) -> Spec {
    let ask = Ask {
        ignore_eos: true,
        ..Ask::greedy()
    };
    let tokens = (0..n).map(|at| 500 + (at * 37 + i * 1009) % 20_000);
    Spec {
        cache: true,
        sampling: ask.encode(),
        ..Spec::new(Domain::new(u64::from(i % 4)), tokens.collect(), NEW)
    }
}
