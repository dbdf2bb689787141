//! Server-sent events: what is sent, in what order, and how a stream ends.

use gateway::engine::{Event, Finish, TokenOut};
use serde_json::{Value, json};

use crate::support::{Server, committed, request, token, tokens};

fn post(path: &str, body: Value) -> Vec<u8> {
    request("POST", path, &[], &body.to_string())
}

fn parse(events: &[String]) -> Vec<Value> {
    events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

#[tokio::test]
async fn a_chat_streams_token_by_token_in_openais_form() {
    let server = Server::start().await;
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "stream": true,
        "stream_options": {"include_usage": true},
    });
    let connection = server.connect().await;
    let bytes = post("/v1/chat/completions", body);
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let script = server.engine.next().await;
    script.send(committed()).await;
    script.send(tokens(0, "He")).await;
    let mut stream = stream.await.unwrap();
    assert_eq!(
        stream.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(stream.headers["cache-control"], "no-cache");
    let id = format!("chatcmpl-{}", stream.headers["x-request-id"]);

    let opening = stream.json().await;
    let created = opening["created"].clone();
    let chunk = |delta: Value, finish: Value| {
        json!({
            "id": id, "object": "chat.completion.chunk", "created": created, "model": "small",
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
            "usage": null,
        })
    };
    assert_eq!(
        opening,
        chunk(json!({"role": "assistant", "content": ""}), Value::Null)
    );
    assert_eq!(
        stream.json().await,
        chunk(json!({"content": "H"}), Value::Null)
    );
    assert_eq!(
        stream.json().await,
        chunk(json!({"content": "e"}), Value::Null)
    );
    // Each token is on its way before the next exists.
    script.send(tokens(0, "y")).await;
    assert_eq!(
        stream.json().await,
        chunk(json!({"content": "y"}), Value::Null)
    );
    script.finish(0, Finish::Length).await;
    assert_eq!(stream.json().await, chunk(json!({}), json!("length")));
    script.send(Event::Done).await;
    let (rest, clean) = stream.rest().await;
    assert!(clean);
    let usage: Value = serde_json::from_str(&rest[0]).unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(
        usage["usage"],
        json!({
            "prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 1},
        })
    );
    assert_eq!(rest[1..], ["[DONE]"]);
}

#[tokio::test]
async fn a_completion_streams_without_usage_unless_asked() {
    let server = Server::start().await;
    let connection = server.connect().await;
    let bytes = post("/v1/completions", json!({"prompt": "a", "stream": true}));
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    server.engine.next().await.say("ab", Finish::Stop).await;
    let (events, clean) = stream.await.unwrap().rest().await;
    let (done, chunks) = events.split_last().unwrap();
    assert!(clean && done == "[DONE]");
    let chunks = parse(chunks);
    let shown: Vec<_> = chunks.iter().map(|c| &c["choices"][0]).collect();
    let choice = |text: &str, finish: Value| json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish});
    assert_eq!(
        shown,
        [
            &choice("a", Value::Null),
            &choice("b", Value::Null),
            &choice("", json!("stop"))
        ]
    );
    assert!(
        chunks
            .iter()
            .all(|c| c.get("usage").is_none() && c["object"] == "text_completion")
    );
}

#[tokio::test]
async fn whole_characters_only_and_nothing_of_a_stop_string() {
    let server = Server::start().await;
    let connection = server.connect().await;
    let body = json!({"prompt": "a", "stream": true, "stop": "STOP", "logprobs": 0});
    let bytes = post("/v1/completions", body);
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let script = server.engine.next().await;
    script.send(committed()).await;
    let with_logprob = |id: u32| TokenOut {
        logprob: Some(-1.0),
        ..token(id)
    };
    let ids: Vec<u32> = "é STuSTOP!".bytes().map(u32::from).collect();
    script
        .send(Event::Tokens {
            choice: 0,
            tokens: ids.into_iter().map(with_logprob).collect(),
        })
        .await;
    script.cancelled().await;
    let (events, clean) = stream.await.unwrap().rest().await;
    let (done, chunks) = events.split_last().unwrap();
    assert!(clean && done == "[DONE]");
    let chunks = parse(chunks);
    let texts: Vec<_> = chunks
        .iter()
        .map(|c| c["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["é", " ", "STu", ""]);
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "stop");
    // Log-probabilities come with the text that they belong to, and none for what was cut.
    let logs = |i: usize| chunks[i]["choices"][0]["logprobs"]["tokens"].clone();
    assert_eq!(logs(0), json!(["bytes:\\xc3", "bytes:\\xa9"]));
    assert_eq!(
        [logs(1), logs(2), logs(3)],
        [json!([" "]), json!(["S", "T", "u"]), json!([])]
    );
}

#[tokio::test]
async fn choices_interleave_each_with_its_own_opening_and_end() {
    let server = Server::start().await;
    let connection = server.connect().await;
    let body = json!({"messages": [{"role": "user", "content": "a"}], "stream": true, "n": 2});
    let bytes = post("/v1/chat/completions", body);
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let script = server.engine.next().await;
    script.send(committed()).await;
    for (choice, text) in [(1, "x"), (0, "a"), (1, "y")] {
        script.send(tokens(choice, text)).await;
    }
    script.finish(1, Finish::Stop).await;
    script.finish(0, Finish::Length).await;
    script.send(Event::Done).await;
    let (events, _) = stream.await.unwrap().rest().await;
    let seen: Vec<String> = parse(&events[..events.len() - 1])
        .iter()
        .map(|c| {
            let choice = &c["choices"][0];
            let what = choice["finish_reason"]
                .as_str()
                .or(choice["delta"]["content"].as_str());
            format!("{}:{}", choice["index"], what.unwrap())
        })
        .collect();
    assert_eq!(
        seen,
        ["1:", "1:x", "0:", "0:a", "1:y", "1:stop", "0:length"]
    );
    assert_eq!(events.last().unwrap(), "[DONE]");
}
