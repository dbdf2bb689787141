//! `cofferdam serve` as its users have it: processes of the built command, asked over HTTP.
//!
//! Everything runs on a random model of two layers with the real tokenizer, but for `golden`,
//! which has the real weights.

mod bench;
mod client;
mod crowd;
mod door;
mod door_soak;
mod faults;
mod forms;
mod golden;
mod heavy;
mod hostile;
mod hosts;
mod incident;
mod judge_only;
mod limits;
mod line;
mod long_line;
mod network;
mod on_call;
mod on_call_seen;
mod past_the_gateway;
mod probe;
mod small;
mod stops;
mod strangers;
mod tenants;
mod tls;
mod topology;

use serde_json::Value;
use std::path::Path;
use testkit::Api;
use testkit::process::{Running, wait_for};

/// The command under test.
const COFFERDAM: &str = env!("CARGO_BIN_EXE_cofferdam");

/// Starts `cofferdam serve` on a free port and waits until it is ready.
fn serve(model: &Path, words: &[&str]) -> (Running, Api) {
    let running = Running::start(COFFERDAM, &serve_words(model, words));
    let api = running.api();
    (running, api)
}

/// The words of `serve` for this model, on a free port; one compute thread unless said otherwise.
fn serve_words(model: &Path, words: &[&str]) -> Vec<String> {
    let model = model.to_str().expect("a path of ours is text");
    let first = ["serve", "--model", model, "--port=0", "--threads=1"];
    let twice = |name: &str| words.iter().any(|word| word.starts_with(name));
    let first = first.iter().filter(|word| match word.split_once('=') {
        Some((name, _)) => !twice(name),
        None => true,
    });
    first.chain(words).map(|word| (*word).to_owned()).collect()
}

/// What `/server_info` says of the only worker of this role.
fn worker<'a>(info: &'a Value, role: &str) -> &'a Value {
    let workers = info["workers"].as_array().expect("workers");
    workers
        .iter()
        .find(|it| it["role"] == role)
        .unwrap_or_else(|| panic!("no {role}: {info}"))
}

/// A counter of a worker, or of the engine itself.
fn counter(of: &Value, name: &str) -> u64 {
    let counters = of["counters"].as_array().expect("counters");
    let found = counters.iter().find(|it| it["name"] == name);
    found
        .and_then(|it| it["value"].as_u64())
        .unwrap_or_else(|| panic!("no {name}: {of}"))
}

/// Waits for a state of the whole server.
fn info_when(api: &Api, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for(what, || {
            last = api.get("/server_info").good();
            holds(&last).then(|| last.clone())
        })
    }));
    looked.unwrap_or_else(|_| panic!("never: {what}; at last {last:#}"))
}

/// Whether every page of this worker is free or cached, and all of the pool is there (H-10).
fn at_rest(worker: &Value) -> bool {
    let pages = |state: &str| worker["pages"][state].as_u64().expect("a count");
    let pool = worker["pool_tokens"].as_u64().expect("tokens");
    let page_size = worker["page_size"].as_u64().expect("tokens");
    pool > 0 && (pages("free") + pages("cached")) * page_size == pool
}

/// Waits until every page of every role is free or cached, and everything that was announced to
/// decode has ended there.
fn rest(api: &Api) -> Value {
    info_when(api, "every page free or cached", |info| {
        let workers = info["workers"].as_array().expect("workers");
        let all = workers.iter().all(at_rest);
        all && info["gateway"]["running"] == 0 && workers.iter().all(ended)
    })
}

/// Whether every attempt that this worker has seen has ended here.
fn ended(worker: &Value) -> bool {
    let ended = ["finished", "rejected", "refused", "cancelled", "failed"];
    let ended = ended.map(|how| counter(worker, &format!("attempts_{how}")));
    counter(worker, "attempts_seen") == ended.iter().sum::<u64>()
}
