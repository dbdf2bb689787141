//! What a body may say, how it reaches the engine, and what is refused by name.

use std::time::Instant;

use gateway::engine::{Finish, Sampling};
use serde_json::{Value, json};

use crate::support::{CONTEXT, Server};

#[tokio::test]
async fn every_sampling_field_reaches_the_engine() {
    let server = Server::start().await;
    let body = json!({
        "prompt": [97, 98], "max_tokens": 5, "temperature": 0.5, "top_p": 0.25, "top_k": 7,
        "min_p": 0.125, "seed": -2, "presence_penalty": 1.5, "frequency_penalty": -2,
        "repetition_penalty": 1.25, "logit_bias": {"9": -100, "3": 1.5}, "logprobs": 4,
        "ignore_eos": true, "n": 2,
    });
    let reply = server.begin("/v1/completions", body);
    let script = server.engine.next().await;
    let job = &script.job;
    assert_eq!(
        job.sampling,
        Sampling {
            temperature: 0.5,
            top_p: 0.25,
            top_k: 7,
            min_p: 0.125,
            seed: u64::MAX - 1,
            presence_penalty: 1.5,
            frequency_penalty: -2.0,
            repetition_penalty: 1.25,
            logit_bias: vec![(3, 1.5), (9, -100.0)],
            logprobs: Some(4),
        }
    );
    assert_eq!((job.max_new, job.choices, job.ignore_eos), (5, 2, true));
    assert_eq!(job.tenant.as_str(), "anonymous");
    assert!(job.deadline > Instant::now());
    drop(script);
    assert_eq!(reply.await.unwrap().code(), "internal");
}

#[tokio::test]
async fn left_out_means_openais_defaults_the_whole_context_and_a_seed_of_ours() {
    let server = Server::start().await;
    let mut seeds = Vec::new();
    for _ in 0..2 {
        let reply = server.begin(
            "/v1/completions",
            json!({"prompt": "abc", "temperature": null}),
        );
        let script = server.engine.next().await;
        seeds.push(script.job.sampling.seed);
        let defaults = Sampling {
            seed: script.job.sampling.seed,
            ..Sampling::default()
        };
        assert_eq!(script.job.sampling, defaults);
        assert_eq!(script.job.max_new, CONTEXT - 3);
        script.say("x", Finish::Stop).await;
        assert_eq!(reply.await.unwrap().status, 200);
    }
    assert_ne!(seeds[0], seeds[1]);
}

#[tokio::test]
async fn messages_may_be_lists_of_text_parts_in_every_served_role() {
    let server = Server::start().await;
    let body = json!({
        "messages": [
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "tool_calls": []},
            {"role": "user", "content": [], "name": null},
        ],
        "max_completion_tokens": 3, "max_tokens": 3,
    });
    let reply = server.begin("/v1/chat/completions", body);
    let script = server.engine.next().await;
    let text: Vec<u32> = "s:d\u{1}a:ab\u{1}u:"
        .bytes()
        .map(|b| if b == 1 { 257 } else { b.into() })
        .collect();
    assert_eq!(script.job.prompt, [&[257], &text[..], &[257]].concat());
    assert_eq!(script.job.max_new, 3);
    script.say("x", Finish::Stop).await;
    assert_eq!(reply.await.unwrap().status, 200);
}

#[tokio::test]
async fn harmless_fields_and_values_that_change_nothing_are_accepted() {
    let server = Server::start().await;
    let body = json!({
        "messages": [{"role": "user", "content": "a"}],
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto",
        "parallel_tool_calls": true, "safety_identifier": "x", "prompt_cache_key": "y",
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
        "modalities": ["text"], "best_of": 1, "functions": null, "stop": null, "top_k": -1,
        "logprobs": false, "top_logprobs": 0, "stream": false, "unheard_of": null,
        "skip_special_tokens": true, "stop_token_ids": [], "logit_bias": {},
    });
    let reply = server.begin("/v1/chat/completions", body);
    server.engine.next().await.say("x", Finish::Stop).await;
    assert_eq!(reply.await.unwrap().status, 200);
}

async fn refused(
    server: &Server,
    path: &str,
    base: &Value,
    field: &str,
    value: Value,
) -> (String, String) {
    let mut body = base.clone();
    body[field] = value;
    let reply = server.post(path, &body).await;
    assert_eq!(reply.status, 400, "{body} {}", reply.text());
    (
        reply.code(),
        reply.json()["error"]["param"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    )
}

#[tokio::test]
async fn what_would_change_the_answer_is_refused_by_name() {
    let server = Server::start().await;
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    for (field, value) in [
        ("functions", json!([{}])),
        ("function_call", json!({"name": "f"})),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "x"})),
        ("best_of", json!(3)),
        ("reasoning_effort", json!("high")),
        ("logit_processors", json!(["x"])),
        ("guided_json", json!({})),
        ("echo", json!(true)),
        ("documents", json!(["d"])),
    ] {
        let refused = refused(&server, "/v1/chat/completions", &chat, field, value).await;
        assert_eq!(
            refused,
            ("unsupported_parameter".to_owned(), field.to_owned())
        );
    }
    let bare = json!({"prompt": "a"});
    for (field, value) in [
        ("suffix", json!("x")),
        ("continue_final_message", json!(true)),
    ] {
        let refused = refused(&server, "/v1/completions", &bare, field, value).await;
        assert_eq!(
            refused,
            ("unsupported_parameter".to_owned(), field.to_owned())
        );
    }
    // Fields by which other engines are steered from outside; and simple mistakes.
    for field in ["bootstrap_room", "cache_sault", "temprature"] {
        let refused = refused(&server, "/v1/completions", &bare, field, json!(1)).await;
        assert_eq!(refused, ("unknown_parameter".to_owned(), field.to_owned()));
    }
    assert_eq!(
        server.engine.waiting().await,
        0,
        "nothing reached the engine"
    );
}

