//! Answers that are held to a form, by both engines of the command.

use crate::{rest, serve, small};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::Api;
use testkit::process::send;

const CHAT: &str = "/v1/chat/completions";
/// How the engine runs: prefill and decode, or all in one process.
const ENGINES: [&[&str]; 2] = [
    &["--pool-tokens=20000"],
    &["--in-process", "--pool-tokens=20000"],
];

fn ask(schema: &Value, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Say it."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
        "temperature": 1.5,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

fn said(answer: &Value, choice: usize) -> (&str, &str) {
    let choice = &answer["choices"][choice];
    let text = choice["message"]["content"].as_str().expect("a content");
    (text, choice["finish_reason"].as_str().expect("a reason"))
}

fn judge(schema: &Value, text: &str) {
    let options = jsonschema::options().should_validate_formats(true);
    let validator = options.build(schema).unwrap();
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?} of {schema}"));
    let problem = validator.validate(&value).err();
    assert!(problem.is_none(), "{problem:?}: {text:?} of {schema}");
}

/// Asks for answers to all schemas, eight at a time, so that many forms are in one batch.
fn crowd(api: &Api, schemas: &[Value]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(schema) = schemas.get(n) else {
                        return;
                    };
                    let answer = api.post(CHAT, &ask(schema, json!({"seed": n}))).good();
                    let (text, reason) = said(&answer, 0);
                    assert_eq!(reason, "stop", "{n}: {text:?} of {schema}");
                    judge(schema, text);
                }
            });
        }
    });
}

#[test]
fn a_thousand_random_schemas_are_kept_to() {
    let model = small::model(4096);
    let schemas: Vec<Value> = testkit::schemas(2).take(1_000).collect();
    for (words, schemas) in ENGINES.into_iter().zip(schemas.chunks(500)) {
        let (_running, api) = serve(&model, words);
        crowd(&api, schemas);
        rest(&api);
    }
}

/// A field of the schema in which everything that can be random is.
fn mixed() -> Value {
    json!({
        "type": "object",
        "properties": {
            "who": {"type": "string", "enum": ["red", "blue"]},
            "n": {"type": "integer", "minimum": 1, "maximum": 99},
            "words": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
        },
        "required": ["who", "n", "words"],
        "additionalProperties": false,
    })
}

#[test]
fn several_answers_streams_logprobs_seeds_and_both_engines_agree() {
    let model = small::model(4096);
    let more = json!({"n": 3, "seed": 7, "logprobs": true, "top_logprobs": 2});
    let mut answers = Vec::new();
    for words in ENGINES {
        let (_running, api) = serve(&model, words);
        let whole = api.post(CHAT, &ask(&mixed(), more.clone())).good();
        for choice in 0..3 {
            let (text, reason) = said(&whole, choice);
            assert_eq!(reason, "stop");
            judge(&mixed(), text);
            let logs = whole["choices"][choice]["logprobs"]["content"]
                .as_array()
                .unwrap();
            let tokens = logs.iter().map(|it| it["token"].as_str().unwrap());
            assert_eq!(
                tokens.collect::<String>(),
                text,
                "a figure for each token shown"
            );
            // What the model says of it among all tokens, whatever the form leaves.
            let likeliest = logs
                .iter()
                .map(|it| it["top_logprobs"][0]["token"] == it["token"]);
            assert!(
                { likeliest }.any(|same| !same),
                "the form has chosen for once"
            );
        }
        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let (events, done) = api.stream(CHAT, &ask(&mixed(), streamed)).rest();
        assert!(done);
        let text = |choice: usize| -> String {
            let of = events.iter().map(|event| &event["choices"][0]);
            let of = of.filter(|it| it["index"] == choice);
            of.filter_map(|it| it["delta"]["content"].as_str())
                .collect()
        };
        let all: Vec<String> = (0..3).map(text).collect();
        let whole: Vec<&str> = (0..3).map(|choice| said(&whole, choice).0).collect();
        assert_eq!(all, whole);
        answers.push(all);
    }
    assert_eq!(answers[0], answers[1], "both engines say the same");
}

