//! Whole answers: every field of every form.

use gateway::engine::{Event, Finish};
use serde_json::json;

use crate::support::{END, Server, committed, token, tokens};

#[tokio::test]
async fn a_chat_is_answered_in_openais_form() {
    let server = Server::start().await;
    let body = json!({"model": "small", "messages": [{"role": "user", "content": "hi"}]});
    let reply = server.begin("/v1/chat/completions", body);
    let script = server.engine.next().await;
    assert_eq!(
        script.job.prompt,
        [257, 117, 58, 104, 105, 257],
        "the template's tokens"
    );
    script.say("Hello", Finish::Length).await;
    let reply = reply.await.unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "application/json");
    let id = &reply.headers["x-request-id"];
    let json = reply.json();
    let created = json["created"].clone();
    assert!(created.as_u64().unwrap() > 1_700_000_000);
    assert_eq!(
        json,
        json!({
            "id": format!("chatcmpl-{id}"),
            "object": "chat.completion",
            "created": created,
            "model": "small",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": null},
                "logprobs": null,
                "finish_reason": "length",
            }],
            "usage": {
                "prompt_tokens": 6,
                "completion_tokens": 5,
                "total_tokens": 11,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        })
    );
}

#[tokio::test]
async fn a_completion_is_answered_in_openais_form() {
    let server = Server::start().await;
    let reply = server.begin(
        "/v1/completions",
        json!({"prompt": "ab", "model": "org/alias"}),
    );
    let script = server.engine.next().await;
    assert_eq!(
        (script.job.prompt.as_slice(), script.job.model.as_str()),
        (&[97, 98][..], "org/alias")
    );
    script.say("cd", Finish::Stop).await;
    let json = reply.await.unwrap().json();
    assert_eq!(json["object"], "text_completion");
    assert!(json["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(json["model"], "org/alias");
    assert_eq!(
        json["choices"],
        json!([{"index": 0, "text": "cd", "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(json["usage"]["total_tokens"], 4);
}

#[tokio::test]
async fn a_stop_token_is_counted_and_not_shown() {
    let server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": "a", "logprobs": 0}));
    let script = server.engine.next().await;
    script.send(committed()).await;
    script.send(tokens(0, "x")).await;
    script
        .send(Event::Tokens {
            choice: 0,
            tokens: vec![token(END)],
        })
        .await;
    script.finish(0, Finish::Stop).await;
    script.send(Event::Done).await;
    let json = reply.await.unwrap().json();
    assert_eq!(json["choices"][0]["text"], "x");
    assert_eq!(json["choices"][0]["logprobs"]["tokens"], json!(["x"]));
    assert_eq!(json["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn choices_are_kept_apart_and_in_order() {
    let server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": "a", "n": 3}));
    let script = server.engine.next().await;
    assert_eq!(script.job.choices, 3);
    script.send(committed()).await;
    for (choice, text) in [
        (2, "t"),
        (0, "z"),
        (1, "o"),
        (2, "wo"),
        (0, "ero"),
        (1, "ne"),
    ] {
        script.send(tokens(choice, text)).await;
    }
    script.finish(1, Finish::Stop).await;
    script.finish(2, Finish::Length).await;
    script.finish(0, Finish::Stop).await;
    script.send(Event::Done).await;
    let json = reply.await.unwrap().json();
    let shown: Vec<_> = json["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            (
                c["index"].as_u64().unwrap(),
                c["text"].as_str().unwrap(),
                c["finish_reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (0, "zero", "stop"),
            (1, "one", "stop"),
            (2, "two", "length")
        ]
    );
    assert_eq!(json["usage"]["completion_tokens"], 10);
}

#[tokio::test]
async fn a_stop_string_cuts_the_text_tells_the_engine_and_ends_the_request() {
    let server = Server::start().await;
    let body = json!({"prompt": "a", "n": 2, "stop": ["END", "\n"]});
    let reply = server.begin("/v1/completions", body);
    let mut script = server.engine.next().await;
    script.send(committed()).await;
    script.send(tokens(0, "one E")).await;
    script.send(tokens(1, "two")).await;
    script.send(tokens(0, "ND more")).await;
    assert_eq!(script.stopped().await, 0);
    script
        .send(tokens(0, "sampled before the engine heard"))
        .await;
    script.finish(0, Finish::Length).await;
    script.send(tokens(1, "\n")).await;
    assert_eq!(script.stopped().await, 1);
    script.cancelled().await;
    let json = reply.await.unwrap().json();
    let choices = json["choices"].as_array().unwrap();
    assert_eq!(
        (&choices[0]["text"], &choices[0]["finish_reason"]),
        (&json!("one "), &json!("stop"))
    );
    assert_eq!(
        (&choices[1]["text"], &choices[1]["finish_reason"]),
        (&json!("two"), &json!("stop"))
    );
    // "one END" and "two\n": up to the token that completed the stop string, and no further.
    assert_eq!(json["usage"]["completion_tokens"], 7 + 4);
}

#[tokio::test]
async fn what_only_looked_like_a_stop_string_is_shown_at_the_end() {
    let server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": "a", "stop": "ENDING"}));
    server
        .engine
        .next()
        .await
        .say("the END", Finish::Length)
        .await;
    let json = reply.await.unwrap().json();
    assert_eq!(json["choices"][0]["text"], "the END");
    assert_eq!(json["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn bytes_that_never_become_a_character_are_shown_as_such() {
    let server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": "a"}));
    let script = server.engine.next().await;
    script.send(committed()).await;
    let ids = [0xc3, 0xa9, 0xe2, 0x82].map(token).to_vec();
    script
        .send(Event::Tokens {
            choice: 0,
            tokens: ids,
        })
        .await;
    script.finish(0, Finish::Length).await;
    script.send(Event::Done).await;
    assert_eq!(
        reply.await.unwrap().json()["choices"][0]["text"],
        "é\u{fffd}"
    );
}

fn with_logprobs(text: &str) -> Event {
    let mut event = tokens(0, text);
    if let Event::Tokens { tokens, .. } = &mut event {
        for (i, token) in tokens.iter_mut().enumerate() {
            token.logprob = Some(-0.5 * (i + 1) as f32);
            token.top = vec![(token.id, -0.25), (0xff, -2.0)];
        }
    }
    event
}

#[tokio::test]
async fn chat_logprobs_have_tokens_bytes_and_alternatives() {
    let server = Server::start().await;
    let body = json!({
        "messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 2,
    });
    let reply = server.begin("/v1/chat/completions", body);
    let script = server.engine.next().await;
    assert_eq!(script.job.sampling.logprobs, Some(2));
    script.send(committed()).await;
    script.send(with_logprobs("hi")).await;
    script.finish(0, Finish::Length).await;
    script.send(Event::Done).await;
    let json = reply.await.unwrap().json();
    let top = |token: &str, byte: u8| {
        json!([
            {"token": token, "logprob": -0.25, "bytes": [byte]},
            {"token": "\u{fffd}", "logprob": -2.0, "bytes": [255]},
        ])
    };
    assert_eq!(
        json["choices"][0]["logprobs"],
        json!({
            "content": [
                {"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": top("h", 104)},
                {"token": "i", "logprob": -1.0, "bytes": [105], "top_logprobs": top("i", 105)},
            ],
            "refusal": null,
        })
    );
}

#[tokio::test]
async fn completion_logprobs_have_offsets_and_stop_at_the_cut() {
    let server = Server::start().await;
    let body = json!({"prompt": "a", "logprobs": 2, "stop": "!"});
    let reply = server.begin("/v1/completions", body);
    let script = server.engine.next().await;
    script.send(committed()).await;
    script.send(with_logprobs("hé!")).await;
    script.cancelled().await;
    let json = reply.await.unwrap().json();
    let first = "bytes:\\xc3";
    let second = "bytes:\\xa9";
    assert_eq!(json["choices"][0]["text"], "hé");
    assert_eq!(
        json["choices"][0]["logprobs"],
        json!({
            "tokens": ["h", first, second],
            "token_logprobs": [-0.5, -1.0, -1.5],
            "top_logprobs": [
                {"h": -0.25, "bytes:\\xff": -2.0},
                {first: -0.25, "bytes:\\xff": -2.0},
                {second: -0.25, "bytes:\\xff": -2.0},
            ],
            "text_offset": [0, 1, 1],
        })
    );
    assert_eq!(json["usage"]["completion_tokens"], 4);
}
