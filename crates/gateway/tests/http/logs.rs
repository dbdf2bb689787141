//! The access log: everything an operator needs, nothing a tenant said.

use gateway::engine::Finish;
use serde_json::{Value, json};

use crate::support::{Server, request};

#[tokio::test]
async fn a_request_is_one_line_with_its_figures_and_no_text() {
    let server = Server::start().await;
    let body = json!({"prompt": "secret prompt", "max_tokens": 9, "user": "somebody"}).to_string();
    let id = "x".repeat(200);
    let bytes = request("POST", "/v1/completions", &[("x-request-id", &id)], &body);
    let mut client = server.connect().await;
    let reply = tokio::spawn(async move { client.send(&bytes).await });
    server
        .engine
        .next()
        .await
        .say("secret", Finish::Length)
        .await;
    let reply = reply.await.unwrap();
    let ours = reply.headers["x-request-id"].clone();
    assert_ne!(ours, id, "identity is ours");
    let mut log = server.ended().await;
    assert_eq!(log.len(), 1);
    let text = log[0].to_string();
    assert!(
        !text.contains("secret") && !text.contains("somebody"),
        "{text}"
    );
    let line = log[0].as_object_mut().unwrap();
    for measured in ["time_unix_s", "duration_ms", "ttft_ms"] {
        assert!(
            line.remove(measured).unwrap().as_f64().unwrap() > 0.0,
            "{measured}"
        );
    }
    assert_eq!(
        Value::Object(line.clone()),
        json!({
            "request": ours, "route": "/v1/completions", "outcome": "ok", "status": 200,
            "tenant": "anonymous", "client_request": &id[..128], "engine_request": "engine-7",
            "stream": false, "prompt_tokens": 13, "completion_tokens": 6, "cached_tokens": 1,
            "prefill_epoch": "p-epoch", "decode_epoch": "d-epoch",
        })
    );
}

#[tokio::test]
async fn refusals_and_probes_have_lines_too() {
    let server = Server::start().await;
    server.get("/livez").await;
    server.get("/secret-path").await;
    server
        .post("/v1/completions", &json!({"prompt": "x".repeat(60)}))
        .await;
    let log = server.ended().await;
    let seen: Vec<_> = log
        .iter()
        .map(|l| {
            (
                l["route"].as_str().unwrap(),
                l["outcome"].as_str().unwrap(),
                l["status"].clone(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("/livez", "ok", json!(200)),
            ("unknown", "not_found", json!(404)),
            ("/v1/completions", "context_length_exceeded", json!(400)),
        ]
    );
    assert_eq!(log[2]["prompt_tokens"], 60);
}