#[test]
fn an_answer_that_is_cut_says_so_and_other_forms_are_kept_to() {
    let model = small::model(4096);
    for words in ENGINES {
        let (_running, api) = serve(&model, words);
        let cut = api
            .post(CHAT, &ask(&mixed(), json!({"max_tokens": 4})))
            .good();
        assert_eq!(said(&cut, 0).1, "length");
        assert_eq!(cut["usage"]["completion_tokens"], 4);
        assert!(serde_json::from_str::<Value>(said(&cut, 0).0).is_err());
        // What it should be at least does not lead it out of its form, and its end comes all the same.
        let more = json!({"min_tokens": 200, "max_tokens": 400, "ignore_eos": true});
        let whole = api.post(CHAT, &ask(&mixed(), more)).good();
        assert_eq!(said(&whole, 0).1, "stop");
        judge(&mixed(), said(&whole, 0).0);

        let bare = |form: Value| {
            let body = json!({"prompt": "Say it.", "max_tokens": 60, "seed": 3});
            let mut body = body.as_object().unwrap().clone();
            body.extend(form.as_object().unwrap().clone());
            let answer = api.post("/v1/completions", &Value::Object(body)).good();
            let choice = answer["choices"][0].clone();
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            choice["text"].as_str().unwrap().to_owned()
        };
        let any = bare(
            json!({"response_format": {"type": "json_schema", "json_schema":
            {"name": "a", "schema": {"type": "boolean"}}}}),
        );
        assert!(["true", "false"].contains(&any.trim()), "{any:?}");
        let one = bare(json!({"structured_outputs": {"choice": ["left", "ri\"ght"]}}));
        assert!(["left", "ri\"ght"].contains(&one.as_str()), "{one:?}");
        let date = bare(json!({"structured_outputs": {"regex": "20[0-9]{2}-[01][0-9]"}}));
        assert_eq!(
            (date.len(), &date[..2], &date[4..5]),
            (7, "20", "-"),
            "{date:?}"
        );
        assert_eq!(bare(json!({"regex": "(ab){2}"})), "abab");
        let grammar = "start: \"(\" start \")\" | \"x\"";
        let nested = bare(json!({"structured_outputs": {"grammar": grammar},
                                 "logit_bias": {"24": -100}}));
        let depth = nested.len() / 2;
        assert_eq!(
            nested,
            format!("{}x{}", "(".repeat(depth), ")".repeat(depth))
        );
        rest(&api);
    }
}

