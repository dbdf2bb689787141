//! Everything but generation.

use gateway::Config;
use gateway::api::auth::ApiKeys;
use serde_json::json;

use crate::support::{CONTEXT, MAX_PROMPT, Server, request};

#[tokio::test]
async fn models_are_listed_and_found_by_name() {
    let server = Server::start().await;
    let card = |id: &str| {
        json!({
            "id": id, "object": "model", "created": 1_700_000_000, "owned_by": "cofferdam",
            "root": id, "parent": null, "max_model_len": CONTEXT, "max_prompt_tokens": MAX_PROMPT,
            "capabilities": {"cache_salt": true},
        })
    };
    let list = server.get("/v1/models").await.json();
    assert_eq!(
        list,
        json!({"object": "list", "data": [card("small"), card("org/alias")]})
    );
    assert_eq!(server.get("/v1/models/small").await.json(), card("small"));
    assert_eq!(
        server.get("/v1/models/org/alias").await.json(),
        card("org/alias")
    );
    assert_eq!(
        server.get("/v1/models/org%2Falias").await.json(),
        card("org/alias")
    );
    let reply = server.get("/v1/models/none").await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (404, "model_not_found")
    );
    let reply = server
        .post("/v1/completions", &json!({"prompt": "a", "model": "none"}))
        .await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (404, "model_not_found")
    );
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("served: small, org/alias"), "{message}");
}

#[tokio::test]
async fn tokenize_says_what_a_request_would_be_given_and_detokenize_undoes_it() {
    let server = Server::start().await;
    let reply = server
        .post("/tokenize", &json!({"prompt": "hé", "model": "small"}))
        .await;
    assert_eq!(
        reply.json(),
        json!({"count": 3, "max_model_len": CONTEXT, "tokens": [104, 195, 169], "token_strs": null})
    );
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}], "return_token_strs": true,
    });
    let json = server.post("/tokenize", &chat).await.json();
    assert_eq!(json["tokens"], json!([257, 117, 58, 97, 257]));
    assert_eq!(
        json["token_strs"],
        json!(["<special>", "u", ":", "a", "<special>"])
    );
    let closed = json!({
        "messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false,
    });
    assert_eq!(server.post("/tokenize", &closed).await.json()["count"], 4);
    let reply = server
        .post("/detokenize", &json!({"tokens": [104, 195, 169, 257]}))
        .await;
    assert_eq!(reply.json(), json!({"prompt": "hé<special>"}));
    for (path, body, code) in [
        ("/detokenize", json!({"tokens": [258]}), "invalid_request"),
        ("/detokenize", json!({"tokens": "a"}), "invalid_request"),
        (
            "/detokenize",
            json!({"tokens": [1], "x": 1}),
            "unknown_parameter",
        ),
        ("/tokenize", json!({}), "invalid_request"),
        (
            "/tokenize",
            json!({"prompt": "a", "messages": []}),
            "invalid_request",
        ),
        (
            "/tokenize",
            json!({"prompt": "a", "model": "none"}),
            "model_not_found",
        ),
    ] {
        assert_eq!(server.post(path, &body).await.code(), code, "{path} {body}");
    }
}

#[tokio::test]
async fn probes_and_version_answer() {
    let server = Server::start().await;
    assert_eq!(
        server.get("/livez").await.json(),
        json!({"status": "alive"})
    );
    assert_eq!(
        server.get("/readyz").await.json(),
        json!({"status": "ready"})
    );
    assert_eq!(
        server.get("/health").await.json(),
        json!({"status": "ready"})
    );
    assert_eq!(
        server.get("/version").await.json(),
        json!({"version": env!("CARGO_PKG_VERSION")})
    );
}

#[tokio::test]
async fn server_info_shows_roles_pages_and_how_the_limit_came_about() {
    let server = Server::start().await;
    let info = server.get("/server_info").await.json();
    assert_eq!(
        info["limit"],
        json!({
            "max_model_len": CONTEXT, "max_prompt_tokens": MAX_PROMPT,
            "derivation": ["prefill-0 has 48 tokens", "decode-0 has 64"],
        })
    );
    assert_eq!(info["readiness"], json!({"state": "ready"}));
    let nothing = json!({"count": 0, "oldest_ms": 0});
    assert_eq!(
        info["workers"][1],
        json!({
            "role": "decode", "name": "decode-0", "epoch": "d-epoch",
            "readiness": {"state": "ready"}, "pool_tokens": 160, "page_size": 16,
            "max_model_len": CONTEXT, "max_prompt_tokens": MAX_PROMPT,
            "model_fingerprint": "0a".repeat(32), "layout_fingerprint": "0b".repeat(32),
            "pages": {
                "free": 7, "reserved": 0, "granted": 0, "sealed": 0, "cached": 3,
                "quarantined": 0,
            },
            "quarantine": {
                "operations": nothing, "writers": nothing, "dropped": nothing, "scrub": nothing,
                "arenas": nothing, "arena_bytes": 0,
            },
            "counters": [{"name": "handoffs", "value": 5}],
        })
    );
    assert_eq!(info["gateway"]["running"], 0);
    assert_eq!(
        info["handoff"],
        json!({"checksum": true, "deferred_release": true, "truncates": false})
    );
}

