//! `cofferdam gateway --engine` as its users have it: the built command in front of scripted engines,
//! asked over HTTP.

use crate::COFFERDAM;
use scripted::{Act, Engine, Fleet, Rule};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use testkit::Api;
use testkit::process::{Running, wait_for};
use tokio::runtime::Runtime;

const COMPLETIONS: &str = "/v1/completions";

/// Engines, and a gateway in front of them that has measured them itself.
pub(crate) struct Door {
    pub(crate) fleet: Fleet,
    pub(crate) api: Api,
    pub(crate) gateway: Running,
    _runtime: Runtime,
}

pub(crate) fn start(engines: Vec<Engine>, model: &Path, words: &[&str]) -> Door {
    let runtime = Runtime::new().expect("a runtime");
    let names: Vec<String> = engines.iter().map(|engine| engine.name.clone()).collect();
    let fleet = runtime.block_on(Fleet::start(engines)).expect("free ports");
    let urls: Vec<String> = names.iter().map(|name| fleet.url(name)).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let (gateway, api) = ask_of(&urls, model, words);
    Door {
        fleet,
        api,
        gateway,
        _runtime: runtime,
    }
}

/// A gateway in front of engines that are there already.
pub(crate) fn ask_of(urls: &[&str], model: &Path, words: &[&str]) -> (Running, Api) {
    let model = model.to_str().expect("text");
    let mut all = vec!["gateway", "--model", model, "--port=0"];
    all.extend(urls.iter().flat_map(|url| ["--engine", url]));
    all.extend(words);
    let gateway = Running::start(COFFERDAM, &all);
    let addr = gateway.part_addr();
    (gateway, Api { addr, key: None })
}

pub(crate) fn tokens(prompt: &[u32], n: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true})
}

#[test]
fn a_pair_answers_and_the_edge_and_the_count_hold() {
    let weights = crate::small::model(4096);
    let [prefill, decode] = Engine::sglang_pair();
    let door = start(vec![prefill.sized(4096, 2000), decode], &weights, &[]);
    let limit = 1993; // as SGLang 0.5.19 and 0.5.23 with a pool of 2,000
    let info = door.api.get("/server_info").good();
    assert_eq!(info["limit"]["max_prompt_tokens"], limit, "{info}");
    let prompt: Vec<u32> = (0..limit as u32).map(|n| 300 + n % 700).collect();
    let answer = door.api.post(COMPLETIONS, &tokens(&prompt, 5)).good();
    assert_eq!(answer["usage"]["prompt_tokens"], limit);
    let right = scripted::expected(&prompt, 5);
    let text = door
        .api
        .post("/detokenize", &json!({"tokens": right}))
        .good();
    assert_eq!(answer["choices"][0]["text"], text["prompt"], "{answer}");
    let before = door.fleet.all().arrived;
    let long: Vec<u32> = prompt.iter().copied().chain([300]).collect();
    let reply = door.api.post(COMPLETIONS, &tokens(&long, 5));
    let (code, message) = reply.error();
    assert_eq!(
        (reply.status, code.as_str()),
        (400, "context_length_exceeded")
    );
    assert!(
        !message.contains("127.0.0.1"),
        "an engine's address: {message}"
    );
    assert_eq!(door.fleet.all().arrived, before, "no engine was asked");
    door.fleet.rule(Rule::new(Act::Incident).on("prefill"));
    for stream in [false, true] {
        let mut ask = tokens(&prompt[..40], 5);
        ask["stream"] = json!(stream);
        let reply = door.api.post(COMPLETIONS, &ask);
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, 502, "{text}");
        assert!(text.contains("integrity_wrong_count"), "{text}");
    }
}

