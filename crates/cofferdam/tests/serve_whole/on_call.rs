//! On call, as an operator has it: engines that leak as those of the incident did, a gateway that
//! closes their door, an incident, other engines, proofs, and the way back.

use crate::door::ask_of;
use crate::{COFFERDAM, small};
use scripted::{Act, Engine, Fleet, Rule, Script, copied};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use testkit::Api;
use testkit::crowd::COMPLETIONS;
use testkit::process::{Running, wait_for};
use tokio::runtime::Runtime;

const ANNA: &str = "key-of-anna-who-is-on-call";
const KEYS: &str = "red key-red\nblue key-blue\nops-a key-ops-a\nops-b key-ops-b\n";
/// From here on the engines of this test answer from other requests' pages.
pub(crate) const TRUE_POOL: u64 = 600;

pub(crate) struct OnCall {
    pub(crate) dir: tempfile::TempDir,
    certs: PathBuf,
    pub(crate) gateway: Running,
    pub(crate) api: Api,
    pub(crate) admin: Api,
    runtime: Runtime,
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) fn pair(stale_over: u64, seed: u64) -> [Engine; 2] {
    Engine::sglang_pair().map(|engine| Engine {
        copies: true,
        stale_over,
        random_seed: seed,
        ..engine.sized(1024, 2000)
    })
}

impl OnCall {
    pub(crate) fn start(fleet: &Fleet, runtime: Runtime, policy: &str, words: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let certs = dir.path().join("certs");
        let day = wire::control::certs::Validity::days(1);
        wire::control::certs::new_cluster(&certs, day).unwrap();
        let port = free_port();
        let all = [
            format!("--api-keys={}", write("keys", KEYS)),
            format!(
                "--admin-keys={}",
                write("admin", "anna key-of-anna-who-is-on-call\n")
            ),
            format!("--incident-policy={}", write("policy.toml", policy)),
            format!("--incidents={}", dir.path().join("incidents.db").display()),
            format!("--admin=127.0.0.1:{port}"),
        ];
        let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
        all.extend([
            "--operator=ops-a",
            "--operator=ops-b",
            "--measure-every=100ms",
        ]);
        for usual in ["--canary-every=5ms", "--canary-tokens=100000000"] {
            let flag = usual.split_inclusive('=').next().unwrap();
            if !words.iter().any(|it| it.starts_with(flag)) {
                all.push(usual);
            }
        }
        all.extend(words);
        let urls = ["prefill", "decode"].map(|name| fleet.url(name));
        let urls = [urls[0].as_str(), urls[1].as_str()];
        let model = small::copying(1024);
        let named = all.iter().find_map(|it| it.strip_prefix("--port="));
        let (gateway, api) = match named.map(|port| format!("127.0.0.1:{port}")) {
            None => ask_of(&urls, &model, &all),
            Some(addr) => {
                let mut words = vec!["gateway", "--model", model.to_str().unwrap()];
                words.extend(urls.iter().flat_map(|url| ["--engine", url]));
                words.extend(all);
                (Running::start(COFFERDAM, &words), Api { addr, key: None })
            }
        };
        let admin = Api {
            addr: format!("127.0.0.1:{port}"),
            key: Some(ANNA.to_owned()),
        };
        Self {
            dir,
            certs,
            gateway,
            api,
            admin,
            runtime,
        }
    }

    /// Files that tools read the keys of two operators from.
    fn write_operators_keys(&self) {
        for who in ["ops-a", "ops-b"] {
            std::fs::write(self.dir.path().join(who), format!("key-{who}\n")).unwrap();
        }
    }

    pub(crate) fn revive(&self, fleet: &Fleet, names: &[&str]) {
        self.runtime.block_on(async {
            for name in names {
                fleet.revive(name).await.expect("its port is free");
            }
        });
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("incidents.db")
    }

    pub(crate) fn state(&self) -> Value {
        let reply = self.admin.try_get("/state");
        let reply = reply.unwrap_or_else(|why| panic!("{why}: {:#?}", self.gateway.lines()));
        reply.good()["state"].take()
    }