#[tokio::test]
async fn metrics_show_requests_and_the_engines_own_figures() {
    let server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": "abc"}));
    let script = server.engine.next().await;
    script.say("xy", gateway::engine::Finish::Stop).await;
    assert_eq!(reply.await.unwrap().status, 200);
    server
        .post("/v1/completions", &json!({"prompt": "a", "n": 0}))
        .await;
    let reply = server.get("/metrics").await;
    assert!(reply.headers["content-type"].starts_with("application/openmetrics-text"));
    let page = reply.text();
    for line in [
        "cofferdam_requests_total{route=\"/v1/completions\",status=\"200\",outcome=\"ok\"} 1",
        "cofferdam_requests_total{route=\"/v1/completions\",status=\"400\",outcome=\"invalid_request\"} 1",
        "cofferdam_time_to_first_token_seconds_count 1",
        "cofferdam_e2e_request_latency_seconds_count 1",
        "cofferdam_prompt_tokens_total 3",
        "cofferdam_generation_tokens_total 2",
        "cofferdam_prompt_tokens_cached_total 1",
        "cofferdam_requests_running 0",
        "cofferdam_ready 1",
        "cofferdam_context_limit_tokens{of=\"prompt\"} 48",
        "cofferdam_context_limit_tokens{of=\"prompt_plus_output\"} 64",
        "cofferdam_pool_tokens{role=\"prefill\",worker=\"prefill-0\"} 160",
        "cofferdam_pages{role=\"decode\",worker=\"decode-0\",state=\"cached\"} 3",
        "cofferdam_worker_info{role=\"decode\",worker=\"decode-0\",epoch=\"d-epoch\"} 1",
        "cofferdam_handoffs_total{role=\"prefill\",worker=\"prefill-0\"} 5",
        "cofferdam_retries_total{role=\"gateway\"} 2",
    ] {
        assert!(page.lines().any(|l| l == line), "missing: {line}\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    assert_eq!(page.matches("# TYPE cofferdam_handoffs").count(), 1);
}

#[tokio::test]
async fn unknown_paths_and_methods_have_envelopes_too() {
    let server = Server::start().await;
    let reply = server.get("/v1/nothing").await;
    assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"));
    let reply = server.get("/v1/completions").await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (405, "method_not_allowed")
    );
    assert_eq!(reply.headers["allow"], "POST, OPTIONS");
    let reply = server.post("/v1/models", &json!({})).await;
    assert_eq!(
        (reply.status, reply.headers["allow"].as_str()),
        (405, "GET, HEAD, OPTIONS")
    );
}

#[tokio::test]
async fn keys_name_tenants_and_guard_what_depends_on_them() {
    let keys = ApiKeys::parse("red key-of-red\nblue key-of-blue\n").unwrap();
    let server = Server::with(Config {
        keys: Some(keys.into()),
        ..Config::default()
    })
    .await;
    for (path, method) in [
        ("/v1/completions", "POST"),
        ("/v1/models", "GET"),
        ("/tokenize", "POST"),
        ("/server_info", "GET"),
    ] {
        for header in [None, Some("Bearer key-of-green")] {
            let headers: Vec<_> = header
                .iter()
                .map(|value| ("authorization", *value))
                .collect();
            let bytes = request(method, path, &headers, "{}");
            let reply = server.connect().await.send(&bytes).await;
            assert_eq!(
                (reply.status, reply.code().as_str()),
                (401, "invalid_api_key"),
                "{path}"
            );
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
            assert!(!reply.text().contains("green"));
        }
    }
    for path in ["/livez", "/readyz", "/version", "/metrics"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    for tenant in ["red", "blue"] {
        let key = format!("Bearer key-of-{tenant}");
        let headers = [("authorization", key.as_str())];
        // What a client says of itself chooses no tenant.
        let body = json!({"prompt": "a", "user": "blue"}).to_string();
        let bytes = request("POST", "/v1/completions", &headers, &body);
        let mut client = server.connect().await;
        let reply = tokio::spawn(async move { client.send(&bytes).await });
        let script = server.engine.next().await;
        assert_eq!(script.job.tenant.as_str(), tenant);
        script.say("x", gateway::engine::Finish::Stop).await;
        assert_eq!(reply.await.unwrap().status, 200);
    }
    let log = server.ended().await;
    assert!(
        log.iter().all(|line| !line.to_string().contains("key-of")),
        "{log:?}"
    );
    assert!(log.iter().any(|line| line["tenant"] == "red"));
}

#[tokio::test]
async fn only_json_is_read() {
    let server = Server::start().await;
    for (media, code) in [
        ("text/plain", "unsupported_media_type"),
        (
            "application/x-www-form-urlencoded",
            "unsupported_media_type",
        ),
        ("application/json; charset=utf-8", "invalid_json"),
        ("APPLICATION/JSON", "invalid_json"),
        ("application/json; charset=utf-16", "unsupported_media_type"),
        (
            "application/json\r\ncontent-encoding: gzip",
            "unsupported_media_type",
        ),
        (
            "application/json\r\ncontent-encoding: identity",
            "invalid_json",
        ),
    ] {
        let text = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: {media}\r\n\
             content-length: 1\r\n\r\n["
        );
        assert_eq!(
            server.connect().await.send(text.as_bytes()).await.code(),
            code,
            "{media}"
        );
    }
}
