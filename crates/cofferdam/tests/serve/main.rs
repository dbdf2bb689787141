//! `cofferdam serve` as its user meets it: real processes, a small model, answers over HTTP.

mod affected;
mod running;
mod traced;

use running::{COFFERDAM, TARGET, command, ends, start, start_program};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Token ids that the small model's tokenizer has, different for different seeds.
fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens)
        .map(|i| 1000 + (seed * 7919 + i * 104_729) % 40_000)
        .collect()
}

/// Text, finish reason and log-probabilities: what must be equal for equal requests.
fn answer((status, body): (u16, Value)) -> Value {
    assert_eq!(status, 200, "{body}");
    let choice = &body["choices"][0];
    assert!(choice["text"].is_string(), "{body}");
    choice.clone()
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn one_command_serves_and_leaves_nothing_behind() {
    let base = tempfile::tempdir().unwrap();
    let mut serving = start(base.path(), &[]);
    let parts = serving.parts();
    let roles: Vec<_> = parts.iter().map(|(role, ..)| role.as_str()).collect();
    assert_eq!(
        roles,
        ["decode", "gateway", "prefill"],
        "each is a process of its own"
    );
    answer(serving.complete(&prompt(1, 100), 8));
    assert!(
        !is_empty(base.path()),
        "the runtime directory is there while it runs"
    );

    serving.signal(Signal::TERM);
    assert_eq!(serving.ends(), Some(0), "{}", serving.told());
    assert!(parts.iter().all(|(.., process)| ends(process)));
    assert!(is_empty(base.path()), "the runtime directory is gone");
}

#[test]
fn answers_are_those_of_one_process_without_a_handoff() {
    let base = tempfile::tempdir().unwrap();
    let (apart, unified) = (
        start(base.path(), &[]),
        start(base.path(), &["--in-process"]),
    );
    assert_eq!(unified.parts().len(), 0);
    for (seed, tokens) in [(1, 1), (2, 15), (3, 16), (4, 17), (5, 200), (6, 255)] {
        let prompt = prompt(seed, tokens);
        let most = 16.min(256 - tokens);
        let expected = answer(unified.complete(&prompt, most));
        assert_eq!(
            answer(apart.complete(&prompt, most)),
            expected,
            "{tokens} tokens"
        );
    }
}

#[test]
fn a_killed_worker_comes_back_with_a_new_epoch_and_serves() {
    let base = tempfile::tempdir().unwrap();
    // From a path of its own, which is gone when parts are restarted, as during an upgrade.
    let place = tempfile::tempdir_in(TARGET).unwrap();
    let program = place.path().join("cofferdam");
    fs::hard_link(COFFERDAM, &program).unwrap();
    let mut serving = start_program(&program, base.path(), &[]);
    fs::remove_file(&program).unwrap();
    let expected = answer(serving.complete(&prompt(1, 40), 8));
    for role in ["decode", "prefill"] {
        let before = serving.epochs();
        let (_, pid, process) = serving
            .parts()
            .into_iter()
            .find(|(it, ..)| it == role)
            .unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        assert!(ends(&process));
        serving.says(&format!("{role}-0 is ready again"));
        let again = retried(|| serving.complete(&prompt(1, 40), 8));
        assert_eq!(answer(again), expected);
        for ((name, before), (_, after)) in before.iter().zip(serving.epochs()) {
            assert_eq!(
                *before != after,
                name.starts_with(role),
                "{name}: {before} {after}"
            );
        }
    }
}

fn healthcheck(words: &[&str]) -> (Option<i32>, String) {
    let asked = Command::new(COFFERDAM)
        .arg("healthcheck")
        .args(words)
        .output();
    let asked = asked.unwrap();
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    (asked.status.code(), said)
}

#[test]
fn a_healthcheck_tells_ready_from_alive_from_gone() {
    let base = tempfile::tempdir().unwrap();
    let serving = start(base.path(), &[]);
    let url = format!("http://{}", serving.address);
    assert_eq!(healthcheck(&[&url]), (Some(0), String::new()));
    drop(serving);
    let (code, said) = healthcheck(&[&url]);
    assert!(code == Some(3) && said.contains("unreachable"), "{said}");

    // A gateway alone: it lives, and no request would be taken.
    let certs = base.path().join("certs").display().to_string();
    let made = Command::new(COFFERDAM)
        .args(["certs", "new", &certs])
        .output();
    assert!(made.unwrap().status.success());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (port, url) = (address.port().to_string(), format!("http://{address}"));
    let nowhere = format!("unix:{}/nobody", base.path().display());
    let mut words = vec!["gateway", "--certs", &certs, "--port", &port];
    words.extend(["--prefill-at", &nowhere, "--decode-at", &nowhere, "--model"]);
    let model = testkit::small_gguf(Path::new(TARGET), testkit::SmallSpec::default());
    let model = model.display().to_string();
    words.push(&model);
    let _gateway = testkit::process::Running::start(COFFERDAM, &words);
    testkit::process::wait_for("that it lives", || {
        (healthcheck(&["--live", &url]).0 == Some(0)).then_some(())
    });
    let (code, said) = healthcheck(&[&url]);
    assert!(code == Some(1) && said.contains("answers 503"), "{said}");
}

/// sd_notify(3): one datagram of whoever was started, none of its parts.
#[test]
fn systemd_hears_once_that_it_is_ready() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut serving = command(base.path(), &[])
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(serving.stdout.take().unwrap());
    lines.read_line(&mut said).unwrap();
    let mut heard = Vec::new();
    let mut word = [0; 64];
    while let Ok(length) = socket.recv(&mut word) {
        heard.push(word[..length].to_vec());
    }
    let pid = rustix::process::Pid::from_child(&serving);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(serving.wait().unwrap().success());
    assert!(said.starts_with("ready: "), "{said}");
    assert_eq!(heard, [b"READY=1\n"], "once, and no part spoke too");
}

