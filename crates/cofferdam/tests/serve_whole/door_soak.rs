//! Engines that go wrong at random behind the built command, under load with leavers: every answer is
//! right or an error that is named, and afterwards everything is as it was.
//!
//! `COFFERDAM_DOOR_SOAK_SECONDS` says for how long (default 5), `SEED` decides what happens.

use crate::COFFERDAM;
use scripted::{Act, Engine, Fleet, Rule, Script};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use testkit::process::{Running, wait_for};
use testkit::{Api, memory};
use tokio::runtime::Runtime;

/// What a client may be told, besides the right answer.
const TOLD: [&str; 11] = [
    "prefill_failed",
    "decode_failed",
    "prefill_timeout",
    "decode_timeout",
    "integrity_wrong_count",
    "integrity_anothers_answer",
    "over_capacity",
    "queue_full",
    "unavailable",
    "invalid_request",
    "draining",
];

/// Numbers that are the same for a seed.
struct Dice(AtomicU64);

impl Dice {
    fn below(&self, n: u64) -> u64 {
        let at = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let at = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let at = (at ^ (at >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (at ^ (at >> 31)) % n
    }
}

fn act(dice: &Dice) -> Act {
    let status = [400, 404, 429, 500, 503][dice.below(5) as usize];
    match dice.below(13) {
        0..=2 => Act::Refuse {
            status,
            message: None,
        },
        3 => Act::Fail {
            status,
            message: None,
        },
        4 => Act::Hang,
        5 => Act::Drop,
        6 => Act::Cut,
        7 => Act::Stall,
        8 => Act::Nonsense,
        9 => Act::Twice,
        10 => Act::Deaf,
        11 => Act::OtherId,
        _ => Act::NoUsage,
    }
}

/// Something goes wrong, at one engine, for one or a few requests; now and then a process dies.
async fn disturb(fleet: &Fleet, dice: &Dice) {
    // What did not happen for want of requests does not wait for those that come later.
    if dice.below(2) == 0 {
        fleet.script(Script::default());
    }
    let names = ["a-prefill", "a-decode", "b-prefill", "b-decode"];
    let name = names[dice.below(4) as usize];
    match dice.below(10) {
        0 => {
            fleet.kill(name).await;
            fleet.revive(name).await.expect("its port is free");
        }
        1 if name.ends_with("prefill") => {
            fleet.rule(Rule::new(Act::Incident).on(name).nth(1));
        }
        _ => fleet.rule(Rule::new(act(dice)).on(name).nth(1 + dice.below(3))),
    }
}

struct Soak {
    api: Api,
    dice: Dice,
    told: Mutex<BTreeMap<String, u64>>,
    more: Condvar,
    end: Instant,
}

impl Soak {
    fn client(&self) {
        while Instant::now() < self.end {
            let n = 3 + self.dice.below(60) as u32;
            let seed = self.dice.below(1_000) as u32;
            let prompt: Vec<u32> = (0..n).map(|at| 300 + (seed * 31 + at * 7) % 700).collect();
            let stream = self.dice.below(2) == 0;
            let ask = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0,
                "ignore_eos": true, "stream": stream});
            if self.dice.below(6) == 0 {
                self.leave(&ask);
                continue;
            }
            let (how, text) = self.ask(&ask, stream);
            if how == "answered" {
                let right = scripted::expected(&prompt, 6);
                let right = self
                    .api
                    .post("/detokenize", &json!({"tokens": right}))
                    .good();
                assert_eq!(Some(text.as_str()), right["prompt"].as_str(), "{ask}");
            } else {
                assert!(TOLD.contains(&how.as_str()), "{how}: {text}");
            }
            *self
                .told
                .lock()
                .expect("nobody panics with it")
                .entry(how)
                .or_default() += 1;
            self.more.notify_all();
        }
    }

    /// How it ended, and the words.
    fn ask(&self, ask: &Value, stream: bool) -> (String, String) {
        if !stream {
            let reply = self.api.post("/v1/completions", ask);
            if reply.status != 200 {
                return reply.error();
            }
            let text = reply.json()["choices"][0]["text"]
                .as_str()
                .map(str::to_owned);
            return ("answered".into(), text.expect("words"));
        }
        let pending = self.api.begin("/v1/completions", ask).expect("it listens");
        let events = match pending.events() {
            Ok(events) => events,
            Err(refused) => {
                let said = refused.to_string();
                let code = TOLD.iter().find(|code| said.contains(*code));
                return (code.unwrap_or(&"?").to_string(), said);
            }
        };
        let (events, whole) = events.rest();
        let mut text = String::new();
        for event in &events {
            if let Some(code) = event["error"]["code"].as_str() {
                return (code.to_owned(), event.to_string());
            }
            text += event["choices"][0]["text"].as_str().unwrap_or_default();
        }
        match whole {
            true => ("answered".into(), text),
            false => ("broken off".into(), text),
        }
    }

