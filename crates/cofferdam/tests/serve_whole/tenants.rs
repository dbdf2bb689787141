//! Keys and limits of tenants, in front of scripted engines: files that are edited while requests run.

use crate::door::{Door, start, tokens};
use rustix::process::Signal;
use scripted::{Act, Engine, Rule};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use testkit::process::wait_for;

const COMPLETIONS: &str = "/v1/completions";

/// A file of keys, and a gateway that has read it.
struct Keyed {
    dir: tempfile::TempDir,
    door: Door,
}

impl Keyed {
    fn new(lines: &str, words: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        fs::write(&file, lines).unwrap();
        let weights = crate::small::model(4096);
        let all = [&["--api-keys", file.to_str().unwrap()], words].concat();
        let door = start(vec![Engine::sglang()], &weights, &all);
        Self { dir, door }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    /// As every careful editor does it.
    fn rename(&self, lines: &str) {
        let beside = self.dir.path().join("keys.new");
        fs::write(&beside, lines).unwrap();
        fs::rename(beside, self.file()).unwrap();
    }

    /// What somebody with this key is told.
    fn status(&self, key: &str) -> u16 {
        self.door.api.with_key(key).get("/v1/models").status
    }

    fn when(&self, key: &str, status: u16) {
        wait_for(&format!("{key} is told {status}"), || {
            (self.status(key) == status).then_some(())
        });
    }

    fn reloads(&self, result: &str) -> u64 {
        let series = format!(r#"cofferdam_reloads_total{{what="api-keys",result="{result}"}} "#);
        metric(&self.door, &series)
    }

    fn refused(&self, times: u64) {
        wait_for("the file is refused", || {
            (self.reloads("refused") == times).then_some(())
        });
    }
}

fn metric(door: &Door, series: &str) -> u64 {
    let page = String::from_utf8(door.api.get("/metrics").body).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |value| value.parse().unwrap())
}

fn append(file: &Path, text: &str) {
    use std::io::Write;
    let mut file = fs::File::options().append(true).open(file).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn keys_are_read_again_while_requests_run() {
    let keyed = Keyed::new("red k-red\nblue k-blue\n", &[]);
    keyed.door.fleet.rule(Rule::new(Act::Answer).every_ms(150));
    assert_eq!([keyed.status("k-red"), keyed.status("k-green")], [200, 401]);
    let mut ask = tokens(&(300..340).collect::<Vec<u32>>(), 30);
    ask["stream"] = json!(true);
    let blue = keyed.door.api.with_key("k-blue");
    let mut running = blue.stream(COMPLETIONS, &ask);
    running.next_event().unwrap().expect("it has begun");
    keyed.rename("red k-red\ngreen k-green\n");
    keyed.when("k-green", 200);
    assert_eq!([keyed.status("k-red"), keyed.status("k-blue")], [200, 401]);
    let refused = blue.post(COMPLETIONS, &ask);
    assert_eq!(
        (refused.status, refused.error().0.as_str()),
        (401, "invalid_api_key")
    );
    let (events, done) = running.rest();
    assert!(done, "who was let in is answered to the end: {events:?}");
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
}

#[test]
fn a_bad_key_file_changes_nothing() {
    let keyed = Keyed::new("red k-red\ngreen k-green\n", &[]);
    // Half a line, and then the rest.
    fs::write(keyed.file(), "red k-red\ngre").unwrap();
    keyed.refused(1);
    assert_eq!([keyed.status("k-red"), keyed.status("k-green")], [200, 200]);
    append(&keyed.file(), "en k-green\nnew k-new\n");
    keyed.when("k-new", 200);
    assert_eq!(keyed.status("k-green"), 200);
    fs::write(keyed.file(), "red k-red\ngreen k-green\n").unwrap();
    keyed.when("k-new", 401);
    assert_eq!([keyed.status("k-red"), keyed.status("k-green")], [200, 200]);
    fs::remove_file(keyed.file()).unwrap();
    keyed.refused(2);
    assert_eq!([keyed.status("k-red"), keyed.status("k-green")], [200, 200]);
    // It said why, once each, and no key.
    let said = keyed.door.gateway.lines().join("\n");
    let why = "api-keys read again, and what was there before stays";
    assert_eq!(said.matches(why).count(), 2, "{said}");
    assert!(
        said.contains("line 2") && said.contains("No such file"),
        "{said}"
    );
    assert!(!said.contains("k-green"), "{said}");
    fs::write(keyed.file(), "green k-green\n").unwrap();
    keyed.when("k-red", 401);
    // Nothing has changed; asked by a signal it is read all the same.
    let before = keyed.reloads("taken");
    keyed.door.gateway.signal(Signal::HUP);
    wait_for("it is read on SIGHUP", || {
        (keyed.reloads("taken") == before + 1).then_some(())
    });
    assert_eq!(keyed.status("k-green"), 200);
}

#[test]
fn a_minute_has_so_many_requests_and_tokens() {
    let lines = "red k-red rpm=3\nblue k-blue rpm=none tpm=300\ngreen k-green\n";
    let keyed = Keyed::new(lines, &["--rpm=2"]);
    let prompt: Vec<u32> = (300..340).collect();
    let ask = |key: &str, prompt: &[u32], most: usize| {
        let asked = tokens(prompt, most);
        keyed.door.api.with_key(key).post(COMPLETIONS, &asked)
    };
    for (key, requests) in [("k-red", 3), ("k-green", 2)] {
        for left in (0..requests).rev() {
            let reply = ask(key, &prompt, 5);
            assert_eq!(reply.status, 200, "{key}");
            assert_eq!(
                reply.headers["x-ratelimit-limit-requests"],
                requests.to_string()
            );
            assert_eq!(
                reply.headers["x-ratelimit-remaining-requests"],
                left.to_string()
            );
            assert!(!reply.headers.contains_key("x-ratelimit-limit-tokens"));
        }
        let before = keyed.door.fleet.all().arrived;
        let reply = ask(key, &prompt, 5);
        let (code, message) = reply.error();
        assert_eq!(
            (reply.status, code.as_str()),
            (429, "rate_limit_exceeded"),
            "{message}"
        );
        assert!(reply.json()["error"]["type"].is_string());
        let wait: u64 = reply.headers["retry-after"].parse().unwrap();
        assert!((1..=60 / requests).contains(&wait), "{wait}");
        assert!(reply.headers["x-ratelimit-reset-requests"].ends_with('s'));
        assert_eq!(
            keyed.door.fleet.all().arrived,
            before,
            "an engine was asked"
        );
    }
    assert_eq!(
        keyed.status("k-red"),
        200,
        "what generates nothing is not counted"
    );

    // 40 of the prompt and 5 of 100 that it might have had.
    let left = |reply: &testkit::Reply| -> u64 {
        assert!(!reply.headers.contains_key("x-ratelimit-limit-requests"));
        assert_eq!(reply.headers["x-ratelimit-limit-tokens"], "300");
        reply.headers["x-ratelimit-remaining-tokens"]
            .parse()
            .unwrap()
    };
    let reply = ask("k-blue", &prompt, 5);
    assert_eq!(reply.status, 200);
    let before = keyed.door.fleet.all().arrived;
    let reply = ask("k-blue", &prompt, 230);
    assert_eq!(reply.status, 429, "{:?}", left(&reply));
    let (code, message) = reply.error();
    assert_eq!(code, "rate_limit_exceeded");
    assert!(
        message.contains("300 tokens a minute") && message.contains("wants 270"),
        "{message}"
    );
    assert_eq!(
        keyed.door.fleet.all().arrived,
        before,
        "an engine was asked"
    );
    let much = left(&reply);
    assert!((255..265).contains(&much), "{much}");
    // What no engine has computed costs nothing.
    keyed.door.fleet.rule(
        Rule::new(Act::Refuse {
            status: 400,
            message: None,
        })
        .times(1),
    );
    let reply = ask("k-blue", &prompt, 100);
    assert_eq!(reply.status, 400);
    assert!(
        ask("k-blue", &prompt, 210).status == 200,
        "it was given back"
    );

    let limited = |tenant: &str, limit: &str| {
        let series =
            format!(r#"cofferdam_tenant_limited_total{{tenant="{tenant}",limit="{limit}"}} "#);
        metric(&keyed.door, &series)
    };
    let counted = [
        limited("red", "requests"),
        limited("blue", "tokens"),
        limited("red", "tokens"),
    ];
    assert_eq!(counted, [1, 1, 0]);
    // A limit is a setting like a key.
    keyed.rename("red k-red rpm=none\n");
    keyed.when("k-blue", 401);
    assert_eq!(ask("k-red", &prompt, 5).status, 200);
}

/// The same salt of two tenants is two, at the engine; no client's own word gets there.
#[test]
fn a_salt_narrows_its_own_tenant() {
    let keyed = Keyed::new("red k-red\nblue k-blue\n", &[]);
    let prompt: Vec<u32> = (300..340).collect();
    for key in ["k-red", "k-blue"] {
        for salt in [json!(null), json!("mine"), json!("other"), json!("mine")] {
            let mut ask = tokens(&prompt, 2);
            ask["cache_salt"] = salt;
            keyed.door.api.with_key(key).post(COMPLETIONS, &ask).good();
        }
    }
    let arrivals = keyed.door.fleet.arrivals("single");
    let sent: Vec<&str> = arrivals
        .iter()
        .filter_map(|it| it.body["extra_key"].as_str())
        .collect();
    assert_eq!(sent.len(), 8);
    let different: std::collections::BTreeSet<_> = sent.iter().collect();
    assert_eq!(different.len(), 6, "{sent:?}");
    assert_eq!((sent[1], sent[5]), (sent[3], sent[7]));
    assert!(sent.iter().all(|salt| !["mine", "other"].contains(salt)));
}