    fn incident(&self, words: &[&str]) -> (i32, String) {
        let mut command = Command::new(COFFERDAM);
        command.arg("incident").args(words);
        command.arg("--incidents").arg(self.journal());
        let done = command.output().unwrap();
        // What it says besides (of a variable that it does not know) is no part of the answer.
        let text = match done.status.success() {
            true => done.stdout,
            false => [done.stdout, done.stderr].concat(),
        };
        (
            done.status.code().unwrap(),
            String::from_utf8(text).unwrap(),
        )
    }

    pub(crate) fn press(&self, act: &str, scope: &Value, reason: &str) -> (u16, Value) {
        let action = json!({"act": act, "scope": scope, "reason": reason});
        let reply = self.admin.post("/actions", &action);
        (reply.status, reply.json())
    }

    pub(crate) fn ask(&self, key: &str, prompt: &[u32]) -> testkit::Reply {
        let ask = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true});
        self.api.with_key(key).post(COMPLETIONS, &ask)
    }

    /// Reads the first words of an answer and leaves; the request's name.
    fn leaves(&self, fleet: &Fleet, prompt: &[u32]) -> String {
        fleet.rule(Rule::new(Act::Answer).on("decode").every_ms(20));
        let mut ask = json!({"prompt": prompt, "max_tokens": 300, "temperature": 0});
        ask["stream"] = json!(true);
        let mut events = self.api.with_key("key-red").stream(COMPLETIONS, &ask);
        let first = events.next_event().unwrap().expect("a first event");
        drop(events);
        fleet.script(Script::default());
        let first: Value = serde_json::from_str(&first).unwrap();
        let id = first["id"].as_str().unwrap();
        id.strip_prefix("cmpl-").unwrap_or(id).to_owned()
    }

    /// Asks, and says the request's name and whether the answer goes on with its prompt.
    fn asked(&self, key: &str, prompt: &[u32]) -> (String, bool) {
        let reply = self.ask(key, prompt);
        let answer = reply.good();
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
        let right = json!({"tokens": copied(prompt, 6)});
        let right = self
            .api
            .with_key("key-red")
            .post("/detokenize", &right)
            .good();
        let id = reply.headers["x-request-id"].clone();
        (id, answer["choices"][0]["text"] == right["prompt"])
    }
}

/// Of so many tokens, such that its end has stood before.
pub(crate) fn prompt(n: u64, of: u32) -> Vec<u32> {
    (0..n as u32).map(|at| 300 + of * 40 + at % 37).collect()
}

pub(crate) fn started(engines: [Engine; 2]) -> (Runtime, Fleet) {
    let runtime = Runtime::new().expect("a runtime");
    let fleet = runtime.block_on(Fleet::start(engines)).expect("free ports");
    (runtime, fleet)
}