    /// Waits until so many more requests have ended, or the soak has.
    fn wait_for_answers(&self, more: u64) {
        let told = self.told.lock().expect("nobody panics with it");
        let enough = told.values().sum::<u64>() + more;
        let left = self.end.saturating_duration_since(Instant::now());
        let fewer = |told: &mut BTreeMap<String, u64>| told.values().sum::<u64>() < enough;
        drop(self.more.wait_timeout_while(told, left, fewer));
    }

    fn leave(&self, ask: &Value) {
        let body = ask.to_string();
        let mut stream = TcpStream::connect(&self.api.addr).expect("it listens");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        // At once, or when something of the answer has come, or the refusal.
        if self.dice.below(2) == 0 {
            let patience = Some(Duration::from_secs(5));
            stream.set_read_timeout(patience).expect("a time");
            let _ = stream.read(&mut [0; 64]);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |it| it.parse().expect("a number"))
}

#[test]
fn engines_go_wrong_at_random_and_every_answer_is_right_or_an_error() {
    let weights = crate::small::model(4096);
    let (seconds, seed) = (number("COFFERDAM_DOOR_SOAK_SECONDS", 5), number("SEED", 1));
    let runtime = Runtime::new().expect("a runtime");
    let pairs = ["a", "b"].map(|pair| {
        Engine::sglang_pair().map(|engine| {
            let name = format!("{pair}-{}", engine.name);
            engine.named(&name).paced(3, 2, 1)
        })
    });
    let fleet = runtime
        .block_on(Fleet::start(pairs.into_iter().flatten()))
        .expect("free ports");
    let model: &Path = &weights;
    let mut words: Vec<String> = ["gateway", "--port=0", "--measure-every=100ms"]
        .map(str::to_owned)
        .to_vec();
    words.push(format!("--model={}", model.display()));
    words.extend(
        [
            "prefill-within=1s",
            "silence=300ms",
            "settle=100ms",
            "linger=1s",
        ]
        .map(|it| format!("--{it}")),
    );
    for name in ["a-prefill", "a-decode", "b-prefill", "b-decode"] {
        let port = fleet.engine(name).bootstrap_port;
        words.push(format!("--engine={}#bootstrap={port}", fleet.url(name)));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let gateway = Running::start(COFFERDAM, &words);
    let addr = gateway.line_from(0, "that it is ready", |line| {
        let said: Value = serde_json::from_str(line).ok()?;
        said["ready"]["addr"].as_str().map(str::to_owned)
    });
    let soak = Soak {
        api: Api { addr, key: None },
        dice: Dice(AtomicU64::new(seed)),
        told: Mutex::default(),
        more: Condvar::new(),
        end: Instant::now() + Duration::from_secs(seconds),
    };
    let tenth = Instant::now() + Duration::from_secs(seconds) / 10;
    let mut early = None;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| soak.client());
        }
        while Instant::now() < soak.end {
            runtime.block_on(disturb(&fleet, &soak.dice));
            soak.wait_for_answers(20);
            if early.is_none() && Instant::now() >= tenth {
                early = memory::resident(gateway.pid());
            }
            // What is logged is not what is looked at here.
            fleet.forget();
        }
    });
    let told = soak.told.lock().expect("nobody panics with it").clone();
    println!("{seconds} s, seed {seed}: {told:?}");
    let answered = told.get("answered").copied().unwrap_or(0);
    assert!(answered > 5 * seconds, "{told:?}");
    fleet.script(Script::default());
    wait_for("that nothing is left", || {
        let info = soak.api.get("/server_info").good();
        let counters = info["counters"].as_array().expect("counters");
        let unwanted = counters.iter().find(|it| it["name"] == "unwanted_attempts");
        let none = unwanted.is_some_and(|it| it["value"] == 0) && info["gateway"]["running"] == 0;
        none.then_some(())
    });
    // Whoever rests is on trial soon; then all are right again.
    wait_for("that all is well again", || {
        let ask = json!({"prompt": [300, 301, 302], "max_tokens": 6, "ignore_eos": true});
        (soak.api.post("/v1/completions", &ask).status == 200).then_some(())
    });
    let early = early.expect("a tenth has passed");
    let late = memory::resident(gateway.pid()).expect("it runs");
    println!(
        "memory: {} MiB after a tenth, {} MiB at the end",
        early >> 20,
        late >> 20
    );
    assert!(late < early + (16 << 20), "{early} bytes, then {late}");
}
