//! Engines that serve alone: shapes and words.

use scripted::tokens::{THE, chat, decode, encode};
use scripted::{Engine, Fleet, Whose, expected, expected_text, whose};
use serde_json::json;

use crate::talk::post;
use crate::tokens;

#[tokio::test]
async fn sglang_generates_from_tokens_and_from_text() {
    let fleet = Fleet::start([Engine::sglang()]).await.unwrap();
    let at = fleet.address("single");
    let prompt = [THE; 40];
    let mut body = tokens(&prompt, 8);
    body["rid"] = "abc".into();
    let got = post(at, "/generate", &body).await.json();
    assert_eq!(got["output_ids"], json!(expected(&prompt, 8)));
    assert_eq!(got["meta_info"]["id"], "abc");
    assert_eq!(got["meta_info"]["prompt_tokens"], 40);
    assert_eq!(
        got["meta_info"]["finish_reason"],
        json!({"type": "length", "length": 8})
    );
    let text = " the".repeat(40);
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 8}});
    let again = post(at, "/generate", &body).await.json();
    assert_eq!(again["text"], got["text"]);
    assert_eq!(again["text"], expected_text(&text, 8));
    assert_eq!(fleet.counts("single").ended, 2);
}

#[tokio::test]
async fn sglang_streams_all_so_far_or_only_what_is_new() {
    let whole = Engine::sglang().named("whole");
    let mut parts = Engine::sglang().named("parts");
    parts.incremental = true;
    let fleet = Fleet::start([whole, parts]).await.unwrap();
    let prompt = [7, 8, 9];
    let right = decode(&expected(&prompt, 3));
    for name in ["whole", "parts"] {
        let mut body = tokens(&prompt, 3);
        body["stream"] = true.into();
        let (events, done) = post(fleet.address(name), "/generate", &body).await.events();
        assert!(done && events.len() == 3, "{events:?}");
        let mut texts = events.iter().map(|it| it["text"].as_str().unwrap());
        match name {
            "whole" => assert_eq!(texts.next_back().unwrap(), right),
            _ => assert_eq!(texts.collect::<String>(), right),
        }
        assert_eq!(events[1]["meta_info"]["finish_reason"], json!(null));
        assert_eq!(events[1]["meta_info"]["completion_tokens"], 2);
        assert_eq!(events[2]["meta_info"]["finish_reason"]["type"], "length");
    }
}

#[tokio::test]
async fn every_dialect_chats_streaming_and_not() {
    for engine in [Engine::sglang(), Engine::vllm(), Engine::llama()] {
        let fleet = Fleet::start([engine.clone()]).await.unwrap();
        let at = fleet.address("single");
        let mut body =
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5});
        let prompt = encode(&chat([("user", "hi")]));
        let right = decode(&expected(&prompt, 5));
        let got = post(at, "/v1/chat/completions", &body).await.json();
        assert_eq!(got["choices"][0]["message"]["content"], right, "{engine:?}");
        assert_eq!(got["usage"]["prompt_tokens"], prompt.len());
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let (events, done) = post(at, "/v1/chat/completions", &body).await.events();
        let content = |it: &serde_json::Value| {
            let delta = &it["choices"][0]["delta"]["content"];
            delta.as_str().unwrap_or_default().to_owned()
        };
        assert!(done);
        assert_eq!(events.iter().map(content).collect::<String>(), right);
        assert!(
            events
                .iter()
                .all(|it| it["usage"]["prompt_tokens"] == prompt.len())
        );
        let ends = events
            .iter()
            .filter(|it| it["choices"][0]["finish_reason"] == "length");
        assert_eq!(ends.count(), 1);
        assert_eq!(events.last().unwrap()["choices"], json!([]));
    }
}

#[tokio::test]
async fn completions_take_text_and_ids_and_lists_of_one() {
    for engine in [Engine::sglang(), Engine::vllm(), Engine::llama()] {
        let fleet = Fleet::start([engine]).await.unwrap();
        let at = fleet.address("single");
        let ids = encode("one two");
        let right = expected_text("one two", 4);
        for prompt in [
            json!("one two"),
            json!(ids),
            json!(["one two"]),
            json!([ids]),
        ] {
            for stream in [false, true] {
                let body = json!({"prompt": prompt, "max_tokens": 4, "stream": stream});
                let got = post(at, "/v1/completions", &body).await;
                let text = match stream {
                    false => got.json()["choices"][0]["text"]
                        .as_str()
                        .unwrap()
                        .to_owned(),
                    true => got
                        .events()
                        .0
                        .iter()
                        .map(|it| it["choices"][0]["text"].as_str().unwrap())
                        .collect(),
                };
                assert_eq!(text, right, "{prompt}");
            }
        }
    }
}

