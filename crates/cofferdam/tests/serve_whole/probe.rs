//! `cofferdam probe` against our own server, and what its evidence opens.

use crate::{COFFERDAM, info_when, serve, small};
use attest::Signer;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use testkit::Api;
use testkit::crowd::COMPLETIONS;
use testkit::process::{send, wait_for};

const KEYS: &str = "tenant-a key-of-a\ntenant-b key-of-b\ncustomer key-of-c\n";

fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn probe(words: &[&str]) -> (i32, String, String) {
    tool("probe", words)
}

fn tool(name: &str, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(COFFERDAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COFFERDAM_")) {
        command.env_remove(name);
    }
    let done = command.arg(name).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        done.status.code().unwrap(),
        text(done.stdout),
        text(done.stderr),
    )
}

/// A random model finds no fault with us, and is said to be no proof: it copies nothing.
#[test]
fn our_own_server_gives_no_finding_and_a_model_that_copies_nothing_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let keys = file(dir.path(), "keys", KEYS);
    let (_running, api) = serve(&small::model(512), &["--api-keys", &keys]);
    let url = format!("http://{}", api.addr);
    let a = file(dir.path(), "a", "key-of-a\n");
    let b = file(dir.path(), "b", "key-of-b\n");
    let html = dir.path().join("probe.html");
    let report = format!("html={}", html.display());
    let (code, out, err) = probe(&[
        &url,
        "--key-a",
        &a,
        "--key-b",
        &b,
        "--rate=0",
        "--format=json",
        "--report",
        &report,
        "--suite=boundary,load,abort,prefix,control,retry,flood",
    ]);
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!(code, 3, "{err}");
    assert_eq!(json["verdict"], "could_not_tell");
    assert_eq!(json["findings"], json!([]), "{out}");
    let why = json["why_not_told"].to_string();
    assert!(why.contains("does the model copy at all?"), "{why}");
    assert!(!why.contains("did not end"), "{why}");
    assert!(
        err.contains("limit 511, pool 1024, context 512 (tokens)"),
        "{err}"
    );
    assert!(
        json["by_status"]["400"].as_u64().unwrap() > 10,
        "what is too long is refused"
    );
    let html = std::fs::read_to_string(html).unwrap();
    for text in [&out, &err, &html] {
        assert!(!text.contains("key-of"), "no key in a report");
    }
}

#[test]
fn what_would_be_sent_is_said_and_not_sent() {
    let (code, out, err) = probe(&[
        "http://127.0.0.1:9",
        "--dry-run",
        "--seed=7",
        "--suite=flood",
    ]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("+ flood") && out.contains("- boundary"),
        "{out}"
    );
    assert!(out.contains("Can hurt: it fills the KV pool"), "{out}");
    for (words, says) in [
        (
            &["http://127.0.0.1:9", "--suite=pair"][..],
            "suite pair needs --prefill and --decode",
        ),
        (
            &["http://127.0.0.1:9", "--suite=floods"],
            "no suite; there are boundary, load,",
        ),
        (&["ftp://x"], "http:// or https://"),
        (
            &["http://127.0.0.1:9", "--key-a=no/such"],
            "no/such cannot be read",
        ),
    ] {
        let (code, _, err) = probe(words);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(says), "{err}");
    }
}

