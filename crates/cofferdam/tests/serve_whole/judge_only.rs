//! `cofferdam gateway --judge-only ROUTER`: a fleet that keeps its router gets limits, tenants and an end
//! to broken transfers all the same. The router here is a scripted server that answers by itself; those
//! behind it are only asked what they take.

use crate::door::{ask_of, tokens};
use scripted::{Engine, Fleet, Rule, Script, Stage, What};
use serde_json::json;
use std::path::Path;
use testkit::Api;
use testkit::crowd::COMPLETIONS;
use testkit::process::{Running, wait_for};
use tokio::runtime::Runtime;

struct Sidecar {
    gateway: Running,
    api: Api,
    fleet: Fleet,
    runtime: Runtime,
}

impl Sidecar {
    fn start(router: Engine, words: &[&str]) -> Self {
        let [prefill, decode] = Engine::sglang_pair();
        let pair = [prefill.sized(4096, 2000), decode];
        Self::of(pair, router, &crate::small::model(4096), words)
    }

    fn of(pair: [Engine; 2], router: Engine, model: &Path, words: &[&str]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let [prefill, decode] = pair;
        let engines = [prefill, decode, router.named("router")];
        let fleet = runtime.block_on(Fleet::start(engines)).expect("free ports");
        let urls = ["prefill", "decode"].map(|name| fleet.url(name));
        let judged = format!("--judge-only={}", fleet.url("router"));
        let mut all = vec![judged.as_str(), "--measure-every=100ms"];
        all.extend(words);
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let (gateway, api) = ask_of(&urls, model, &all);
        Self {
            gateway,
            api,
            fleet,
            runtime,
        }
    }

    fn limit(&self) -> Option<u64> {
        self.api.get("/server_info").good()["limit"]["max_prompt_tokens"].as_u64()
    }

    /// Requests to generate: at the router, and at the others.
    fn arrived(&self) -> (usize, usize) {
        let at = |name| self.fleet.arrivals(name).len();
        (at("router"), at("prefill") + at("decode"))
    }
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|at| 300 + at % 700).collect()
}

#[test]
fn what_the_engines_take_is_judged_and_the_router_is_asked() {
    let it = Sidecar::start(Engine::sglang().sized(65_536, 100_000), &[]);
    assert_eq!(it.limit(), Some(1993), "of a prefill whose pool is 2,000");
    let info = it.api.get("/server_info").good();
    let how = info["limit"]["derivation"].to_string();
    assert!(
        how.contains("engine-0: prompts up to 1993: pool 2000"),
        "{how}"
    );
    let workers = info["workers"].as_array().unwrap();
    assert_eq!((workers.len(), &workers[0]["name"]), (1, &json!("router")));
    let answer = it.api.post(COMPLETIONS, &tokens(&prompt(1993), 5)).good();
    assert_eq!(answer["usage"]["prompt_tokens"], 1993);
    let right = json!({"tokens": scripted::expected(&prompt(1993), 5)});
    let right = it.api.post("/detokenize", &right).good();
    assert_eq!(answer["choices"][0]["text"], right["prompt"], "{answer}");
    assert_eq!(it.arrived(), (1, 0));
    let sent = it.fleet.arrivals("router").remove(0);
    assert!(
        !sent.fields.iter().any(|it| it.starts_with("bootstrap")),
        "{:?}",
        sent.fields
    );
    assert!(
        sent.body["extra_key"].is_string(),
        "its tenant's own domain"
    );

    let reply = it.api.post(COMPLETIONS, &tokens(&prompt(1994), 5));
    assert_eq!(
        (reply.status, reply.error().0.as_str()),
        (400, "context_length_exceeded")
    );
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let ask = json!({"messages": [{"role": "user", "content": "hi"}], "tools": tools});
    assert_eq!(it.api.post("/v1/chat/completions", &ask).status, 400);
    assert_eq!(it.arrived(), (1, 0), "nothing was sent on");
    it.gateway.stop();
}