#[tokio::test]
async fn vllm_and_llama_have_their_own_ways_in() {
    let engines = [Engine::vllm().named("vllm"), Engine::llama().named("llama")];
    let fleet = Fleet::start(engines).await.unwrap();
    let prompt = [THE; 9];
    let body =
        json!({"token_ids": prompt, "request_id": "r1", "sampling_params": {"max_tokens": 3}});
    let got = post(fleet.address("vllm"), "/inference/v1/generate", &body)
        .await
        .json();
    assert_eq!(got["request_id"], "generate-tokens-r1");
    assert_eq!(got["choices"][0]["token_ids"], json!(expected(&prompt, 3)));
    assert_eq!(got["usage"]["prompt_tokens"], 9);
    let body = json!({"prompt": " the the", "n_predict": 2});
    let got = post(fleet.address("llama"), "/completion", &body)
        .await
        .json();
    assert_eq!(got["content"], expected_text(" the the", 2));
    assert_eq!(got["tokens_evaluated"], 2);
    let got = post(
        fleet.address("llama"),
        "/tokenize",
        &json!({"content": "a the"}),
    )
    .await
    .json();
    assert_eq!(got["tokens"], json!(encode("a the")));
    let got = post(
        fleet.address("vllm"),
        "/tokenize",
        &json!({"prompt": "a the"}),
    )
    .await
    .json();
    assert_eq!(
        (&got["tokens"], &got["count"]),
        (&json!(encode("a the")), &json!(2))
    );
}

#[tokio::test]
async fn what_is_too_long_is_refused_in_each_engines_words() {
    let sglang = Engine::sglang().sized(4096, 2000);
    let fleet = Fleet::start([sglang]).await.unwrap();
    let at = fleet.address("single");
    assert_eq!(
        post(at, "/generate", &tokens(&[THE; 1993], 4)).await.status,
        200
    );
    let got = post(at, "/generate", &tokens(&[THE; 1994], 4)).await;
    let says = "Input length (1994 tokens) exceeds the maximum allowed length (1994 tokens). Use a shorter input or enable --allow-auto-truncate.";
    assert_eq!(
        (got.status, got.json()),
        (400, json!({"error": {"message": says}}))
    );
    let body = json!({"prompt": vec![THE; 5000]});
    let got = post(at, "/v1/completions", &body).await;
    let says = "The input (5000 tokens) is longer than the model's context length (4096 tokens).";
    let right = json!({"object": "error", "message": says, "type": "BadRequestError", "param": null, "code": 400});
    assert_eq!((got.status, got.json()), (400, right));
    let fleet = Fleet::start([
        Engine::vllm().sized(8192, 9600),
        Engine::llama().named("l").sized(1024, 1024),
    ]);
    let fleet = fleet.await.unwrap();
    let got = post(
        fleet.address("single"),
        "/v1/completions",
        &json!({"prompt": vec![THE; 9000]}),
    )
    .await;
    assert_eq!(got.json()["error"]["param"], "input_tokens");
    let got = post(
        fleet.address("l"),
        "/completion",
        &json!({"prompt": vec![THE; 1024]}),
    )
    .await;
    assert_eq!(got.json()["error"]["type"], "exceed_context_size_error");
}

#[tokio::test]
async fn sglang_refuses_inside_a_stream() {
    let fleet = Fleet::start([Engine::sglang().sized(4096, 2000)])
        .await
        .unwrap();
    let at = fleet.address("single");
    for (n, status, place) in [
        (2500, 200, "/meta_info/finish_reason/status_code"),
        (5000, 200, "/error/code"),
    ] {
        let mut body = tokens(&vec![THE; n], 4);
        body["stream"] = true.into();
        let got = post(at, "/generate", &body).await;
        let (events, done) = got.events();
        assert!(done && events.len() == 1 && got.status == status);
        assert_eq!(events[0].pointer(place), Some(&json!(400)), "{events:?}");
    }
    for (n, status) in [(2500, 200), (5000, 400)] {
        let body = json!({"prompt": vec![THE; n], "stream": true, "stream_options": {"include_usage": true}});
        let got = post(at, "/v1/completions", &body).await;
        assert_eq!(got.status, status);
        if status == 200 {
            let (events, done) = got.events();
            assert_eq!(
                (&events[0]["error"]["type"], done),
                (&json!("BAD_REQUEST"), true)
            );
            assert_eq!(events[1]["usage"]["prompt_tokens"], 1);
        }
    }
}

#[test]
fn words_have_owners() {
    let prompt = encode("my prompt");
    assert_eq!(whose(&prompt, &expected_text("my prompt", 9)), Whose::Right);
    assert_eq!(
        whose(&prompt, &expected_text("your prompt", 9)),
        Whose::Foreign
    );
    assert_eq!(whose(&prompt, "!!!!"), Whose::Garbage);
    assert_eq!(whose(&prompt, ""), Whose::Garbage);
}

#[test]
fn every_token_is_read_back() {
    for id in 0..scripted::tokens::VOCABULARY {
        let text = decode(&[id]);
        if text != "\u{fffd}" {
            assert_eq!(encode(&text), [id]);
        }
    }
    let text = "¿Qué? the thetheir <|end|> the\n badaq\t日本";
    assert_eq!(decode(&encode(text)), text);
    assert_eq!(encode(text).len(), scripted::tokens::count(text));
}
