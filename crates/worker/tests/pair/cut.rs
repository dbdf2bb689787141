//! The control connection between prefill and decode breaks again and again in the middle of a
//! handoff: Sync takes it up where it was, nothing is sent twice, nothing is lost.

use crate::edge::Pair;
use crate::{endless, probe, prompt, reference_of, spec};
use handoff::gateway::Outcome;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use testkit::{SmallSpec, small_gguf};
use wire::control::Addr;
use worker::EngineConfig;

const CONTEXT: u32 = 1024;

/// Passes bytes on between a socket of its own and decode's; can cut what passes.
#[derive(Clone)]
struct Proxy {
    open: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    fn start(at: &Path, to: PathBuf) -> Self {
        let listener = UnixListener::bind(at).unwrap();
        let proxy = Self {
            open: Arc::default(),
        };
        let open = proxy.open.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = UnixStream::connect(&to) else {
                    continue;
                };
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    std::thread::spawn(move || pass_on(from, into));
                }
                open.lock().unwrap().extend([near, far]);
            }
        });
        proxy
    }

    /// Cuts every connection; says how many there were.
    fn cut(&self) -> usize {
        let cut = std::mem::take(&mut *self.open.lock().unwrap());
        cut.iter()
            .for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        cut.len() / 2
    }
}

fn pass_on(mut from: UnixStream, mut into: UnixStream) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if into.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_a_handoff_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let shape = SmallSpec {
        context: CONTEXT as usize,
        ..SmallSpec::default()
    };
    let model = small_gguf(dir.path(), shape);
    let at = dir.path().join("proxy.sock");
    let proxy = Proxy::start(&at, dir.path().join("d").join("control.sock"));
    let mut pair = Pair::start_with(dir, model.clone(), |shape| {
        for engine in [&mut shape.prefill, &mut shape.decode] {
            // Token by token, so that there is time for cuts.
            *engine = EngineConfig {
                max_context: Some(CONTEXT),
                chunk: 1,
                ..engine.clone()
            };
        }
        shape.decode_at = Some(Addr::Unix(at));
    });
    let specs: Vec<_> = (1..4)
        .map(|i| spec(1, prompt(i, 940 - 7 * i), 8, i as u16, &endless()))
        .collect();
    let expected = reference_of(&model, CONTEXT, &specs);
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let mut cuts = 0;
    for (spec, expected) in specs.iter().zip(&expected) {
        let before = edge.facts(edge.prefill).counters.prompt_tokens;
        let request = edge.submit(spec.clone());
        for part in 1..8 {
            while edge.facts(edge.prefill).counters.prompt_tokens < before + part * 120 {}
            cuts += proxy.cut();
        }
        let answer = edge.answers(&[request]).remove(0);
        assert_eq!(
            (answer.outcome, &answer.tokens),
            (Some(Outcome::Answered), expected)
        );
    }
    assert!(cuts >= 5, "{cuts} connections were cut");
    edge.at_rest(edge.prefill, pair.prefill.ready.pool_tokens, 16);
    let facts = edge.at_rest(edge.decode, pair.decode.ready.pool_tokens, 16);
    assert_eq!(
        (facts.counters.integrity_faults, facts.counters.fences),
        (0, 0)
    );
    drop(edge);
    pair.prefill.end().unwrap();
    pair.decode.end().unwrap();
    for role in ["prefill", "decode"] {
        assert!(
            wire::trace::replay(&pair.trace(role)).unwrap().at_rest,
            "{role}"
        );
    }
}
