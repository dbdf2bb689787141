//! Parts that are killed while they serve: what clients hear, what comes back, what is left.

use crate::{counter, info_when, rest, serve, small, worker};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc;
use testkit::Api;
use testkit::crowd::{COMPLETIONS, prompt};
use testkit::process::{PATIENCE, Running, send, wait_for};
use wire::trace::replay;

fn request(owner: usize, tokens: usize, max_tokens: usize, stream: bool) -> Value {
    json!({
        "prompt": prompt(owner, tokens, 16, 11), "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": true, "stream": stream, "logprobs": 1,
    })
}

fn answer(api: &Api, owner: usize) -> Value {
    api.post(COMPLETIONS, &request(owner, 100, 20, false))
        .good()["choices"]
        .clone()
}

fn epoch(info: &Value, role: &str) -> String {
    worker(info, role)["epoch"]
        .as_str()
        .expect("an epoch")
        .to_owned()
}

/// Waits until the gateway has found another life of this role and would take a request.
fn new_life(api: &Api, role: &str, before: &Value) -> Value {
    let old = epoch(before, role);
    info_when(api, &format!("a new life of {role}"), |info| {
        let new = epoch(info, role);
        !new.is_empty() && new != old && api.get("/readyz").status == 200
    })
}

/// Decode is killed in the middle of a stream, prefill before a commit; then the next request is
/// answered as if nothing had been. Traces of those who lived through it replay.
#[test]
fn a_killed_worker_costs_what_it_held_and_nothing_else() {
    let model = small::model(4096);
    let dir = tempfile::tempdir().unwrap();
    let (running, api) = serve(&model, &[&format!("--trace={}", dir.path().display())]);
    let expected: Vec<Value> = (0..4).map(|owner| answer(&api, owner)).collect();
    let first = rest(&api);

    let mut events = api.stream(COMPLETIONS, &request(9, 60, 4000, true));
    assert!(events.next_event().unwrap().is_some());
    send(running.part("decode"), Signal::KILL);
    let (said, done) = events.rest();
    assert!(!done, "an answer that broke off does not look whole");
    let last = said.last().expect("it says why");
    assert_eq!(last["error"]["code"], "decode_failed", "{last}");
    missed(&running, &api);
    let second = new_life(&api, "decode", &first);
    assert_eq!(
        epoch(&second, "prefill"),
        epoch(&first, "prefill"),
        "prefill lives on"
    );
    assert_eq!(answer(&api, 0), expected[0]);
    rest(&api);

    // Long prompts, so that prefill has some of them when it dies.
    let (killed, answered) = killed_prefill(&running, &api);
    println!("prefill killed: {answered} of {killed} answered all the same");
    let third = new_life(&api, "prefill", &second);
    assert_eq!(
        epoch(&third, "decode"),
        epoch(&second, "decode"),
        "decode lives on"
    );
    for (owner, expected) in expected.iter().enumerate() {
        assert_eq!(answer(&api, owner), *expected);
    }
    let info = rest(&api);
    assert_eq!(
        counter(worker(&info, "decode"), "integrity_faults"),
        0,
        "{info}"
    );
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    replays(dir.path());
}

/// Whoever asks while decode is away is told so. Where it is back already, it is killed again.
fn missed(running: &Running, api: &Api) {
    loop {
        let refused = api.post(COMPLETIONS, &request(1, 100, 20, false));
        if refused.status == 503 {
            let said = "no decode worker is connected and ready".to_owned();
            assert_eq!(refused.error(), ("unavailable".to_owned(), said));
            return;
        }
        send(running.part("decode"), Signal::KILL);
    }
}

