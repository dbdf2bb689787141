//! Bodies of 4 MB, with the real weights and their tokenizer: they keep nobody waiting, and leave
//! nothing behind.

use crate::serve;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use testkit::{Api, memory, process::Running, weights};

/// Bytes of a body, and of what a server may keep of all of them in the end. What the allocator keeps
/// for next time depends on which bodies were read at once, by 80 MB from run to run.
const BODY: usize = 4_100_000;
const KEPT_MAX: usize = 96 << 20;
/// Connections that send them at once.
const AT_ONCE: usize = 4;
/// Times that each of them sends every kind, before memory is looked at and after.
const ROUNDS: (usize, usize) = (2, 4);

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
    (0..ROUNDS.0).for_each(|_| round());
    let before = resident(&running);
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
    (0..ROUNDS.1).for_each(|_| round());
    let sent = refused.load(SeqCst) + ROUNDS.1 * AT_ONCE * bodies.len();
    let kept = resident(&running).saturating_sub(before);
    println!(
        "{sent} bodies of {BODY} bytes; {} KiB more in memory",
        kept >> 10
    );
    assert!(
        sent * BODY > 3 * KEPT_MAX,
        "a third of them kept would be seen"
    );
    assert!(kept < KEPT_MAX, "{} MiB are kept", kept >> 20);
    assert!(running.stop().status.success());
}