/// Nothing is under way any more when the router speaks; until then its leg goes on without its client.
#[test]
fn a_leaver_does_not_make_the_router_break_a_transfer() {
    let router = Engine {
        longest: 4096,
        ..Engine::sglang().paced(400, 0, 20)
    };
    let it = Sidecar::start(router, &["--linger=60s"]);
    let ask = tokens(&prompt(40), 2000);
    let client = it.api.begin(COMPLETIONS, &ask).unwrap();
    wait_for("its arrival", || (it.arrived().0 == 1).then_some(()));
    drop(client);
    let left = wait_for("the end", || {
        let log = it.fleet.log();
        log.into_iter().find_map(|event| match event.what {
            What::Disconnected { stage } => Some(stage),
            _ => None,
        })
    });
    assert_eq!(
        left,
        Stage::Answering,
        "and not while the prompt was computed"
    );
    it.gateway.stop();
}

/// What an engine takes is measured again, also behind a router; where it is not known, nothing is sent.
#[test]
fn an_engine_that_is_another_one_changes_what_fits() {
    let it = Sidecar::start(Engine::sglang().sized(65_536, 100_000), &[]);
    let port = it.fleet.address("decode").port();
    it.runtime.block_on(it.fleet.kill("decode"));
    // What it took last counts while it is away.
    wait_for("that it is away", || {
        let info = it.api.get("/server_info").good();
        let how = info["limit"]["derivation"].to_string();
        how.contains("what it took last counts").then_some(())
    });
    assert_eq!(it.limit(), Some(1993));
    let [_, decode] = Engine::sglang_pair();
    let mut smaller = decode.sized(4096, 1000);
    smaller.port = port;
    let others = it.runtime.block_on(Fleet::start([smaller]));
    let _others = others.expect("its port is free");
    wait_for("the smaller pool", || (it.limit()? < 1000).then_some(()));
    let reply = it.api.post(COMPLETIONS, &tokens(&prompt(1500), 5));
    assert_eq!(reply.status, 400);
    it.gateway.stop();
}

#[test]
fn a_router_that_answers_with_another_prompt_s_count_is_not_believed() {
    let it = Sidecar::start(Engine::sglang().sized(65_536, 100_000), &[]);
    let count = scripted::Act::Count { prompt_tokens: 1 };
    it.fleet
        .script(Script::new([Rule::new(count).on("router")]));
    let reply = it.api.post(COMPLETIONS, &tokens(&prompt(40), 5));
    assert_eq!(
        (reply.status, reply.error().0.as_str()),
        (502, "integrity_wrong_count")
    );
    it.gateway.stop();
}

/// An engine behind the router says a limit that it does not have, and answers what is longer from other pages, rightly
/// counted: from here nothing of it can be seen, as is said at the start. Canaries see it, and the door closes.
#[test]
fn an_engine_that_lies_about_its_limit_is_caught_by_canaries_alone() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "red key-red\nops-a key-ops-a\n").unwrap();
    let words = [
        format!("--api-keys={}", keys.display()),
        format!("--incidents={}", dir.path().join("incidents.db").display()),
    ];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend([
        "--operator=ops-a",
        "--canaries",
        "--canary-every=5ms",
        "--canary-tokens=100000000",
    ]);
    let sized = |engine: Engine| engine.sized(1024, 2000);
    let router = Engine {
        copies: true,
        stale_over: 600,
        ..sized(Engine::sglang())
    };
    let pair = Engine::sglang_pair().map(sized);
    let it = Sidecar::of(pair, router, &crate::small::copying(1024), &words);
    let api = it.api.with_key("key-red");
    let ask = |n: u64| api.post(COMPLETIONS, &tokens(&crate::on_call::prompt(n, 1), 6));
    let refused = wait_for("a closed door", || {
        let reply = ask(700);
        match reply.status {
            200 => assert_eq!(reply.good()["usage"]["prompt_tokens"], 700),
            _ => return Some(reply.error().1),
        }
        None
    });
    assert!(refused.contains("private: incident "), "{refused}");
    assert_eq!(ask(100).status, 503, "nor is it open for shorter ones");
    it.gateway.stop();
}