#[test]
fn a_check_says_what_goes_together() {
    let weights = crate::small::model(4096);
    let runtime = Runtime::new().expect("a runtime");
    let fleet = runtime
        .block_on(Fleet::start(Engine::vllm_pair()))
        .expect("free ports");
    let model: &Path = &weights;
    let check = |engines: &[String]| {
        let mut command = Command::new(COFFERDAM);
        command.args(["gateway", "--check", "--model"]).arg(model);
        for engine in engines {
            command.args(["--engine", engine]);
        }
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said + &why)
    };
    let (prefill, decode) = (fleet.url("prefill"), fleet.url("decode"));
    let unnamed = check(&[prefill.clone(), decode.clone()]);
    assert_eq!(unnamed.0, Some(1), "{}", unnamed.1);
    assert!(
        unnamed.1.contains("name it prefill=URL or decode=URL"),
        "{}",
        unnamed.1
    );
    let named = check(&[format!("prefill={prefill}"), format!("decode={decode}")]);
    assert_eq!(named.0, Some(0), "{}", named.1);
    assert!(named.1.contains("takes prompts up to"), "{}", named.1);
    let nobody = check(&["http://127.0.0.1:9".into()]);
    assert_eq!(nobody.0, Some(1), "{}", nobody.1);
    let without = Command::new(COFFERDAM)
        .args(["gateway", "--engine", "http://127.0.0.1:9"])
        .output()
        .expect("it runs");
    let why = String::from_utf8_lossy(&without.stderr).into_owned();
    assert_eq!(without.status.code(), Some(2), "{why}");
    assert!(why.contains("--model"), "{why}");
}