/// One of two decodes that dies as often as makes a crash loop rests; the other goes on serving, and
/// whoever asks is told which is missing.
#[test]
fn a_decode_that_keeps_dying_leaves_the_other_serving() {
    let model = small::model(4096);
    let (running, api) = serve(&model, &["--decode=2"]);
    let expected: Vec<Value> = (0..2).map(|owner| answer(&api, owner)).collect();
    let parts = running.parts();
    let decodes = parts.iter().filter(|(_, kind)| kind == "decode");
    let stays: Vec<u32> = decodes.map(|(pid, _)| *pid).take(1).collect();
    let mut from = 0;
    for death in 1..=5 {
        let pid = wait_for("the other decode", || {
            let parts = running.parts();
            let mut decodes = parts.iter().filter(|(_, kind)| kind == "decode");
            let other = decodes.find(|(pid, _)| !stays.contains(pid));
            other.map(|(pid, _)| *pid)
        });
        send(pid, Signal::KILL);
        let said = match death {
            5 => "5 times within 60 s",
            _ => "restart in",
        };
        running.line_from(from, said, |line| {
            (line.contains("ended") && line.contains(said)).then_some(())
        });
        from = running.lines().len();
    }
    let ready = wait_for("the gateway misses it", || {
        let ready = api.get("/readyz").good();
        (!ready["away"].is_null()).then_some(ready)
    });
    assert_eq!(ready["status"], "ready");
    assert_eq!(ready["away"].as_array().map(Vec::len), Some(1), "{ready}");
    for (owner, expected) in expected.iter().enumerate() {
        assert_eq!(answer(&api, owner), *expected);
    }
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
}

/// Kills prefill when it has answered one of six. Each client hears the right answer or an honest
/// error.
fn killed_prefill(running: &Running, api: &Api) -> (usize, usize) {
    const CLIENTS: usize = 6;
    let pid = running.part("prefill");
    let (say, said) = mpsc::channel();
    let mut answered = 0;
    std::thread::scope(|scope| {
        for owner in 100..100 + CLIENTS {
            let say = say.clone();
            scope.spawn(move || {
                let reply = api.post(COMPLETIONS, &request(owner, 3000 + owner, 4, false));
                say.send((owner, reply)).unwrap();
            });
        }
        for nth in 0..CLIENTS {
            let (owner, reply) = said
                .recv_timeout(PATIENCE)
                .expect("everybody hears something");
            if nth == 0 {
                send(pid, Signal::KILL);
            }
            match reply.status {
                200 => {
                    answered += 1;
                    let usage = &reply.json()["usage"];
                    assert_eq!(usage["prompt_tokens"], 3000 + owner);
                    assert_eq!(usage["completion_tokens"], 4);
                }
                502 => assert_eq!(reply.error().0, "prefill_failed"),
                503 => assert_eq!(reply.error().0, "unavailable"),
                other => panic!("{other}: {:?}", reply.error()),
            }
        }
    });
    (CLIENTS, answered)
}

/// Every trace gives the same effects again; those of the killed may be torn.
fn replays(dir: &Path) {
    let mut torn = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match replay(&path) {
            Ok(replayed) => {
                torn += u32::from(replayed.torn);
                assert!(replayed.inputs > 0, "{}", path.display());
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    assert!(torn <= 2, "only two were killed");
    assert_eq!(
        std::fs::read_dir(dir).unwrap().count(),
        5,
        "three lives and two second ones"
    );
}

#[test]
fn a_killed_gateway_comes_back_on_its_port_and_its_requests_are_cancelled() {
    let model = small::model(4096);
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let (running, api) = serve(&model, &[&format!("--port={port}")]);
    let expected = answer(&api, 0);
    let before = rest(&api);
    let mut events = api.stream(COMPLETIONS, &request(9, 60, 4000, true));
    assert!(events.next_event().unwrap().is_some());
    send(running.part("gateway"), Signal::KILL);
    assert!(
        !events.rest().1,
        "a stream that was cut does not look whole"
    );
    wait_for("the gateway is back", || {
        api.try_get("/readyz").ok().filter(|it| it.status == 200)
    });
    assert_eq!(answer(&api, 0), expected);
    // *The gateway dies*: its stream's end is a cancel.
    let after = rest(&api);
    for role in ["prefill", "decode"] {
        assert_eq!(epoch(&after, role), epoch(&before, role), "workers live on");
    }
    assert_eq!(
        counter(worker(&after, "decode"), "attempts_cancelled"),
        1,
        "{after}"
    );
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
}