#[tokio::test]
async fn values_out_of_range_are_refused_by_name() {
    let server = Server::start().await;
    let bare = json!({"prompt": "a"});
    for (field, value) in [
        ("temperature", json!(2.5)),
        ("temperature", json!(-0.1)),
        ("temperature", json!("1")),
        ("top_p", json!(0)),
        ("top_p", json!(1e-60)),
        ("top_k", json!(-2)),
        ("min_p", json!(1.1)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-2.1)),
        ("repetition_penalty", json!(0)),
        ("seed", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(17)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-2)),
        ("stop", json!("")),
        ("stop", json!(["a", 1])),
        ("stop", json!(vec!["x"; 17])),
        ("stop", json!("x".repeat(1025))),
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!({"7": 1, "07": 2})),
        ("logit_bias", json!({"258": 1})),
        ("prompt", json!("")),
        ("prompt", json!([])),
        ("prompt", json!([258])),
        ("prompt", json!([-1])),
        ("prompt", json!([[["a"]]])),
        ("prompt", json!({})),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("model", json!(7)),
        ("ignore_eos", json!(1)),
    ] {
        let shown = value.to_string();
        let refused = refused(&server, "/v1/completions", &bare, field, value).await;
        assert_eq!(
            refused,
            ("invalid_request".to_owned(), field.to_owned()),
            "{field}: {shown}"
        );
    }
    assert_eq!(server.engine.waiting().await, 0);
}

#[tokio::test]
async fn broken_conversations_are_refused_by_place() {
    let server = Server::start().await;
    let chat = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
    for (message, code, param) in [
        (
            json!({"role": "user"}),
            "invalid_request",
            "messages[1].content",
        ),
        (
            json!({"role": "user", "content": 1}),
            "invalid_request",
            "messages[1].content",
        ),
        (
            json!({"role": "root", "content": "a"}),
            "invalid_request",
            "messages[1].role",
        ),
        (
            json!({"role": "function", "content": "a"}),
            "unsupported_parameter",
            "messages[1].role",
        ),
        (
            json!({"role": "user", "content": "a", "x": 1}),
            "unknown_parameter",
            "messages[1].x",
        ),
        (
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}),
            "unsupported_parameter",
            "messages[1].content[0]",
        ),
        (json!("hello"), "invalid_request", "messages[1]"),
    ] {
        let reply = server.post("/v1/chat/completions", &chat(message)).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, code));
        assert_eq!(reply.json()["error"]["param"], param);
    }
    for body in [
        json!({"messages": []}),
        json!({"messages": "hi"}),
        json!({}),
    ] {
        let reply = server.post("/v1/chat/completions", &body).await;
        assert_eq!(
            (reply.code().as_str(), &reply.json()["error"]["param"]),
            ("invalid_request", &json!("messages"))
        );
    }
    let reply = server
        .post(
            "/v1/chat/completions",
            &json!({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}),
        )
        .await;
    assert_eq!(reply.json()["error"]["param"], "top_logprobs");
    let both = json!({"prompt": "a", "max_tokens": 1, "max_completion_tokens": 2});
    assert_eq!(
        server.post("/v1/completions", &both).await.code(),
        "invalid_request"
    );
}

#[tokio::test]
async fn a_list_of_one_prompt_is_one_prompt() {
    let server = Server::start().await;
    for prompt in [json!(["ab"]), json!([[97, 98]]), json!([97, 98.0])] {
        let reply = server.begin("/v1/completions", json!({"prompt": prompt}));
        let script = server.engine.next().await;
        assert_eq!(script.job.prompt, [97, 98]);
        script.say("x", Finish::Stop).await;
        assert_eq!(reply.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_cache_salt_is_handed_on_and_stays_inside_its_tenant() {
    let server = Server::start().await;
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let mut body = json!({"cache_salt": "sälty", "max_tokens": 1});
        match path {
            "/v1/completions" => body["prompt"] = json!("a"),
            _ => body["messages"] = json!([{"role": "user", "content": "a"}]),
        }
        let reply = server.begin(path, body.clone());
        let script = server.engine.next().await;
        assert_eq!(script.job.cache_salt.as_deref(), Some("sälty"));
        assert_eq!(script.job.tenant.as_str(), "anonymous");
        script.say("x", Finish::Stop).await;
        assert_eq!(reply.await.unwrap().status, 200);
        body["cache_salt"] = json!(null);
        let reply = server.begin(path, body.clone());
        let script = server.engine.next().await;
        assert_eq!(script.job.cache_salt, None);
        script.say("x", Finish::Stop).await;
        assert_eq!(reply.await.unwrap().status, 200);
        for wrong in [json!(""), json!(1), json!(["a"]), json!("a".repeat(257))] {
            body["cache_salt"] = wrong;
            let reply = server.post(path, &body).await;
            assert_eq!(
                (reply.status, reply.code().as_str()),
                (400, "invalid_request")
            );
            assert_eq!(reply.json()["error"]["param"], "cache_salt");
        }
    }
}