/// The rehearsal: what the seeds' people did by hand within hours.
#[test]
fn a_leak_is_seen_closed_told_repaired_proven_and_restored() {
    let (runtime, fleet) = started(pair(TRUE_POOL, 1));
    let policy = "[restore]\ncanary_answers = 40\n";
    let it = OnCall::start(&fleet, runtime, policy, &["--canaries"]);
    let begin = Instant::now();
    // Customers ask before anything is known; some of them get other people's text, with a 200.
    let mut wrong = Vec::new();
    for n in 0..4 {
        let (_, right) = it.asked("key-red", &prompt(100 + n, 0));
        assert!(right);
        let (id, right) = it.asked("key-blue", &prompt(TRUE_POOL + 1 + 50 * n, 1));
        assert!(!right, "the incident: 200, and the words of another");
        wrong.push(id);
    }
    let (id, right) = it.asked("key-blue", &prompt(TRUE_POOL, 1));
    assert!(right, "{id}: at the true limit");
    // Whoever leaves in the middle of an answer has got the half of it.
    wrong.push(it.leaves(&fleet, &prompt(TRUE_POOL + 7, 1)));

    // A canary sees it, and the door is closed already.
    let refused = wait_for("a closed door", || {
        let reply = it.ask("key-red", &prompt(100, 0));
        (reply.status == 503).then(|| reply.error().1)
    });
    println!("seen and private after {:?}", begin.elapsed());
    assert!(refused.contains("private: incident "), "{refused}");
    assert_eq!(it.api.get("/readyz").status, 503);
    assert_eq!(
        it.ask("key-ops-a", &prompt(100, 2)).status,
        200,
        "somebody has to test"
    );

    // The incident says at whom, from which length on, and who got what was not theirs.
    let incident = wait_for("who is affected", || {
        let incident = it.state()["incidents"][0].clone();
        (incident["affected"] == wrong.len()).then_some(incident)
    });
    println!("affected known after {:?}", begin.elapsed());
    let id = incident["id"].as_str().unwrap().to_owned();
    let (code, shown) = it.incident(&["show", &id, "--json"]);
    assert_eq!(code, 0, "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let timeline = shown["timeline"].as_array().unwrap();
    let of = |kind: &str| timeline.iter().rfind(|it| it["kind"] == kind).unwrap();
    assert_eq!(of("affected")["requests"], json!(wrong));
    assert_eq!(of("trigger")["at_least_tokens"], TRUE_POOL + 1);
    assert_eq!(of("trigger")["clean_tokens"], TRUE_POOL);
    let urls = ["prefill", "decode"].map(|name| fleet.url(name));
    assert_eq!(incident["engines"], json!(urls));

    // Neither a wish nor time opens it.
    let model = json!({"kind": "model"});
    let (status, why) = it.press("restore", &model, "it looks well");
    assert_eq!(status, 409, "{why}");
    assert!(why.to_string().contains("no proof by probe"), "{why}");
    let (status, _) = it.press(
        "close_incident",
        &json!({"kind": "incident", "id": id}),
        "over",
    );
    assert_eq!(status, 409, "its door is closed");

    // Others come up in their place: other lives.
    let ports = ["prefill", "decode"].map(|name| fleet.engine(name).port);
    it.runtime.block_on(async {
        fleet.kill("prefill").await;
        fleet.kill("decode").await;
    });
    drop(fleet);
    let mut repaired = pair(0, 2);
    for (engine, port) in repaired.iter_mut().zip(ports) {
        engine.port = port;
        engine.version = "0.5.24".to_owned();
    }
    let _fleet = it
        .runtime
        .block_on(Fleet::start(repaired))
        .expect("their ports");
    wait_for("the other lives", || {
        let state = it.state();
        let engines = state["engines"].as_array().unwrap();
        engines
            .iter()
            .all(|it| it["version"] == "0.5.24")
            .then_some(())
    });
    assert_eq!(
        it.ask("key-red", &prompt(100, 0)).status,
        503,
        "they were not tested"
    );

    // Two proofs that do not share their blind spots: the reproduction fails now, and canaries.
    prove_by_probe(&it);
    println!("proven by probe after {:?}", begin.elapsed());
    let restored = wait_for("the proof by canaries", || {
        let (status, said) = it.press("restore", &model, "repaired: 0.5.24");
        (status == 200).then_some(said)
    });
    println!("restored after {:?}", begin.elapsed());
    assert!(restored.to_string().contains("is open again"), "{restored}");
    // The page does not ask for what is done, nor blame those that run for what others did.
    let headline = it.admin.get("/state").good()["headline"].take();
    assert_eq!(headline["level"], "attention", "{headline}");
    assert!(
        headline
            .to_string()
            .contains("was tested and is open again"),
        "{headline}"
    );
    let (_, right) = it.asked("key-blue", &prompt(TRUE_POOL + 100, 1));
    assert!(right);
    let (status, said) = it.press(
        "close_incident",
        &json!({"kind": "incident", "id": id}),
        "over",
    );
    assert_eq!(status, 200, "{said}");
    report(&it, &id, &wrong);
    it.gateway.stop();
}

fn prove_by_probe(it: &OnCall) {
    let path = |name: &str| it.dir.path().join(name);
    it.write_operators_keys();
    let evidence = path("evidence.txt");
    let done = Command::new(COFFERDAM)
        .arg("probe")
        .arg(format!("http://{}", it.api.addr))
        .arg("--key-a")
        .arg(path("ops-a"))
        .arg("--key-b")
        .arg(path("ops-b"))
        .args([
            "--suite=boundary,flood,load,abort",
            "--rate=0",
            "--at-once=4",
        ])
        .arg("--evidence-key")
        .arg(it.certs.join("evidence.key"))
        .arg("--evidence-out")
        .arg(&evidence)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}");
    let public = it.certs.join("evidence.pub");
    let words = ["prove", evidence.to_str().unwrap(), "--evidence-pub"];
    let words: Vec<&str> = words
        .into_iter()
        .chain([public.to_str().unwrap()])
        .collect();
    let (code, said) = it.incident(&words);
    assert_eq!((code, said.as_str()), (0, "a proof about 2 lives\n"));
}