/// Asks until the answer is not "not now": the gateway has to find the new life first.
fn retried(ask: impl Fn() -> (u16, Value)) -> (u16, Value) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (status, body) = ask();
        if !matches!(status, 502..=504) || Instant::now() > until {
            return (status, body);
        }
    }
}

#[test]
fn parts_end_with_a_killed_command_and_the_next_one_removes_its_directory() {
    let base = tempfile::tempdir().unwrap();
    let mut serving = start(base.path(), &[]);
    let parts = serving.parts();
    assert_eq!(parts.len(), 3);
    serving.signal(Signal::KILL);
    assert_eq!(serving.ends(), None, "it was killed");
    assert!(
        parts.iter().all(|(.., process)| ends(process)),
        "parts outlived the command"
    );
    let left: Vec<_> = fs::read_dir(base.path())
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    assert_eq!(left.len(), 1, "nobody could clean up");
    let next = start(base.path(), &[]);
    assert!(!left[0].exists());
    drop(next);
}

#[test]
fn what_runs_when_it_is_stopped_is_finished_first() {
    let base = tempfile::tempdir().unwrap();
    let mut serving = start(base.path(), &[]);
    let mut stream = serving.stream(&prompt(1, 20), 230);
    serving.signal(Signal::INT);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(r#""finish_reason":"length""#), "{rest}");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(serving.ends(), Some(0), "{}", serving.told());
}

#[test]
fn every_part_keeps_a_trace_where_it_is_asked_to() {
    let base = tempfile::tempdir().unwrap();
    let traces = base.path().join("traces");
    let mut serving = start(base.path(), &[&format!("--trace={}", traces.display())]);
    answer(serving.complete(&prompt(1, 40), 4));
    serving.signal(Signal::TERM);
    assert_eq!(serving.ends(), Some(0));
    let mut kept: Vec<_> = fs::read_dir(&traces).unwrap().flatten().collect();
    kept.sort_by_key(|entry| entry.file_name());
    assert!(
        kept.iter()
            .all(|entry| entry.metadata().unwrap().len() > 100)
    );
    let names: Vec<_> = kept
        .iter()
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        names,
        ["decode-0.1.trace", "gateway.1.trace", "prefill-0.1.trace"]
    );
}