/// A client's own grammar that leads to where nothing can follow: its request ends by that name, whole or
/// in a stream, and it is the client's fault.
#[test]
fn a_form_that_leads_nowhere_ends_its_own_request() {
    let model = small::model(4096);
    let grammar = "start: \"x\" tail\ntail: tail \"y\"";
    let body =
        json!({"prompt": "Say it.", "structured_outputs": {"grammar": grammar}, "max_tokens": 200});
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    for words in ENGINES {
        let (_running, api) = serve(&model, words);
        let reply = api.post("/v1/completions", &body);
        let error = reply.json()["error"].clone();
        assert_eq!(
            (reply.status, &error["code"]),
            (400, &json!("form_not_kept"))
        );
        assert_eq!(error["type"], "invalid_request_error");

        let (events, done) = api.stream("/v1/completions", &streamed).rest();
        assert!(!done, "an answer that broke off does not look whole");
        let (last, said) = events.split_last().unwrap();
        let said: String = { said.iter() }
            .map(|event| event["choices"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!((said.as_str(), &last["error"]), ("x", &error));
        rest(&api);
    }
}

/// Whoever is not held to a form is answered as if nobody were.
#[test]
fn neighbours_of_a_batch_keep_to_their_own_forms() {
    let model = small::model(4096);
    let free = json!({"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": true});
    let red = json!({"type": "object", "properties": {"red": {"type": "string", "minLength": 30, "maxLength": 60}},
                     "required": ["red"], "additionalProperties": false});
    let blue = json!({"type": "array", "items": {"enum": ["blue", "navy"]}, "minItems": 12, "maxItems": 20});
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "red k-red\nblue k-blue\nfree k-free\n").unwrap();
    let keys = format!("--api-keys={}", keys.display());
    for words in ENGINES {
        let (_running, api) = serve(&model, &[words, &[keys.as_str()]].concat());
        let alone = api.with_key("k-free").post("/v1/completions", &free).good();
        std::thread::scope(|scope| {
            for (key, schema) in [("k-red", &red), ("k-blue", &blue)] {
                for seed in 0..6 {
                    let api = api.with_key(key);
                    scope.spawn(move || {
                        let answer = api.post(CHAT, &ask(schema, json!({"seed": seed}))).good();
                        judge(schema, said(&answer, 0).0);
                    });
                }
            }
            let beside = api.with_key("k-free").post("/v1/completions", &free).good();
            assert_eq!(beside["choices"], alone["choices"]);
        });
        rest(&api.with_key("k-free"));
    }
}

/// A pool that is too small for all of them: who gives way goes on where it was in its form.
#[test]
fn an_answer_that_was_put_back_goes_on_in_its_form() {
    let model = small::model(4096);
    let (_running, api) = serve(&model, &["--pool-tokens=1024", "--max-context=512"]);
    let body = |seed: usize| {
        json!({
            "messages": [{"role": "user", "content": "Say it."}], "seed": seed,
            "structured_outputs": {"regex": "(ab|cd){300}"},
        })
    };
    let alone: Vec<Value> = (0..6)
        .map(|seed| api.post(CHAT, &body(seed)).good())
        .collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let asked = |seed| {
            let api = &api;
            scope.spawn(move || api.post(CHAT, &body(seed)).good())
        };
        let asked: Vec<_> = (0..6).map(asked).collect();
        asked.into_iter().map(|it| it.join().unwrap()).collect()
    });
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(alone["choices"], together["choices"]);
        let (text, reason) = said(together, 0);
        let pairs = text.as_bytes().chunks(2);
        assert!(
            { pairs }.all(|pair| pair == b"ab" || pair == b"cd"),
            "{text}"
        );
        assert_eq!((text.len(), reason), (600, "stop"));
    }
    let info = rest(&api);
    let put_back = crate::counter(&info, "put_backs");
    assert!(put_back > 0, "nobody gave way: {info}");
}

#[test]
fn what_nobody_can_be_held_to_is_refused_before_anything_is_taken() {
    let model = small::model(4096);
    let (_running, api) = serve(&model, &[]);
    let refused = |body: &Value, param: &str, words: &str| {
        let reply = api.post(CHAT, body);
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, error["param"].as_str()),
            (400, Some(param)),
            "{error}"
        );
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
    };
    let schema = "response_format.json_schema.schema";
    let inside = json!({"properties": {"a": {"not": {}}}});
    refused(
        &ask(&inside, json!({})),
        schema,
        "at `#/properties/a`: `not` is not implemented",
    );
    let long = json!({"enum": ["x".repeat(70_000)]});
    refused(&ask(&long, json!({})), schema, "at most 65536 bytes");
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"items": deep});
    }
    refused(&ask(&deep, json!({})), schema, "brackets deep");
    let two = ask(&json!({}), json!({"regex": "a"}));
    refused(&two, "regex", "no other form beside it");
    let info = rest(&api);
    for role in ["prefill", "decode"] {
        let seen = crate::counter(crate::worker(&info, role), "attempts_seen");
        assert_eq!(seen, 0, "{role} has heard of none");
    }
}

/// Decode is killed in the midst of an answer: a broken stream, and never a whole one that is no JSON.
#[test]
fn a_lost_decode_is_an_error_and_never_half_an_answer() {
    let model = small::model(4096);
    let (running, api) = serve(&model, &[]);
    let schema = json!({"type": "array", "items": {"type": "integer"}, "minItems": 900});
    let mut events = api.stream(CHAT, &ask(&schema, json!({"stream": true})));
    events.next_event().unwrap().expect("a first event");
    let whole = {
        let (api, body) = (&api, ask(&schema, json!({})));
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || api.post(CHAT, &body));
            crate::info_when(api, "both run", |info| info["gateway"]["running"] == 2);
            send(running.part("decode"), rustix::process::Signal::KILL);
            asked.join().unwrap()
        })
    };
    assert!(whole.status >= 500, "{}: {}", whole.status, whole.json());
    let (said, done) = events.rest();
    assert!(!done, "a broken stream has no [DONE]");
    assert!(said.last().expect("it says why")["error"].is_object());
}