/// Engines of others are given folders: the gateway reads the same one.
#[test]
fn a_folder_is_what_engines_and_gateway_are_given() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("Small-Llama");
    testkit::folder(&model, testkit::FolderKind::Llama);
    std::fs::write(model.join("config.json"), r#"{"vocab_size": 49152}"#).unwrap();
    let door = start(vec![Engine::sglang()], &model, &[]);
    let models = door.api.get("/v1/models").good();
    assert_eq!(models["data"][0]["id"], "Small-Llama", "{models}");
    let messages = json!([{"role": "user", "content": "hello <|end|>\n<|start|> world"}]);
    let ask = json!({"messages": messages, "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    let answer = door.api.post("/v1/chat/completions", &ask).good();
    let tokens = door
        .api
        .post("/tokenize", &json!({"messages": messages}))
        .good();
    assert_eq!(
        answer["usage"]["prompt_tokens"], tokens["count"],
        "{answer}"
    );
    let sent = &door.fleet.arrivals("single")[0].body["input_ids"];
    assert_eq!(*sent, tokens["tokens"]);
    let control = |text: &str| {
        let ids = door.api.post(
            "/tokenize",
            &json!({"prompt": text, "add_special_tokens": false}),
        );
        let id = ids.good()["tokens"][0].clone();
        sent.as_array()
            .unwrap()
            .iter()
            .filter(|it| **it == id)
            .count()
    };
    assert_eq!([control("<|start|>"), control("<|end|>")], [2, 1], "{sent}");
    assert_eq!(sent[0], 1, "BOS is the template's");

    // An engine that can be asked how it cuts texts is asked, and cuts them so.
    let theirs = dir.path().join("scripted");
    scripted::tokens::write_folder(&theirs, 4096).unwrap();
    let door = start(vec![Engine::llama()], &theirs, &[]);
    let text = " the hello <|end|> ü";
    let ask = json!({"prompt": text, "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    let answer = door.api.post(COMPLETIONS, &ask).good();
    let right = scripted::expected(&scripted::tokens::encode(text), 5);
    let right = scripted::tokens::decode(&right);
    assert_eq!(answer["choices"][0]["text"], right.as_str(), "{answer}");

    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    let path = model.to_str().unwrap();
    for words in [
        &["gateway", "--engine", "http://127.0.0.1:9"][..],
        &["serve"],
    ] {
        let output = Command::new(COFFERDAM)
            .args(words)
            .args(["--port=0", "--model", path])
            .output()
            .expect("it runs");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{why}");
        let expected = match words[0] {
            "serve" => "config.json: `model_type` is null; expected one of: llama,",
            _ => "tokenizer.json: is not in this folder",
        };
        assert!(why.contains(expected), "{why}");
    }
}

/// An engine that cuts texts into other tokens than the gateway gets nothing.
#[test]
fn another_tokenizer_is_found_before_traffic() {
    let weights = crate::small::model(4096);
    let runtime = Runtime::new().expect("a runtime");
    let fleet = runtime
        .block_on(Fleet::start([Engine::llama()]))
        .expect("a free port");
    let url = fleet.url("single");
    let model: &Path = &weights;
    let words = [
        "gateway",
        "--model",
        model.to_str().expect("text"),
        "--port=0",
        "--engine",
        &url,
    ];
    let gateway = Running::start(COFFERDAM, &words);
    gateway.line_from(0, "that it measured the engine", |line| {
        line.contains("engine measured").then_some(())
    });
    let said = gateway.lines().join("\n");
    assert!(said.contains("lengths=None"), "{said}");
    assert_eq!(fleet.all().arrived, 0);
}

/// Ranks of unequal pools, as measured: the longest prompt is that of the largest, and goes there. Of an SGLang
/// that was not seen to be told, and of a decode, the smallest counts.
#[test]
fn data_parallel_ranks_have_limits_of_their_own() {
    let weights = crate::small::model(4096);
    for (version, limit, named) in [("0.5.23", 1993, true), ("0.5.19", 593, false)] {
        let [prefill, decode] = Engine::sglang_pair();
        let prefill = Engine {
            more_pools: vec![600],
            version: version.into(),
            ..prefill.sized(4096, 2000)
        };
        let decode = Engine {
            more_pools: vec![7000],
            ..decode
        };
        let door = start(vec![prefill, decode], &weights, &[]);
        let info = door.api.get("/server_info").good();
        assert_eq!(info["limit"]["max_prompt_tokens"], limit, "{info}");
        let how = info["limit"]["derivation"].to_string();
        let says = ", by data-parallel rank up to 1993, 593";
        assert_eq!(how.contains(says), named, "{how}");
        let prompt: Vec<u32> = (0..limit).map(|n| 300 + n % 700).collect();
        for n in [594.min(prompt.len()), prompt.len(), 593] {
            let answer = door.api.post(COMPLETIONS, &tokens(&prompt[..n], 5)).good();
            assert_eq!(answer["usage"]["prompt_tokens"], n);
        }
        let legs = door.fleet.arrivals("prefill");
        let ranks: Vec<_> = legs
            .iter()
            .map(|it| it.body.get("routed_dp_rank"))
            .collect();
        match named {
            true => assert_eq!(ranks[..2], [Some(&json!(0)); 2]),
            false => assert_eq!(ranks, [None; 3]),
        }
        let long: Vec<u32> = (0..=limit).map(|n| 300 + n % 700).collect();
        assert_eq!(door.api.post(COMPLETIONS, &tokens(&long, 5)).status, 400);
    }
}

/// Tools, and whatever else tokens cannot carry: the engine writes the answer, and the prompt is still
/// counted.
#[test]
fn what_tokens_cannot_carry_is_handed_on_and_still_counted() {
    let weights = crate::small::model(4096);
    let door = start(Engine::sglang_pair().into(), &weights, &[]);
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {}}}]);
    let call = json!([{"id": "call_0", "type": "function",
        "function": {"name": "look", "arguments": "{\"where\": \"up\"}"}}]);
    let messages = json!([
        {"role": "user", "content": "what is there"},
        {"role": "assistant", "content": null, "tool_calls": call},
        {"role": "tool", "tool_call_id": "call_0", "content": "a star"},
    ]);
    let ask = json!({
        "messages": messages, "tools": tools, "tool_choice": "auto", "max_tokens": 5,
        "ignore_eos": true, "user": "somebody", "n": 2, "cache_salt": "mine",
    });
    let asked = json!({"messages": messages, "tools": tools});
    let prompt = door.api.post("/tokenize", &asked).good();
    let prompt: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).expect("ids");
    let right = scripted::tokens::decode(&scripted::expected(&prompt, 5));
    let answer = door.api.post("/v1/chat/completions", &ask).good();
    for at in 0..2 {
        let choice = &answer["choices"][at];
        assert_eq!(choice["index"], at, "{answer}");
        let said = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(said["arguments"], *right, "{answer}");
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        assert!(choice.get("matched_stop").is_none(), "{answer}");
    }
    let (usage, id) = (&answer["usage"], answer["id"].as_str().expect("an id"));
    assert_eq!(usage["prompt_tokens"], prompt.len(), "{answer}");
    assert_eq!(usage["completion_tokens"], 10, "{answer}");
    let arrived = ["prefill", "decode"].map(|name| door.fleet.arrivals(name));
    assert_eq!(arrived[0].len(), 2, "an answer each");
    for arrival in arrived.iter().flatten() {
        assert_eq!(arrival.path, "/v1/chat/completions");
        assert_eq!(arrival.prompt_tokens, prompt.len() as u64);
        let has = |name: &str| arrival.fields.iter().any(|it| it == name);
        assert!(has("tools") && has("tool_choice") && has("rid") && has("extra_key"));
        assert!(!has("user") && !has("cache_salt"), "{:?}", arrival.fields);
        assert!(!id.contains(arrival.rid.as_deref().expect("a name")));
    }
    let info = door.api.get("/server_info").good();
    let fields = info["text_path"]["fields"].as_array().expect("a list");
    assert!(fields.contains(&json!("tools")), "{info}");
    assert!(
        info.get("handoff").is_none(),
        "no promise for engines that are not ours"
    );
    let mut stream = ask;
    stream["stream"] = json!(true);
    stream["n"] = json!(1);
    stream["stream_options"] = json!({"include_usage": true});
    let reply = door.api.post("/v1/chat/completions", &stream);
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let events = text
        .split("\n\n")
        .filter_map(|it| it.strip_prefix("data: {"));
    let events = events.map(|it| serde_json::from_str::<Value>(&format!("{{{it}")).expect("JSON"));
    let events: Vec<Value> = events.collect();
    let arguments = events.iter().filter_map(|event| {
        event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str()
    });
    assert_eq!(arguments.collect::<String>(), right, "{text}");
    let usage = &events.last().expect("events")["usage"];
    assert_eq!(usage["completion_tokens"], 5, "{text}");
    assert!(!text.contains("\"id\":\"cd"), "an engine's name: {text}");
    let arrived = door.fleet.all().arrived;
    let mut long = json!({"messages": [{"role": "user", "content": "x y ".repeat(9_000)}]});
    long["tools"] = tools.clone();
    let reply = door.api.post("/v1/chat/completions", &long);
    assert_eq!(reply.error().0, "context_length_exceeded");
    let banned = json!({"messages": messages, "tools": tools, "bootstrap_room": 1});
    assert_eq!(
        door.api.post("/v1/chat/completions", &banned).error().0,
        "unknown_parameter"
    );
    let template = json!({"messages": messages, "tools": tools,
        "chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}"}});
    let refused = door.api.post("/v1/chat/completions", &template).error();
    assert_eq!(refused.0, "unsupported_parameter", "{refused:?}");
    assert_eq!(door.fleet.all().arrived, arrived, "no engine was asked");
    door.fleet.rule(Rule::new(Act::Incident).on("prefill"));
    stream["stream"] = json!(false);
    stream
        .as_object_mut()
        .expect("it is one")
        .remove("stream_options");
    let reply = door.api.post("/v1/chat/completions", &stream);
    assert_eq!(reply.error().0, "integrity_wrong_count");
}