/// Somebody who was not there reads what happened; and no line of it was changed.
fn report(it: &OnCall, id: &str, wrong: &[String]) {
    let (code, text) = it.incident(&["show", id]);
    assert_eq!(code, 0, "{text}");
    println!("{text}");
    for line in [
        "| time | after | what |",
        " from canary, at http://",
        "is private from now on, by policy",
        "it shows from prompts of 601 tokens on; with 600 it does not",
        ": life ",
        "proof by canary: ",
        "anna wanted: restore model copying-c1024: it looks well. Declined: ",
        "is open again, by anna: repaired: 0.5.24 (proofs: probe,",
        "incident closed by anna: over",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(wrong.iter().all(|it| text.contains(it)), "{text}");
    let title = format!(
        "# Incident {id}\n\nan answer had another tenant's canary in it: model copying-c1024\n"
    );
    assert!(
        text.starts_with(&title),
        "the gravest of what was found\n{text}"
    );
    assert!(
        text.contains("* **Affected:** 5 requests of blue (4), red (1)\n"),
        "{text}"
    );
    assert!(text.contains("looking for the shortest prompt: "), "{text}");
    assert!(
        !text.contains("step short: "),
        "short prompts were well\n{text}"
    );
    assert!(
        text.contains("* **Doors now:** none is closed because of it\n"),
        "{text}"
    );
    assert!(
        !text.contains("( (life"),
        "a proof names a life, and no engine: {text}"
    );
    let (code, said) = it.incident(&["verify"]);
    assert_eq!(code, 0, "{said}");
    a_cut_off_export_is_seen(it);
    let (_, html) = it.incident(&["show", id, "--html"]);
    assert!(
        html.starts_with("<!doctype html>") && html.contains("<td>"),
        "{html}"
    );
}

/// Whoever redirects the lines gets the hash beside them, without which a missing end is not seen.
fn a_cut_off_export_is_seen(it: &OnCall) {
    let done = Command::new(COFFERDAM)
        .args(["incident", "export", "--incidents"])
        .arg(it.journal())
        .output()
        .unwrap();
    let (exported, told) = [done.stdout, done.stderr]
        .map(|it| String::from_utf8(it).unwrap())
        .into();
    let head = told.trim_end().rsplit(' ').next().unwrap().to_owned();
    assert!(told.contains("SHA-256 of the last line"), "{told}");
    let verified = |text: &str, words: &[&str]| {
        let file = it.dir.path().join("exported.jsonl");
        std::fs::write(&file, text).unwrap();
        let all = [&["verify", file.to_str().unwrap()], words].concat();
        it.incident(&all).0
    };
    assert_eq!(verified(&exported, &["--head", &head]), 0, "{told}");
    let end = exported.trim_end().rfind('\n').unwrap() + 1;
    assert_eq!(verified(&exported[..end], &[]), 0, "good as far as it goes");
    assert_eq!(verified(&exported[..end], &["--head", &head]), 1);
    let other = exported.replacen("by\":\"anna", "by\":\"otto", 1);
    assert_eq!(verified(&other, &[]), 1);
}

/// The same from outside, with nothing but two keys: through a door that watches nothing itself.
#[test]
fn canaries_from_outside_find_the_same() {
    let (runtime, fleet) = started(pair(TRUE_POOL, 1));
    let it = OnCall::start(&fleet, runtime, "", &[]);
    let path = |name: &str| it.dir.path().join(name);
    it.write_operators_keys();
    let canary = |steps: &str| {
        let done = Command::new(COFFERDAM)
            .args(["canary", &format!("http://{}", it.api.addr), "--every=1ms"])
            .args(["--tokens=10000000", steps, "--key-a"])
            .arg(path("ops-a"))
            .arg("--key-b")
            .arg(path("ops-b"))
            .args([
                "--prefill",
                &fleet.url("prefill"),
                "--decode",
                &fleet.url("decode"),
            ])
            .arg("--incidents")
            .arg(it.journal())
            .output()
            .unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(text).unwrap())
    };
    // Short, load, abort: below what leaks, all is well, and how much that is worth is said.
    let (code, said) = canary("--steps=3");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("nothing found:") && said.contains("with 95 %"),
        "{said}"
    );
    let (code, said) = canary("--steps=5");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("FOUND canary_lost: step edge: prompts of 600 tokens"),
        "{said}"
    );
    // The gateway hears of it by the journal.
    wait_for("a closed door", || {
        (it.ask("key-red", &prompt(100, 0)).status == 503).then_some(())
    });
    let (_, listed) = it.incident(&["list"]);
    assert!(
        listed.contains("OPEN") && listed.contains("is private since"),
        "{listed}"
    );
    it.gateway.stop();
}

