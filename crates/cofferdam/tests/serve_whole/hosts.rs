//! A topology over TCP as between hosts: every part has its own address, only its own certificate,
//! and nothing of another part's file system.

use crate::line::Line;
use crate::network::{self, DECODE, GATEWAY, Host, PREFILL, plug, pull, sent, sent_again};
use crate::{COFFERDAM, at_rest, counter, ended, info_when, rest, serve, small, worker};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::Api;
use testkit::crowd::{self, COMPLETIONS, Shape, prompt};
use testkit::process::{Running, wait_for};

/// Parts that know each other by address. Dropped, they end.
pub struct Hosts {
    pub api: Api,
    gateway: Running,
    _workers: Vec<Running>,
    _dir: tempfile::TempDir,
}

impl Hosts {
    pub fn start(model: &Path, prefill: &[Host], decode: &[Host], gateway: Host) -> Hosts {
        let data = |host: Host| vec![format!("--data-listen=tcp:{}:0", host.ip)];
        Self::start_with(model, prefill, decode, gateway, &data)
    }

    /// [`Hosts::start`] with these words about its data port for each decode worker.
    fn start_with(
        model: &Path,
        prefill: &[Host],
        decode: &[Host],
        gateway: Host,
        data: &dyn Fn(Host) -> Vec<String>,
    ) -> Hosts {
        let dir = tempfile::tempdir().unwrap();
        let certs = dir.path().join("certs");
        let made = Command::new(COFFERDAM)
            .args(["certs", "new"])
            .arg(&certs)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let part = |host: Host, role: &str, words: Vec<String>| {
            let certs = own_certs(dir.path(), role);
            let first = [
                role.to_owned(),
                format!("--model={}", model.display()),
                format!("--certs={}", certs.display()),
            ];
            start(host, &[first.to_vec(), words].concat())
        };
        let listen = |host: Host| format!("--listen=tcp:{}:0", host.ip);
        let at = |role: &str, workers: &[Running]| -> Vec<String> {
            let word = |worker: &Running| format!("--{role}-at={}", worker.part_addr());
            workers.iter().map(word).collect()
        };
        let decodes = decode.iter().map(|&host| {
            part(
                host,
                "decode",
                [vec![listen(host), "--threads=1".into()], data(host)].concat(),
            )
        });
        let decodes: Vec<Running> = decodes.collect();
        let decode_at = at("decode", &decodes);
        let prefills = prefill.iter().map(|&host| {
            let words = [vec![listen(host), "--threads=1".into()], decode_at.clone()];
            part(host, "prefill", words.concat())
        });
        let prefills: Vec<Running> = prefills.collect();
        let http = vec![format!("--host={}", gateway.ip), "--port=0".into()];
        let words = [http, at("prefill", &prefills), decode_at].concat();
        let gateway = part(gateway, "gateway", words);
        let api = gateway.api();
        wait_for("every worker is connected", || {
            let ready = api.get("/readyz").status == 200;
            let info = api.get("/server_info").good();
            let up = info["workers"].as_array().expect("workers");
            let up = up.iter().filter(|it| it["epoch"] != "").count();
            (ready && up == prefills.len() + decodes.len()).then_some(())
        });
        Hosts {
            api,
            gateway,
            _workers: decodes.into_iter().chain(prefills).collect(),
            _dir: dir,
        }
    }
}

/// What a host of this role is given of the cluster's certificates (docs/topology.md).
fn own_certs(dir: &Path, role: &str) -> PathBuf {
    let own = dir.join(role);
    fs::create_dir_all(&own).unwrap();
    for file in ["ca.pem", &format!("{role}.pem"), &format!("{role}.key")] {
        fs::copy(dir.join("certs").join(file), own.join(file)).unwrap();
    }
    own
}

fn start(host: Host, words: &[String]) -> Running {
    let Some(namespace) = host.namespace else {
        return Running::start(COFFERDAM, words);
    };
    let inside = ["netns", "exec", namespace, COFFERDAM].map(str::to_owned);
    Running::start("ip", &[&inside, words].concat())
}

