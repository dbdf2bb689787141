//! Ends: on request, in the middle of a stream, with and without time for it.

use crate::{COFFERDAM, serve, small};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::crowd::{COMPLETIONS, prompt};
use testkit::process::{Running, runs, wait_for};
use testkit::{Api, Events};

/// A stream that takes a while, after its first event.
fn long_stream(api: &Api, tokens: usize) -> (Events, Value) {
    let mut events = api.stream(COMPLETIONS, &long(tokens, true));
    let first = events.next_event().unwrap().expect("a first event");
    (events, serde_json::from_str(&first).unwrap())
}

fn long(tokens: usize, stream: bool) -> Value {
    json!({
        "prompt": prompt(7, 40, 16, 5), "max_tokens": tokens, "temperature": 0,
        "ignore_eos": true, "stream": stream,
    })
}

fn text(events: &[Value]) -> String {
    let parts = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str());
    parts.collect()
}

#[test]
fn a_stream_under_way_is_finished_at_sigterm_and_nothing_new_is_taken() {
    let model = small::model(4096);
    let (running, api) = serve(&model, &[]);
    assert_eq!(api.get("/readyz").good()["status"], "ready");
    assert_eq!(api.get("/livez").good()["status"], "alive");
    let whole = api.post(COMPLETIONS, &long(1000, false)).good();
    let expected = whole["choices"][0]["text"].as_str().unwrap();

    let (events, first) = long_stream(&api, 1000);
    running.signal(Signal::TERM);
    // It says so itself as long as it listens at all.
    wait_for("not ready any more", || match api.try_get("/readyz") {
        Ok(reply) if reply.status == 200 => None,
        Ok(reply) => {
            assert_eq!((reply.status, reply.error().0.as_str()), (503, "draining"));
            Some(())
        }
        Err(_) => Some(()),
    });
    if let Ok(reply) = api.try_post(COMPLETIONS, &long(1, false)) {
        assert_eq!((reply.status, reply.error().0.as_str()), (503, "draining"));
        assert!(reply.headers.contains_key("retry-after"));
    }
    let (mut said, done) = events.rest();
    assert!(done, "the running stream is finished: {:?}", said.last());
    said.insert(0, first);
    assert_eq!(text(&said), expected);
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.left.is_empty(), "{ended:?}");
}

#[test]
fn without_time_to_drain_a_stream_ends_with_an_error_event() {
    let model = small::model(4096);
    let (running, api) = serve(&model, &["--drain-seconds=0"]);
    let (events, _) = long_stream(&api, 4000);
    running.signal(Signal::INT);
    let (said, done) = events.rest();
    assert!(!done, "a broken stream has no [DONE]");
    let last = said.last().expect("it says why");
    assert_eq!(last["error"]["code"], "draining", "{last}");
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.left.is_empty(), "{ended:?}");
}

#[test]
fn in_process_ends_as_well() {
    let model = small::model(4096);
    let (running, api) = serve(&model, &["--in-process"]);
    let (events, _) = long_stream(&api, 500);
    running.signal(Signal::TERM);
    assert!(events.rest().1, "the running stream is finished");
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[test]
fn nothing_outlives_a_command_that_is_killed_while_it_serves() {
    let model = small::model(4096);
    let (running, api) = serve(&model, &[]);
    let (events, _) = long_stream(&api, 4000);
    let parts = running.parts();
    let kinds: Vec<&str> = parts.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    running.signal(Signal::KILL);
    let (_, done) = events.rest();
    assert!(!done, "a stream that was cut does not look whole");
    wait_for("the end of its parts", || {
        parts.iter().all(|(pid, _)| !runs(*pid)).then_some(())
    });
    let base = running.directory().to_owned();
    let left = || std::fs::read_dir(&base).unwrap().count();
    assert_eq!(left(), 1, "nobody could remove it");
    // The next command with the same base removes what the killed one left, and then its own.
    let path = model.to_str().unwrap();
    let words = ["serve", "--model", path, "--port=0", "--threads=1"];
    let next = Running::start_with(COFFERDAM, &words, |command| {
        command.env("XDG_RUNTIME_DIR", &base);
    });
    next.api();
    assert_eq!(left(), 1);
    assert!(next.stop().status.success());
    assert_eq!(left(), 0);
}