/// A gateway that ends and comes again knows what it knew.
#[test]
fn what_was_closed_is_closed_after_a_kill() {
    let (runtime, fleet) = started(pair(0, 1));
    let it = OnCall::start(&fleet, runtime, "", &[]);
    it.asked("key-red", &prompt(100, 0));
    let engine = json!({"kind": "engine", "name": fleet.url("decode")});
    let (status, said) = it.press("drain", &engine, "a fan is loud");
    assert_eq!(status, 200, "{said}");
    wait_for("nothing new", || {
        (it.ask("key-red", &prompt(100, 0)).status == 503).then_some(())
    });
    assert_eq!(
        it.ask("key-ops-a", &prompt(100, 0)).status,
        503,
        "drained for all"
    );
    // Another tool's signal closes doors too: the gateway hears of it by the journal.
    let url = fleet.url("prefill");
    let words = ["signal", "canary_mixup", "seen by a tool", "--engine", &url];
    let (code, said) = it.incident(&words);
    assert!(
        code == 0 && said.contains("is private from now on"),
        "{said}"
    );
    wait_for("the other door", || {
        let engines = it.state()["engines"].clone();
        (engines[0]["standing"]["access"] == "private").then_some(())
    });
    let (status, why) = it.press("drain", &engine, "again");
    assert_eq!(status, 409, "{why}");
    let (status, _) = it.press("drain", &engine, "  ");
    assert_eq!(status, 400, "a reason is needed");
    let journal = it.journal();
    wait_for("that it is written", || {
        (it.state()["journal"]["pending"] == 0).then_some(())
    });
    it.gateway.signal(rustix::process::Signal::KILL);
    it.gateway.end();
    let keys = it.dir.path().join("keys");
    let words = [
        format!("--incidents={}", journal.display()),
        format!("--api-keys={}", keys.display()),
        "--measure-every=100ms".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let urls = ["prefill", "decode"].map(|name| fleet.url(name));
    let port = free_port();
    let at = format!("--port={port}");
    let mut all = vec!["gateway", &at, "--model"];
    let model = small::copying(1024);
    all.push(model.to_str().unwrap());
    all.extend(urls.iter().flat_map(|url| ["--engine", url]));
    all.extend(words);
    let again = Running::start(COFFERDAM, &all);
    let api = Api {
        addr: format!("127.0.0.1:{port}"),
        key: None,
    };
    wait_for("that it is closed", || {
        let reply = api.try_get("/readyz").ok()?;
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        said.contains("draining: a fan is loud").then_some(())
    });
    again.stop();
}

fn disturb(it: &OnCall, fleet: &Fleet, round: usize) {
    let busy = Act::Refuse {
        status: [429, 503, 500][round % 3],
        message: None,
    };
    fleet.script(Script::new([
        Rule::new(busy).on("prefill").nth(2),
        Rule::new(Act::Answer).after_ms(50).nth(5),
    ]));
    if round.is_multiple_of(8) {
        it.runtime.block_on(async {
            fleet.kill("decode").await;
            fleet.revive("decode").await.expect("its port is free");
        });
    }
    fleet.forget();
}

/// Engines that are well, busy, slow and restarted for as many steps as a day has: nothing is found.
#[test]
fn a_day_of_canaries_at_engines_that_are_well_finds_nothing() {
    let (runtime, fleet) = started(pair(0, 1));
    let words = ["--canaries"];
    let it = OnCall::start(&fleet, runtime, "", &words);
    let steps = std::env::var("COFFERDAM_CANARY_REQUESTS").ok();
    let wanted: u64 = steps.map_or(400, |it| it.parse().expect("a number"));
    let (mut round, mut next) = (0, 0);
    // As many as were asked for, some at a time: each of these may take as long as anything may.
    for some in (0..wanted).step_by(400).map(|it| wanted.min(it + 400)) {
        wait_for("more canaries", || {
            let answered = it.state()["canaries"]["answered"].as_u64()?;
            if answered >= next {
                // Paced by what was answered: now busy, now slow, now and then another life.
                (round, next) = (round + 1, answered + 10);
                disturb(&it, &fleet, round);
            }
            (answered >= some).then_some(())
        });
    }
    fleet.script(Script::default());
    let state = it.state();
    println!("{} after {round} rounds", state["canaries"]);
    assert_eq!(state["canaries"]["seen"], 0, "{}", state["canaries"]);
    assert_eq!(state["incidents"], json!([]));
    assert_eq!(state["model"]["standing"]["access"], "open");
    let hour = &state["canaries"]["windows"][0];
    assert!(hour["one_in"].as_u64() >= Some(wanted / 4), "{hour}");
    it.gateway.stop();
}

/// Nobody looks or presses without a key, and two gateways do not keep one journal.
#[test]
fn what_is_the_operators_is_nobody_elses() {
    let (runtime, fleet) = started(pair(0, 1));
    let it = OnCall::start(&fleet, runtime, "", &[]);
    for api in [
        it.admin.with_key("key-red"),
        Api {
            key: None,
            ..it.admin.clone()
        },
    ] {
        assert_eq!(api.get("/state").status, 401);
    }
    assert_eq!(it.api.with_key(ANNA).get("/v1/models").status, 401);

    // Which engines answer is said by operators, who are told which have.
    let named = |key: &str, engines: &str| {
        let body = json!({"prompt": prompt(40, 0), "max_tokens": 2}).to_string();
        let mut socket = TcpStream::connect(&it.api.addr).unwrap();
        let (addr, bytes) = (&it.api.addr, body.len());
        write!(
            socket,
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\nauthorization: Bearer \
             {key}\r\nx-cofferdam-engines: {engines}\r\ncontent-type: application/json\r\ncontent-length: \
             {bytes}\r\n\r\n{body}"
        )
        .unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).unwrap();
        said
    };
    let said = named("key-red", "engine-0,engine-1");
    assert!(
        said.starts_with("HTTP/1.1 400 ") && said.contains("only operators"),
        "{said}"
    );
    let said = named("key-ops-a", "engine-0, engine-1");
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    assert!(
        said.contains("x-cofferdam-engines: engine-0,engine-1"),
        "{said}"
    );
    let said = named("key-ops-a", "engine-7");
    assert!(
        said.starts_with("HTTP/1.1 503 "),
        "none of that name: {said}"
    );
    let second = Command::new(COFFERDAM)
        .args(["gateway", "--port=0", "--model"])
        .arg(small::copying(1024))
        .args([
            "--engine",
            &fleet.url("prefill"),
            "--engine",
            &fleet.url("decode"),
        ])
        .arg("--incidents")
        .arg(it.journal())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("is kept by another gateway"), "{said}");

    it.gateway.stop();
}