/// Engines come and go by a file, which is taken over as a whole or not at all.
#[test]
fn engines_come_and_go_by_a_file() {
    let weights = crate::small::model(4096);
    let runtime = Runtime::new().expect("a runtime");
    let engines = ["one", "two"].map(|name| Engine::sglang().named(name));
    let fleet = runtime.block_on(Fleet::start(engines)).expect("free ports");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("engines");
    let write = |text: &str| {
        let new = folder.path().join("new");
        std::fs::write(&new, text).expect("room");
        std::fs::rename(&new, &file).expect("one file system");
    };
    let [one, two] = ["one", "two"].map(|name| fleet.url(name));
    write(&format!("# the first\n{one}\n"));
    let model: &Path = &weights;
    let words = [
        "gateway",
        "--model",
        model.to_str().expect("text"),
        "--port=0",
        "--engines-file",
        file.to_str().expect("text"),
        "--measure-every=50ms",
    ];
    let gateway = Running::start(COFFERDAM, &words);
    let addr = gateway.line_from(0, "that it is ready", |line| {
        let said: Value = serde_json::from_str(line).ok()?;
        said["ready"]["addr"].as_str().map(str::to_owned)
    });
    let api = Api { addr, key: None };
    let ask = || api.post(COMPLETIONS, &tokens(&[300, 301, 302], 3)).good();
    ask();
    let arrived = || ["one", "two"].map(|name| fleet.arrivals(name).len());
    assert_eq!(arrived(), [1, 0]);
    let says = |what: &str| {
        let what = what.to_owned();
        gateway.line_from(0, "what became of the file", |line| {
            line.contains(&what).then_some(())
        });
    };
    write(&format!("{one}\nhttp://127.0.0.1:1#weight=none\n"));
    says("the engines stay as they are");
    says("line 2");
    ask();
    assert_eq!(arrived(), [2, 0]);
    write(&format!("{two}#weight=2\n"));
    says("engine left");
    gateway.line_from(0, "that the other was measured", |line| {
        let measured = line.contains("engine measured") && line.contains("engine-1");
        (measured && line.contains("max_prompt")).then_some(())
    });
    ask();
    assert_eq!(arrived(), [2, 1]);
    // A pod that was made anew under the same address is another life.
    let life = || api.get("/server_info").good()["workers"][0]["epoch"].clone();
    let before = life();
    write(&format!("{two}#weight=2&pod=5c1d\n"));
    wait_for("another life", || (life() != before).then_some(()));
    std::fs::remove_file(&file).expect("it is there");
    says("No such file");
    ask();
    assert_eq!(arrived(), [2, 2]);
}