fn local(ip: &'static str) -> Host {
    let namespace = None;
    Host { namespace, ip }
}

/// Two of each, at addresses of their own: every answer is the one of the engine in one process.
#[test]
fn several_of_each_over_tcp_answer_as_one_process_does() {
    let model = small::model(256);
    let shape = Shape {
        size: 40,
        tenants: 1,
        max_prompt: 255,
        context: 256,
        max_new: 12,
        page_size: 16,
        seed: 3,
    };
    let questions = crowd::crowd(shape);
    let alone: Vec<_> = {
        let (_running, api) = serve(&model, &["--in-process"]);
        let asked = questions.iter().map(|question| question.ask(&api).0);
        asked.collect()
    };
    let prefill = [local("127.0.0.2"), local("127.0.0.3")];
    let decode = [local("127.0.0.4"), local("127.0.0.5")];
    let hosts = Hosts::start(&model, &prefill, &decode, local("127.0.0.1"));
    let api = &hosts.api;
    std::thread::scope(|scope| {
        let asked: Vec<_> = questions
            .iter()
            .map(|question| scope.spawn(|| question.ask(api).0))
            .collect();
        for ((question, alone), asked) in questions.iter().zip(&alone).zip(asked) {
            assert_eq!(asked.join().unwrap(), *alone, "{question:?}");
        }
    });
    // What a worker says of itself is a moment old: before its first request it is at rest too.
    let info = info_when(api, "everybody had a share of it and is at rest", |info| {
        let workers = info["workers"].as_array().expect("workers");
        let done = |it: &Value| counter(it, "batches") > 0 && at_rest(it) && ended(it);
        info["gateway"]["running"] == 0 && workers.iter().all(done)
    });
    let workers = info["workers"].as_array().expect("workers");
    assert_eq!(workers.len(), 4);
    for worker in workers {
        for name in ["integrity_faults", "dropped_grants", "attaches_refused"] {
            assert_eq!(counter(worker, name), 0, "{name}: {worker}");
        }
    }
    assert!(hosts.gateway.stop().status.success());
}

/// The data connection alone is cut, or goes silent and then on, while pages are on their way: the
/// client hears the right answer or an honest error, what was on the way is unsettled, and the next
/// request has a new arena. (*Data connection cut*; late writes find no socket.)
#[test]
fn a_data_connection_that_is_cut_or_held_up_costs_what_was_on_it() {
    let model = small::model(CONTEXT);
    let expected: Vec<Value> = {
        let (_running, api) = serve(&model, &["--in-process"]);
        (0..3).map(|owner| choices(&api, owner)).collect()
    };
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
        free.local_addr().unwrap()
    };
    let line = Line::to(port);
    let data = |_| {
        let words = [
            format!("--data-listen=tcp:{port}"),
            format!("--data-advertise=tcp:{}", line.at),
        ];
        words.to_vec()
    };
    let (prefill, decode) = ([local("127.0.0.2")], [local("127.0.0.3")]);
    let hosts = Hosts::start_with(&model, &prefill, &decode, local("127.0.0.1"), &data);
    let api = &hosts.api;
    assert_eq!(choices(api, 0), expected[0]);
    assert_eq!(
        line.connections(),
        1,
        "one for the arena, not one for a request"
    );

    for (owner, cut) in [(1, true), (2, false)] {
        let before = line.connections();
        line.hold_after(MIDDLE_BYTES);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| api.post(COMPLETIONS, &question(owner)));
            line.await_held();
            assert!(!asked.is_finished(), "in the middle");
            if cut {
                line.cut();
            }
            let reply = asked.join().unwrap();
            let (status, said) = (reply.status, reply.json());
            println!("cut: {cut}: {status} {}", said["error"]);
            match status {
                200 => assert_eq!(said["choices"], expected[owner]),
                502..=504 => assert!(said["error"]["code"].is_string(), "{said}"),
                other => panic!("{other}: {said}"),
            }
        });
        line.release(); // what was held up comes late
        assert_eq!(choices(api, owner), expected[owner]);
        assert!(line.connections() > before, "another arena");
    }
    let info = rest(api);
    for role in ["prefill", "decode"] {
        assert_eq!(
            counter(worker(&info, role), "integrity_faults"),
            0,
            "{info}"
        );
    }
    assert!(counter(worker(&info, "decode"), "fences") >= 2, "{info}");
}

