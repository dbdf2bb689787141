//! Whatever a client sends, the answer is a status below 500 or a request that the engine was
//! given; nothing panics.

use gateway::engine::{Finish, Sampling};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support::{CONTEXT, Client, Server, VOCAB, request};

const FIELDS: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "n",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "echo",
    "best_of",
    "suffix",
    "user",
    "tools",
    "response_format",
    "ignore_eos",
    "tokens",
    "unheard_of",
];

const PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..300).prop_map(Value::from),
        any::<f64>()
            .prop_map(|f| serde_json::Number::from_f64(f).map_or(Value::Null, Value::Number)),
        (-3.0..3.0f64).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!("text")),
        Just(json!("user")),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(
                prop_oneof![
                    "[a-z0-9]{0,4}",
                    Just("role".to_owned()),
                    Just("content".to_owned()),
                    Just("type".to_owned()),
                    Just("text".to_owned())
                ],
                inner,
                0..4
            )
            .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Mostly a valid request with one or two fields replaced: what is wholly random is refused at the
/// first field and shows little.
fn nearly_valid() -> impl Strategy<Value = Value> {
    let field = proptest::sample::select(FIELDS);
    let spoiled = proptest::collection::vec((field, any_json()), 0..3);
    (any::<bool>(), spoiled).prop_map(|(chat, spoiled)| {
        let mut map = Map::new();
        if chat {
            map.insert("messages".into(), json!([{"role": "user", "content": "a"}]));
        } else {
            map.insert("prompt".into(), json!("a"));
        }
        for (field, value) in spoiled {
            map.insert(field.to_owned(), value);
        }
        Value::Object(map)
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => nearly_valid().prop_map(|value| value.to_string().into_bytes()),
        1 => any_json().prop_map(|value| value.to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

#[test]
fn no_body_makes_the_server_fail() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let address = server.address;
    let engine = server.engine.clone();
    // Answers whatever got through, and checks that it is within what a job promises.
    runtime.spawn(async move {
        loop {
            let script = engine.next().await;
            let job = &script.job;
            assert!(job.prompt.iter().all(|&id| id < VOCAB) && !job.prompt.is_empty());
            assert!(job.max_new >= 1 && job.prompt.len() as u32 + job.max_new <= CONTEXT);
            assert!((1..=16).contains(&job.choices));
            assert!(in_range(&job.sampling), "{:?}", job.sampling);
            let choices = job.choices;
            tokio::spawn(async move {
                let _ = script.events.send(crate::support::committed()).await;
                for choice in 0..choices {
                    let token = crate::support::tokens(choice, "x");
                    let _ = script.events.send(token).await;
                    let end = gateway::engine::Event::Finished {
                        choice,
                        reason: Finish::Stop,
                    };
                    let _ = script.events.send(end).await;
                }
                let _ = script.events.send(gateway::engine::Event::Done).await;
            });
        }
    });
    let mut config = ProptestConfig::with_cases(400);
    config.failure_persistence = None;
    proptest!(config, |(body in body(), path in proptest::sample::select(PATHS))| {
        let reply = runtime.block_on(async {
            let mut head = request("POST", path, &[], "");
            // `request` takes text; these are bytes.
            let length = format!("content-length: {}\r\n\r\n", body.len());
            head.truncate(head.len() - "content-length: 0\r\n\r\n".len());
            head.extend(length.as_bytes());
            head.extend(&body);
            Client::connect(address).await.send(&head).await
        });
        prop_assert!(reply.status < 500, "{} {}", reply.status, String::from_utf8_lossy(&reply.body));
        if reply.status >= 400 {
            reply.code();
        } else {
            prop_assert!(reply.complete);
        }
    });
}

fn in_range(s: &Sampling) -> bool {
    (0.0..=2.0).contains(&s.temperature)
        && s.top_p > 0.0
        && s.top_p <= 1.0
        && (0.0..=1.0).contains(&s.min_p)
        && (-2.0..=2.0).contains(&s.presence_penalty)
        && (-2.0..=2.0).contains(&s.frequency_penalty)
        && s.repetition_penalty > 0.0
        && s.repetition_penalty <= 2.0
        && s.logit_bias.is_sorted_by(|a, b| a.0 < b.0)
        && s.logit_bias
            .iter()
            .all(|&(id, bias)| id < VOCAB && bias.abs() <= 100.0)
        && s.logprobs.is_none_or(|k| k <= 20)
}