/// The address of an API is that of its server; a wrong one, or a wrong key, ends the run at once and
/// is said once, with the flag that helps.
#[test]
fn a_wrong_address_or_key_is_said_once_and_first() {
    let dir = tempfile::tempdir().unwrap();
    let keys = file(dir.path(), "keys", KEYS);
    let (_running, api) = serve(&small::model(512), &["--api-keys", &keys]);
    let (server, nobody) = (format!("http://{}", api.addr), "http://127.0.0.1:1");
    let (v1, elsewhere) = (format!("{server}/v1"), format!("{server}/no/such"));
    let a = format!("--key-a={}", file(dir.path(), "a", "key-of-a\n"));
    let wrong = format!("--key-a={}", file(dir.path(), "w", "key-of-nobody\n"));
    let also_a = format!("--key-b={}", file(dir.path(), "b", "key-of-a\n"));
    let wrong_b = format!("--key-b={}", file(dir.path(), "w", "key-of-nobody\n"));
    let cases: [(&[&str], String); 5] = [
        (
            &[&v1],
            format!("{server}: refused with 401: it wants a key, or another one: --key-a FILE"),
        ),
        (
            &[&v1, &wrong],
            format!("{server}: refused with 401: it wants a key, or another one: --key-a FILE"),
        ),
        (
            &[&v1, &a, &wrong_b],
            format!("{server}: refused with 401: it wants a key, or another one: --key-b FILE"),
        ),
        (
            &[&elsewhere, &a],
            format!("{elsewhere}: no such endpoint (404) of an OpenAI-compatible API below it"),
        ),
        (
            &[nobody],
            format!("{nobody}: unreachable (Connection refused (os error 111))"),
        ),
    ];
    for (words, says) in &cases {
        let (code, out, err) = probe(words);
        assert_eq!(code, 3, "{out}{err}");
        assert!(err.starts_with(says), "{says}: {err}");
        assert_eq!(err.matches(says).count(), 1, "{err}");
        assert!(out.contains("0 requests to"), "{out}");
    }
    let (_, out, err) = probe(&[&v1, &a, &also_a, "--suite=prefix"]);
    assert!(
        err.contains("--key-a and --key-b are one key"),
        "{out}{err}"
    );
    assert!(out.contains("0 requests to"), "{out}");

    let (code, out, _) = tool("gate", &["--server", &v1]);
    assert_eq!(code, 3, "{out}");
    assert_eq!(out.matches("refused with 401").count(), 1, "{out}");
    assert!(out.contains("UNKNOWN   node-answers"), "{out}");
    let (code, out, _) = tool("gate", &["--server", nobody]);
    assert_eq!((code, out.matches("unreachable").count()), (3, 1), "{out}");
}

fn asked(api: &Api) -> (u16, String) {
    let body = json!({"prompt": "one two three", "max_tokens": 2, "temperature": 0});
    let reply = api.post(COMPLETIONS, &body);
    let message = if reply.status == 200 {
        String::new()
    } else {
        reply.error().1
    };
    (reply.status, message)
}

/// Private until there is evidence about the very workers that run, and again when one is replaced.
#[test]
fn a_model_is_private_until_the_workers_that_run_were_tested() {
    let dir = tempfile::tempdir().unwrap();
    let keys = file(dir.path(), "keys", KEYS);
    let certs = dir.path().join("certs");
    wire::control::certs::new_cluster(&certs, wire::control::certs::Validity::days(1)).unwrap();
    let evidence = dir.path().join("evidence.txt");
    let public = certs.join("evidence.pub");
    let (running, api) = serve(
        &small::model(512),
        &[
            "--api-keys",
            &keys,
            "--operator=tenant-a",
            "--require-evidence",
            evidence.to_str().unwrap(),
            "--evidence-pub",
            public.to_str().unwrap(),
        ],
    );
    let (operator, customer) = (api.with_key("key-of-a"), api.with_key("key-of-c"));
    let (status, why) = asked(&customer);
    assert_eq!(status, 503, "{why}");
    assert!(
        why.contains("private until what runs has been tested"),
        "{why}"
    );
    assert_eq!(api.get("/readyz").status, 503);
    assert_eq!(asked(&operator).0, 200, "somebody has to test");

    let signer = Signer::load(&certs.join("evidence.key")).unwrap();
    let write = |verdict: &str, workers: &Value, signer: &Signer| {
        let suites = ["boundary", "flood", "load", "abort"].map(|it| json!({"suite": it}));
        let statement = json!({
            "version": env!("CARGO_PKG_VERSION"), "workers": workers,
            "run": {"verdict": verdict, "suites": suites},
        });
        std::fs::write(&evidence, signer.sign(&statement.to_string()).unwrap()).unwrap();
    };
    let becomes = |status: u16, what: &str| {
        wait_for(what, || {
            let (now, why) = asked(&customer);
            (now == status && (status == 200 || why.contains(what))).then_some(())
        });
    };
    let workers = operator.get("/server_info").good()["workers"].clone();
    write("found", &workers, &signer);
    becomes(503, "its verdict is found");
    let other = dir.path().join("other");
    wire::control::certs::new_cluster(&other, wire::control::certs::Validity::days(1)).unwrap();
    let stranger = Signer::load(&other.join("evidence.key")).unwrap();
    write("clean", &workers, &stranger);
    becomes(503, "the signature is not that of this key");
    write("clean", &workers, &signer);
    becomes(200, "open to everybody");
    assert_eq!(api.get("/readyz").status, 200);

    send(running.part("decode"), Signal::KILL);
    info_when(&operator, "another life of decode", |info| {
        let all = info["workers"].as_array().unwrap();
        let new = |it: &Value| it["role"] == "decode" && it["readiness"]["state"] == "ready";
        all.iter().any(|it| {
            new(it) && it["epoch"] != workers[0]["epoch"] && it["epoch"] != workers[1]["epoch"]
        })
    });
    let (status, why) = asked(&customer);
    assert_eq!(status, 503, "{why}");
    assert!(
        why.contains("is not among those that the evidence is about"),
        "{why}"
    );
    // The new decode is ready before prefill has found it.
    wait_for("somebody has to test again", || {
        (asked(&operator).0 == 200).then_some(())
    });
    running.stop();
}

