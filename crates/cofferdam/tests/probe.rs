//! `cofferdam probe` as a process: it reports however it ends, and reads what the server says of itself.

use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use testkit::process::send;

type Script = dyn Fn(&str, &Value) -> Option<(u16, Value)> + Send + Sync;

/// A server of which this decides the answers; without one it says nothing, ever.
fn serve(script: impl Fn(&str, &Value) -> Option<(u16, Value)> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let script: Arc<Script> = Arc::new(script);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let script = script.clone();
            std::thread::spawn(move || one(socket, &*script));
        }
    });
    url
}

fn one(mut socket: TcpStream, script: &Script) -> Option<()> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    let (head, body) = loop {
        let n = socket.read(&mut piece).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let lower = head.to_lowercase();
        let length = lower
            .lines()
            .find_map(|it| it.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |it| it.parse().unwrap()) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let path = head.split(' ').nth(1)?.to_owned();
    let body = serde_json::from_str(&body).unwrap_or_default();
    let Some((status, answer)) = script(&path, &body) else {
        loop {
            std::thread::park();
        }
    };
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: ");
    write!(socket, "{head}{}\r\n\r\n{answer}", answer.len()).ok()
}

/// The answer of a model that goes on with its prompt; a word is a token.
fn copying(body: &Value) -> Value {
    let prompt = body["prompt"].as_str().unwrap_or_default();
    let words: Vec<&str> = prompt.split_whitespace().collect();
    let opening = &words[words.len().saturating_sub(3)..];
    let at = words.windows(3).position(|it| it == opening).unwrap_or(0);
    let text: Vec<&str> = words.iter().skip(at + 3).take(12).copied().collect();
    json!({"choices": [{"index": 0, "text": text.join(" ")}],
           "usage": {"prompt_tokens": words.len(), "completion_tokens": 12}})
}

fn probe(words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COFFERDAM_")) {
        command.env_remove(name);
    }
    let command = command.arg("probe").args(words).arg("--rate=0");
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn ended(child: Child) -> (i32, String) {
    let done = child.wait_with_output().unwrap();
    let code = done.status.code().expect("it ends by itself");
    (code, String::from_utf8(done.stdout).unwrap())
}

/// Answers one request with what is no JSON, and never another. Whoever waits is told.
fn hangs_after_one(asked: Sender<()>) -> String {
    let n = AtomicUsize::new(0);
    serve(move |path, _| match path {
        "/v1/completions" if n.fetch_add(1, SeqCst) > 0 => {
            let _ = asked.send(());
            None
        }
        "/v1/completions" => Some((200, json!("no object"))),
        _ => Some((404, json!({}))),
    })
}

#[test]
fn whoever_ends_it_gets_a_report_of_what_was_found_so_far() {
    for (signal, why) in [
        (Signal::TERM, "it was ended (SIGTERM)"),
        (Signal::INT, "it was interrupted (SIGINT)"),
        (Signal::HUP, "its terminal went away (SIGHUP)"),
    ] {
        let (sender, asked) = channel();
        let n = AtomicUsize::new(0);
        let url = serve(move |path, body| match path {
            "/v1/completions" => match n.fetch_add(1, SeqCst) {
                0..4 => {
                    let mut answer = copying(body);
                    answer["usage"]["prompt_tokens_details"] = json!({"cached_tokens": 1_000_000});
                    Some((200, answer))
                }
                _ => {
                    let _ = sender.send(());
                    None
                }
            },
            _ => Some((404, json!({}))),
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("probe.json");
        let report = format!("json={}", file.display());
        let child = probe(&[&url, "--suite=load,abort", "--report", &report]);
        asked.recv().unwrap();
        send(child.id(), signal);
        let (code, out) = ended(child);
        assert_eq!(code, 1, "{out}");
        assert!(out.starts_with("FOUND"), "{out}");
        assert!(
            out.contains(&format!("load did not end: {why}"))
                && out.contains("abort did not end: it was not run"),
            "{out}"
        );
        let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(written["verdict"], "found");
        assert_eq!(written["suites"].as_array().unwrap().len(), 2);
    }
}

/// Nobody can report any more after SIGKILL: what had ended is in the file by then.
#[test]
fn the_file_holds_every_suite_that_has_ended_however_the_process_ends() {
    let (sender, asked) = channel();
    // Whether the path is there is asked first, without a prompt.
    let url = serve(move |path, body| match path {
        "/v1/completions" if body["prompt"].is_string() => {
            let _ = sender.send(());
            None
        }
        "/v1/completions" => Some((405, json!({}))),
        _ => Some((404, json!({}))),
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probe.json");
    let report = format!("json={}", file.display());
    let mut child = probe(&[&url, "--suite=control,churn", "--report", &report]);
    asked.recv().unwrap();
    send(child.id(), Signal::KILL);
    child.wait().unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["verdict"], "could_not_tell");
    let suites = written["suites"].as_array().unwrap();
    let stopped = |name: &str| {
        let suite = suites.iter().find(|it| it["suite"] == name).unwrap();
        suite["stopped"].clone()
    };
    assert_eq!(stopped("control"), Value::Null);
    assert_eq!(stopped("churn"), "it was not run");
}

#[test]
fn the_end_of_the_budget_leaves_a_report_though_the_server_hangs() {
    let (sender, _asked) = channel();
    let url = hangs_after_one(sender);
    let (code, out) = ended(probe(&[&url, "--suite=load", "--budget=time=2s"]));
    assert_eq!(code, 3, "{out}");
    assert!(out.contains("the budget of time is spent"), "{out}");
}

#[test]
fn a_report_that_cannot_be_written_is_printed_all_the_same() {
    let (sender, _asked) = channel();
    let url = hangs_after_one(sender);
    let words = [
        &url,
        "--suite=load",
        "--budget=time=1s",
        "--report=json=/no/such/place",
    ];
    let (code, out) = ended(probe(&words));
    assert!(
        code != 0 && out.starts_with("COULD NOT TELL"),
        "{code} {out}"
    );
}

#[test]
fn a_refused_connection_is_said_once_and_first() {
    let (code, out) = ended(probe(&["http://127.0.0.1:9"]));
    assert_eq!(code, 3);
    let second = out.lines().nth(1).unwrap_or_default();
    assert!(
        second.contains("is it running, is the address right?"),
        "{out}"
    );
    assert_eq!(
        out.matches("refused").count(),
        second.matches("refused").count(),
        "{out}"
    );
    assert_eq!(out.matches("did not end:").count(), 0, "{out}");
}

/// The context that `/v1/models` advertises is a limit, and no prompt of a million tokens is sent to find
/// another.
#[test]
fn what_the_list_of_models_says_is_read() {
    let longest = Arc::new(AtomicUsize::new(0));
    let seen = longest.clone();
    let url = serve(move |path, body| match path {
        "/v1/models" => Some((200, json!({"data": [{"id": "m", "max_model_len": 600}]}))),
        "/v1/completions" => {
            let prompt = body["prompt"].as_str().unwrap_or_default();
            seen.fetch_max(prompt.split_whitespace().count(), SeqCst);
            Some((200, copying(body)))
        }
        _ => Some((404, json!({}))),
    });
    let (code, out) = ended(probe(&[&url, "--suite=boundary", "--no-shrink"]));
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("200 for a prompt of 601 tokens, over the limit of 600"),
        "{out}"
    );
    assert!(longest.load(SeqCst) <= 1200, "{longest:?}");
}