#[test]
fn a_pool_that_is_too_small_is_refused_and_the_value_that_is_named_serves() {
    let base = tempfile::tempdir().unwrap();
    let output = command(base.path(), &["--pool-tokens=100"])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("decode-0 does not start: a pool of 96 tokens cannot hold"),
        "{told}"
    );
    assert!(
        told.contains("the largest --max-context that fits is 96"),
        "{told}"
    );
    // Prefill is as small and may say so as well; of decode it is told once.
    let of_decode = |line: &&str| line.contains("decode") && line.contains("cannot hold");
    assert_eq!(told.lines().filter(of_decode).count(), 1, "{told}");
    assert!(is_empty(base.path()));

    let serving = start(base.path(), &["--pool-tokens=100", "--max-context=96"]);
    answer(serving.complete(&prompt(1, 95), 1));
    let (status, body) = serving.complete(&prompt(1, 96), 1);
    assert_eq!(status, 400, "{body}");
    assert_eq!(body["error"]["code"], "context_length_exceeded", "{body}");
}

/// What cannot work is said before a model is loaded for it: once, with what to do.
#[test]
fn what_the_api_lacks_is_said_before_anything_starts() {
    let base = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let keys = tempfile::NamedTempFile::new().unwrap();
    fs::write(keys.path(), "one-word\n").unwrap();
    let keys = keys.path().display();
    let missing = "No such file or directory (os error 2)";
    let cases = [
        (
            format!("--port={port}"),
            format!(
                "cannot listen on 127.0.0.1 port {port}: Address already in use (os error 98); \
                 another program listens there: --port N takes another port, --port 0 a free one"
            ),
        ),
        (
            "--api-keys=no/keys".into(),
            format!("--api-keys no/keys: {missing}"),
        ),
        (
            format!("--api-keys={keys}"),
            format!("--api-keys {keys}: API keys, line 1: expected `tenant key`, found 1 words"),
        ),
        (
            "--access-log=no/log".into(),
            format!("--access-log no/log: {missing}"),
        ),
    ];
    for (word, says) in &cases {
        for more in [&[][..], &["--in-process"]] {
            let words = [&[word.as_str()], more].concat();
            let output = command(base.path(), &words).output().unwrap();
            let told = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{told}");
            assert_eq!(told, format!("error: {says}\n"), "and nothing else");
            assert!(is_empty(base.path()));
        }
    }
}

/// A key that was asked for is asked of clients, whatever runs behind the API.
#[test]
fn a_key_of_the_command_line_counts_with_and_without_a_handoff() {
    for more in [&[][..], &["--in-process"]] {
        let base = tempfile::tempdir().unwrap();
        let words = [&["--api-key=k-1"], more].concat();
        let serving = start(base.path(), &words);
        let (status, body) = serving.get("/v1/models");
        assert_eq!(status, 401, "{more:?}: {body}");
        let tried = std::process::Command::new("sh")
            .args(["-c", serving.tries()])
            .output()
            .unwrap();
        let said = String::from_utf8(tried.stdout).unwrap();
        let said: Value = serde_json::from_str(&said).expect(&said);
        assert!(
            said["choices"][0]["message"]["content"].is_string(),
            "the line that is printed works as it is: {said}"
        );
    }
}

/// So it is over HTTPS, with and without a handoff.
#[test]
fn the_line_that_is_printed_works_over_https() {
    let made = rcgen::generate_simple_self_signed(["gw.example".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [cert, key] = [("cert", &cert), ("key", &key)]
        .map(|(name, file)| format!("--tls-{name}={}", file.display()));
    for more in [&[][..], &["--in-process"]] {
        let base = tempfile::tempdir().unwrap();
        let words = [&[cert.as_str(), &key], more].concat();
        let serving = start(base.path(), &words);
        let tried = std::process::Command::new("sh")
            .args(["-c", serving.tries()])
            .output()
            .unwrap();
        let said = String::from_utf8(tried.stdout).unwrap();
        let said: Value = serde_json::from_str(&said).expect(&said);
        assert!(
            said["choices"][0]["message"]["content"].is_string(),
            "{said}"
        );
        assert!(serving.tries().contains(" https://"), "{}", serving.tries());
    }
}