/// An operator's quarantine of one engine closes all: the router cannot be told to leave it out. And what is behind
/// a router are engines of one kind.
#[test]
fn what_a_router_cannot_be_told_closes_all() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("quarantine");
    std::fs::write(&file, "").unwrap();
    let named = format!("--quarantine-file={}", file.display());
    let it = Sidecar::start(Engine::sglang().sized(65_536, 100_000), &[&named]);
    it.api.post(COMPLETIONS, &tokens(&prompt(40), 5)).good();
    let info = it.api.get("/server_info").good();
    let before = info["workers"][0]["epoch"].clone();
    let next = dir.path().join("next");
    std::fs::write(&next, format!("{} a fan is loud\n", it.fleet.url("decode"))).unwrap();
    std::fs::rename(&next, &file).unwrap();
    wait_for("a closed door", || {
        let reply = it.api.post(COMPLETIONS, &tokens(&prompt(40), 5));
        (reply.status == 503).then_some(())
    });
    let sent = it.arrived().0;
    assert_eq!(
        it.api.post(COMPLETIONS, &tokens(&prompt(40), 5)).status,
        503
    );
    assert_eq!(it.arrived().0, sent, "nobody was asked");
    std::fs::write(&next, "").unwrap();
    std::fs::rename(&next, &file).unwrap();
    wait_for("an open door", || {
        let reply = it.api.post(COMPLETIONS, &tokens(&prompt(40), 5));
        (reply.status == 200).then_some(())
    });
    // Another process behind the router is another life of it.
    let port = it.fleet.address("decode").port();
    it.runtime.block_on(it.fleet.kill("decode"));
    let [_, decode] = Engine::sglang_pair();
    let again = Engine {
        port,
        random_seed: 7,
        ..decode
    };
    let others = it.runtime.block_on(Fleet::start([again]));
    let _others = others.expect("its port is free");
    wait_for("another life", || {
        let info = it.api.get("/server_info").good();
        (info["workers"][0]["epoch"] != before).then_some(())
    });
    it.gateway.stop();
}

/// It starts, and takes nothing, while one of the engines has never said what it takes.
#[test]
fn an_engine_that_never_answered_shuts_the_door() {
    let runtime = Runtime::new().expect("a runtime");
    let engines = [
        Engine::sglang().named("router"),
        Engine::sglang().named("one"),
    ];
    let fleet = runtime.block_on(Fleet::start(engines)).expect("free ports");
    let port = format!("--port={}", crate::on_call::free_port());
    let model = crate::small::model(4096);
    let router = format!("--judge-only={}", fleet.url("router"));
    let one = fleet.url("one");
    let words = [
        "gateway",
        &port,
        "--model",
        model.to_str().unwrap(),
        &router,
        "--engine",
        &one,
    ];
    let nobody = ["--engine", "http://127.0.0.1:1", "--measure-every=100ms"];
    let gateway = Running::start(crate::COFFERDAM, &[&words[..], &nobody].concat());
    let api = Api {
        addr: port.replace("--port=", "127.0.0.1:"),
        key: None,
    };
    let said = wait_for("what is missing", || {
        let reply = api.try_get("/readyz").ok()?;
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        said.contains("engine-1, which is behind it")
            .then_some((reply.status, said))
    });
    assert_eq!(said.0, 503, "{}", said.1);
    assert_eq!(api.post(COMPLETIONS, &tokens(&prompt(40), 5)).status, 503);
    assert!(fleet.arrivals("router").is_empty());
    gateway.stop();
}