/// Prefill, decode and gateway in three network namespaces, on a switch between them, and the
/// cables pulled. Needs the right to make namespaces: without it the test says so and is not run.
#[test]
fn three_hosts_and_a_pulled_cable() {
    if network::is_own("hosts::three_hosts_and_a_pulled_cable") {
        inside();
    }
}

const CONTEXT: usize = 4096;
/// What has crossed of a prompt when its cable is pulled; all of it is some megabytes.
const MIDDLE_BYTES: u64 = 200_000;

fn question(owner: usize) -> Value {
    json!({
        "prompt": prompt(owner, CONTEXT - 64, 16, 11), "max_tokens": 8, "temperature": 0,
        "ignore_eos": true, "logprobs": 1,
    })
}

fn choices(api: &Api, owner: usize) -> Value {
    api.post(COMPLETIONS, &question(owner)).good()["choices"].clone()
}

fn inside() {
    network::switch(&[PREFILL, DECODE, GATEWAY]);
    let model = small::model(CONTEXT);
    let expected: Vec<Value> = {
        let (_running, api) = serve(&model, &["--in-process"]);
        (0..8).map(|owner| choices(&api, owner)).collect()
    };
    let hosts = Hosts::start(&model, &[PREFILL], &[DECODE], GATEWAY);
    let api = &hosts.api;
    assert_eq!(choices(api, 0), expected[0]);

    // A cable that is back before anybody is given up costs time and nothing else.
    for (owner, host) in [(1, PREFILL), (2, DECODE)] {
        let reply = ask_and_pull(api, owner, host, || {
            // Until something was lost: its sender has tried again, in vain.
            let before = sent_again(PREFILL);
            wait_for("a second attempt", || {
                (sent_again(PREFILL) > before).then_some(())
            });
            plug(host);
        });
        assert_eq!(reply.0, 200, "{}", reply.1);
        assert_eq!(reply.1["choices"], expected[owner]);
    }
    rest(api);

    // One that stays away: a clear error that names the stage, and then everything as before.
    for (owner, host) in [(3, PREFILL), (4, DECODE)] {
        let (status, said) = ask_and_pull(api, owner, host, || {});
        println!("{} gone: {status} {said}", host.namespace.unwrap());
        assert!((502..=504).contains(&status), "{status} {said}");
        let code = said["error"]["code"].as_str().expect("a code");
        assert!(
            [
                "prefill_failed",
                "decode_failed",
                "prefill_timeout",
                "handoff_timeout",
                "decode_timeout",
                "unavailable",
            ]
            .contains(&code),
            "{said}"
        );
        plug(host);
        wait_for("the pair is back", || {
            (api.get("/readyz").status == 200).then_some(())
        });
        assert_eq!(choices(api, owner), expected[owner]);
    }
    let info = rest(api);
    for role in ["prefill", "decode"] {
        assert_eq!(
            counter(worker(&info, role), "integrity_faults"),
            0,
            "{info}"
        );
    }
    assert!(
        counter(worker(&info, "decode"), "fences") > 0,
        "what was on the way is unsettled: {info}"
    );
}

/// Asks, pulls the host's cable when the prompt's pages are on their way, does `then`; the answer.
fn ask_and_pull(api: &Api, owner: usize, host: Host, then: impl FnOnce()) -> (u16, Value) {
    let before = sent(PREFILL);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| api.post(COMPLETIONS, &question(owner)));
        wait_for("the middle of a transfer", || {
            let middle = sent(PREFILL) - before > MIDDLE_BYTES;
            assert!(!asked.is_finished(), "it was over before its middle");
            middle.then_some(())
        });
        pull(host);
        then();
        let reply = asked.join().unwrap();
        (reply.status, reply.json())
    })
}