/// Two gateways of one fleet share nothing but the engines, and a file of those in quarantine: no name
/// that one gives is the other's, and what is closed is closed for both.
#[test]
fn two_gateways_share_engines_and_a_quarantine() {
    let weights = crate::small::model(4096);
    let runtime = Runtime::new().expect("a runtime");
    let pairs = ["a", "b"].map(|pair| {
        Engine::sglang_pair().map(|engine| {
            let name = format!("{pair}-{}", engine.name);
            engine.named(&name)
        })
    });
    let fleet = runtime
        .block_on(Fleet::start(pairs.into_iter().flatten()))
        .expect("free ports");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("quarantine");
    std::fs::write(&file, "").expect("room");
    let model: &Path = &weights;
    let mut words = vec![
        "gateway".to_owned(),
        format!("--model={}", model.display()),
        "--port=0".to_owned(),
        format!("--quarantine-file={}", file.display()),
        "--measure-every=50ms".to_owned(),
    ];
    for (name, group) in [
        ("a-prefill", 1),
        ("a-decode", 1),
        ("b-prefill", 2),
        ("b-decode", 2),
    ] {
        let port = fleet.engine(name).bootstrap_port;
        let url = fleet.url(name);
        words.push(format!("--engine={url}#group={group}&bootstrap={port}"));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let gateways = [0, 1].map(|_| Running::start(COFFERDAM, &words));
    let apis = gateways.each_ref().map(|gateway| {
        let addr = gateway.line_from(0, "that it is ready", |line| {
            let said: Value = serde_json::from_str(line).ok()?;
            said["ready"]["addr"].as_str().map(str::to_owned)
        });
        Api { addr, key: None }
    });
    let ask_all = || {
        std::thread::scope(|scope| {
            for api in &apis {
                for n in 0..12 {
                    scope.spawn(move || {
                        let prompt = [300 + n, 301, 302];
                        let answer = api.post(COMPLETIONS, &tokens(&prompt, 3)).good();
                        let right = scripted::expected(&prompt, 3);
                        let text = api.post("/detokenize", &json!({"tokens": right})).good();
                        assert_eq!(answer["choices"][0]["text"], text["prompt"]);
                    });
                }
            }
        });
    };
    ask_all();
    let all = fleet.all();
    assert_eq!((all.rooms_again, all.broken, all.arrived), (0, 0, 48));
    let new = folder.path().join("new");
    std::fs::write(
        &new,
        format!("{} INC-7: wrong text\n", fleet.url("a-decode")),
    )
    .expect("room");
    std::fs::rename(&new, &file).expect("one file system");
    for api in &apis {
        while !api.get("/server_info").good().to_string().contains("INC-7") {}
    }
    let before = fleet.counts("a-decode").arrived;
    ask_all();
    assert_eq!(
        fleet.counts("a-decode").arrived,
        before,
        "it is closed for both"
    );
    assert_eq!(fleet.all().arrived, 96);
    // With both pairs closed there is nobody to ask.
    let both = ["a-decode", "b-prefill"].map(|name| format!("{} INC-8\n", fleet.url(name)));
    std::fs::write(&new, both.concat()).expect("room");
    std::fs::rename(&new, &file).expect("one file system");
    for api in &apis {
        wait_for("that it is closed", || {
            let info = api.get("/server_info").good();
            let workers = info["workers"].as_array().expect("a list").iter();
            let closed = workers.filter(|it| it["readiness"].to_string().contains("INC-8"));
            (closed.count() == 2).then_some(())
        });
        let reply = api.post(COMPLETIONS, &tokens(&[300, 301], 3));
        assert_eq!(reply.error().0, "unavailable");
    }
}

/// What `kubectl get endpointslices -o json` printed, and a name with several addresses.
#[test]
fn engines_are_found_in_slices_and_behind_names() {
    let weights = crate::small::model(4096);
    let runtime = Runtime::new().expect("a runtime");
    let fleet = runtime
        .block_on(Fleet::start(Engine::sglang_pair()))
        .expect("free ports");
    let slice = |role: &str| {
        json!({
            "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("{role}-x"), "labels": {"role": role}},
            "ports": [{"name": "http", "port": fleet.address(role).port()}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": format!("{role}-0")}}],
        })
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("slices.json");
    let slices = json!({"items": [slice("prefill"), slice("decode")]});
    std::fs::write(&file, slices.to_string()).expect("room");
    let check = |words: &[&str]| {
        let mut command = Command::new(COFFERDAM);
        command.args(["gateway", "--check"]).args(words);
        let output = command.arg("--model").arg(&*weights).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said + &why)
    };
    let file = format!("--engines-file={}", file.display());
    let selectors = [
        "--prefill-selector=role=prefill",
        "--decode-selector=role=decode",
    ];
    let found = check(&[&file, selectors[0], selectors[1]]);
    assert_eq!(found.0, Some(0), "{}", found.1);
    for name in ["prefill", "decode"] {
        assert!(found.1.contains(&fleet.url(name)), "{}", found.1);
    }
    let half = check(&[&file, selectors[0], "--decode-selector=role=else"]);
    assert_eq!(half.0, Some(2), "{}", half.1);
    assert!(half.1.contains("picks none"), "{}", half.1);
    let named = ["prefill", "decode"].map(|name| {
        let port = fleet.address(name).port();
        format!("--engine=dns+http://localhost:{port}")
    });
    let found = check(&[&named[0], &named[1]]);
    assert_eq!(found.0, Some(0), "{}", found.1);
    assert!(found.1.contains(&fleet.url("prefill")), "{}", found.1);
    let nobody = check(&["--engine=dns+http://no-such-name.invalid:1"]);
    assert_eq!(nobody.0, Some(2), "{}", nobody.1);
    assert!(nobody.1.contains("no-such-name.invalid"), "{}", nobody.1);
}