/// All of it with the real commands, and a model that copies, so that the positive control is seen:
/// private, tested by the operators, open, and private again with another worker.
#[test]
fn what_the_probe_finds_clean_opens_the_model_until_a_worker_is_another() {
    let dir = tempfile::tempdir().unwrap();
    let keys = file(dir.path(), "keys", KEYS);
    let certs = dir.path().join("certs");
    wire::control::certs::new_cluster(&certs, wire::control::certs::Validity::days(1)).unwrap();
    let path = |name: &str| certs.join(name).to_str().unwrap().to_owned();
    let evidence = dir.path().join("evidence.txt").to_str().unwrap().to_owned();
    let (running, api) = serve(
        &small::copying(320),
        &[
            "--api-keys",
            &keys,
            "--operator=tenant-a",
            "--operator=tenant-b",
            "--require-evidence",
            &evidence,
            "--evidence-pub",
            &path("evidence.pub"),
        ],
    );
    let (operator, customer) = (api.with_key("key-of-a"), api.with_key("key-of-c"));
    let (status, why) = asked(&customer);
    assert_eq!(status, 503);
    assert!(
        why.contains("private until what runs has been tested"),
        "{why}"
    );
    let url = format!("http://{}", api.addr);
    let a = file(dir.path(), "a", "key-of-a\n");
    let b = file(dir.path(), "b", "key-of-b\n");
    let key = path("evidence.key");
    let words = [
        &url,
        "--key-a",
        &a,
        "--key-b",
        &b,
        "--rate=0",
        "--evidence-key",
        &key,
    ];
    let more = [
        "--evidence-out",
        &evidence,
        "--suite=boundary,load,abort,flood",
    ];
    let (code, out, err) = probe(&[&words[..], &more[..]].concat());
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.starts_with("CLEAN") && out.contains("% showed their own"),
        "{out}"
    );
    wait_for("open to everybody", || {
        (asked(&customer).0 == 200).then_some(())
    });
    assert_eq!(api.get("/readyz").status, 200);

    let before = operator.get("/server_info").good()["workers"].clone();
    send(running.part("prefill"), Signal::KILL);
    info_when(&operator, "another life of prefill", |info| {
        let all = info["workers"].as_array().unwrap();
        let new = |it: &Value| it["role"] == "prefill" && it["readiness"]["state"] == "ready";
        let known = before.as_array().unwrap();
        let old = |it: &Value| known.iter().any(|old| old["epoch"] == it["epoch"]);
        all.iter().any(|it| new(it) && !old(it))
    });
    let (status, why) = asked(&customer);
    assert_eq!(status, 503, "{why}");
    assert!(
        why.contains("is not among those that the evidence is about"),
        "{why}"
    );
    running.stop();
}
