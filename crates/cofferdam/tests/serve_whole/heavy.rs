//! Bodies of 4 MB, with the real weights and their tokenizer: they keep nobody waiting, and leave
//! nothing behind.

use crate::serve;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use testkit::{Api, memory, process::Running, weights};

/// Bytes of a body.
const BODY: usize = 4_100_000;
/// Connections that send them at once.
const AT_ONCE: usize = 4;
/// Times that each of them sends every kind before memory is looked at again.
const ROUNDS: usize = 3;
/// What may be kept of these bodies, in bytes: less than a third.
const KEPT_MAX: usize = 64 << 20;
/// How often memory may have grown by more. What the allocator keeps for next time depends on which
/// bodies were read at once (by 140 MB from run to run), but that has an end; what is lost has none.
const GROWN_MAX: usize = 4;

/// Bodies of every kind whose text, list or messages are long; each must be refused.
fn bodies() -> Vec<(&'static str, Value)> {
    let long = |piece: &str| piece.repeat(BODY / piece.len());
    let message = |content: String| json!({"role": "user", "content": content});
    vec![
        (
            "/v1/completions",
            json!({"prompt": long("1"), "max_tokens": 1}),
        ),
        (
            "/v1/completions",
            json!({"prompt": vec![1; BODY / 2], "max_tokens": 1}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [message(long("日"))], "max_tokens": 1}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": vec![message("a b".to_owned()); BODY / 40], "max_tokens": 1}),
        ),
        ("/tokenize", json!({"prompt": long("<|im_end|>")})),
    ]
}

/// What this process has in memory, in bytes.
fn resident(of: &Running) -> usize {
    memory::resident(of.pid()).expect("it runs")
}

/// One word of another tenant, to its only token.
fn one_word(api: &Api) -> Value {
    let answer = api.post(
        "/v1/completions",
        &json!({"prompt": "Hello", "max_tokens": 1, "temperature": 0}),
    );
    answer.good()["choices"][0]["text"].clone()
}

#[test]
fn long_bodies_keep_nobody_waiting_and_their_memory_goes_back() {
    let keys = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(keys.path(), "red key-of-red\nblue key-of-blue\n").expect("it is written");
    let keys = format!("--api-keys={}", keys.path().display());
    let words = [
        "--in-process",
        "--max-context=512",
        "--pool-tokens=2048",
        &keys,
    ];
    let (running, api) = serve(&weights::path(), &words);
    let (red, blue) = (api.with_key("key-of-red"), api.with_key("key-of-blue"));
    let expected = one_word(&blue);
    let bodies = &bodies();
    let refuse = |at: usize| {
        let (path, body) = &bodies[at % bodies.len()];
        let answer = red.post(path, body);
        let (code, message) = answer.error();
        assert_eq!(answer.status, 400, "{path}: {code}: {message}");
    };
    // The first ones warm caches and pools up, so what is compared is what more of them add.
    let round = || {
        std::thread::scope(|scope| {
            (0..AT_ONCE).for_each(|first| {
                let refuse = &refuse;
                scope.spawn(move || (0..bodies.len()).for_each(|at| refuse(first + at)));
            });
        });
    };
    round();
    // Another tenant's word is answered while four of them are on their way, and others behind them.
    let (over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            let (over, refused, refuse) = (&over, &refused, &refuse);
            scope.spawn(move || {
                for at in first.. {
                    if over.load(SeqCst) {
                        break;
                    }
                    refuse(at);
                    refused.fetch_add(1, SeqCst);
                }
            });
        }
        while refused.load(SeqCst) < AT_ONCE {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            assert_eq!(one_word(&blue), expected);
        }
        over.store(true, SeqCst);
    });
    let sent = ROUNDS * AT_ONCE * bodies.len() * BODY;
    assert!(
        sent > 7 * KEPT_MAX / 2,
        "a third of them kept is more than that"
    );
    let grows = || {
        let before = resident(&running);
        (0..ROUNDS).for_each(|_| round());
        let kept = resident(&running).saturating_sub(before);
        println!("{} MB of bodies, {} MiB more", sent / 1_000_000, kept >> 20);
        kept >= KEPT_MAX
    };
    let settled = (0..=GROWN_MAX).any(|_| !grows());
    assert!(settled, "memory grows with every body");
    assert!(running.stop().status.success());
}
