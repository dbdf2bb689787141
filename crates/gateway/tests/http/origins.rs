//! Pages of other origins, and what may be asked of a path.

use std::collections::BTreeMap;

use gateway::Config;
use gateway::api::auth::ApiKeys;
use gateway::api::origins::Origins;
use gateway::engine::{Event, Finish, Readiness};
use serde_json::json;

use crate::support::{Server, committed, request, tokens};

const APP: &str = "https://app.example.org";

async fn allowing(origins: &[&str], keys: Option<&str>) -> Server {
    let origins = origins.iter().map(|origin| origin.parse().unwrap());
    Server::with(Config {
        origins: Origins(origins.collect()),
        keys: keys.map(|keys| ApiKeys::parse(keys).unwrap().into()),
        ..Config::default()
    })
    .await
}

fn granted(headers: &BTreeMap<String, String>) -> Option<&str> {
    assert!(
        !headers.contains_key("access-control-allow-credentials"),
        "a page never acts for whoever looks at it"
    );
    headers
        .get("access-control-allow-origin")
        .map(String::as_str)
}

fn preflight(path: &str, origin: &str) -> Vec<u8> {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,content-type,x-stainless-os",
        ),
    ];
    request("OPTIONS", path, &headers, "")
}

#[tokio::test]
async fn a_browser_asks_first_and_is_told_for_allowed_origins_only() {
    let server = allowing(&[APP, "http://localhost:3000"], Some("red key\n")).await;
    // No key is sent with it, and the page may also read that there is no such path.
    for path in ["/v1/chat/completions", "/v1/models", "/nothing", "/"] {
        for origin in [APP, "http://localhost:3000"] {
            let (status, headers) = server
                .connect()
                .await
                .head_of(&preflight(path, origin))
                .await;
            assert_eq!((status, granted(&headers)), (204, Some(origin)), "{path}");
            assert_eq!(
                headers["access-control-allow-methods"],
                "GET, HEAD, POST, OPTIONS"
            );
            let names = "authorization,content-type,x-stainless-os";
            assert_eq!(headers["access-control-allow-headers"], names);
            assert_eq!(headers["access-control-max-age"], "600");
            assert!(headers.contains_key("x-request-id") && headers.contains_key("vary"));
        }
    }
    for origin in [
        "https://app.example.org.evil.org",
        "http://app.example.org",
        "null",
    ] {
        let asked = preflight("/v1/models", origin);
        let (status, headers) = server.connect().await.head_of(&asked).await;
        assert_eq!((status, granted(&headers)), (204, None), "{origin}");
        assert_eq!(headers["allow"], "GET, HEAD, OPTIONS");
        assert!(!headers.contains_key("access-control-allow-headers"));
        assert_eq!(headers["vary"], "Origin");
        let reply = server
            .connect()
            .await
            .send(&preflight("/nothing", origin))
            .await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"));
    }
}

/// A page must be able to read why it was refused, and which request it was.
#[tokio::test]
async fn every_answer_says_who_may_read_it_refusals_too() {
    let server = allowing(&[APP], Some("red key\n")).await;
    let key = ("authorization", "Bearer key");
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let headers = [&[("origin", APP)], headers].concat();
        let bytes = request(method, path, &headers, body);
        let reply = server.connect().await.send(&bytes).await;
        assert_eq!(granted(&reply.headers), Some(APP), "{path}");
        assert_eq!(
            reply.headers["access-control-expose-headers"],
            "x-request-id, retry-after"
        );
        assert_eq!(reply.headers["vary"].split(',').next(), Some("Origin"));
        (reply.status, reply.code())
    };
    let body = r#"{"prompt": "a"}"#;
    let of = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(
        ask("POST", "/v1/completions", &[], body).await,
        of(401, "invalid_api_key")
    );
    assert_eq!(
        ask("POST", "/v1/completions", &[key], "[").await,
        of(400, "invalid_json")
    );
    assert_eq!(ask("GET", "/nothing", &[], "").await, of(404, "not_found"));
    assert_eq!(
        ask("PUT", "/v1/models", &[key], "").await,
        of(405, "method_not_allowed")
    );
    server
        .engine
        .change(|facts| facts.readiness = Readiness::NotReady("no decode worker".to_owned()));
    assert_eq!(
        ask("POST", "/v1/completions", &[key], body).await,
        of(503, "unavailable")
    );
    // Who does not come from a page is told nothing but that it would matter.
    let reply = server.get("/livez").await;
    assert_eq!(
        (granted(&reply.headers), reply.headers["vary"].as_str()),
        (None, "Origin")
    );
}

#[tokio::test]
async fn a_stream_may_be_read_too_and_any_origin_if_so_asked() {
    let server = allowing(&["*"], None).await;
    let body = json!({"prompt": "a", "stream": true}).to_string();
    let bytes = request("POST", "/v1/completions", &[("origin", "null")], &body);
    let connection = server.connect().await;
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let script = server.engine.next().await;
    script.send(committed()).await;
    script.send(tokens(0, "x")).await;
    let stream = stream.await.unwrap();
    assert_eq!(granted(&stream.headers), Some("*"));
    script.finish(0, Finish::Stop).await;
    script.send(Event::Done).await;
    let (events, clean) = stream.rest().await;
    assert!(clean && events.last().unwrap() == "[DONE]", "{events:?}");
}

#[tokio::test]
async fn without_the_option_nothing_is_said_of_origins() {
    let server = Server::start().await;
    let (status, headers) = server
        .connect()
        .await
        .head_of(&preflight("/v1/models", APP))
        .await;
    assert_eq!((status, granted(&headers)), (204, None));
    assert!(!headers.contains_key("vary"));
    let reply = server.get("/livez").await;
    assert!(!reply.headers.contains_key("vary"));
}

const GOT: &[&str] = &[
    "/",
    "/page.js",
    "/page.css",
    "/v1/models",
    "/v1/models/small",
    "/version",
    "/livez",
    "/readyz",
    "/health",
    "/server_info",
    "/metrics",
];
const POSTED: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
];

/// The same connection goes on behind an answer without a body.
#[tokio::test]
async fn every_path_says_what_it_takes_and_what_can_be_got_has_a_head() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for (paths, allowed) in [(GOT, "GET, HEAD, OPTIONS"), (POSTED, "POST, OPTIONS")] {
        for path in paths {
            let (status, headers) = client.head_of(&request("OPTIONS", path, &[], "")).await;
            assert_eq!(
                (status, headers["allow"].as_str()),
                (204, allowed),
                "{path}"
            );
            for wrong in ["PUT", "DELETE", "PATCH", "TRACE"] {
                let reply = client.send(&request(wrong, path, &[], "")).await;
                assert_eq!(
                    (reply.status, reply.headers["allow"].as_str()),
                    (405, allowed)
                );
                assert_eq!(reply.code(), "method_not_allowed", "{path}");
            }
        }
    }
    for path in GOT {
        let (status, head) = client.head_of(&request("HEAD", path, &[], "")).await;
        let got = client.send(&request("GET", path, &[], "")).await;
        assert_eq!((status, got.status), (200, 200), "{path}");
        assert_eq!(head["content-type"], got.headers["content-type"], "{path}");
        // What these say changes with every look.
        if !["/server_info", "/metrics"].contains(path) {
            assert_eq!(
                head["content-length"], got.headers["content-length"],
                "{path}"
            );
        }
        assert!(!got.body.is_empty());
    }
    let (status, _) = client
        .head_of(&request("HEAD", "/v1/completions", &[], ""))
        .await;
    assert_eq!(status, 405);
    let (status, _) = client.head_of(&request("HEAD", "/nothing", &[], "")).await;
    assert_eq!(status, 404);
    let (status, headers) = client.head_of(&request("OPTIONS", "*", &[], "")).await;
    assert_eq!(
        (status, headers["allow"].as_str()),
        (204, "GET, HEAD, POST, OPTIONS")
    );
    let reply = client.send(&request("OPTIONS", "/nothing", &[], "")).await;
    assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"));
}

/// Keys guard what was guarded: asking for a head or for methods opens nothing.
#[tokio::test]
async fn a_head_needs_the_key_that_the_whole_needs() {
    let server = allowing(&[], Some("red key\n")).await;
    let (status, headers) = server
        .connect()
        .await
        .head_of(&request("HEAD", "/v1/models", &[], ""))
        .await;
    assert_eq!(
        (status, headers["www-authenticate"].as_str()),
        (401, "Bearer")
    );
    let (status, _) = server
        .connect()
        .await
        .head_of(&request("OPTIONS", "/v1/models", &[], ""))
        .await;
    assert_eq!(status, 204);
}

#[tokio::test]
async fn what_others_serve_and_we_do_not_is_said_by_name() {
    let server = Server::start().await;
    for (method, path, says) in [
        ("POST", "/v1/embeddings", "gives no vectors"),
        ("GET", "/v1/responses/resp_1", "`/v1/chat/completions`"),
        ("GET", "/v1/files/file-1/content", "nothing is stored"),
        ("POST", "/v1/audio/speech", "text only"),
        ("POST", "/chat/completions", "below `/v1`"),
        ("POST", "/v1/v1/chat/completions", "twice"),
        ("GET", "/slots", "`/server_info`"),
    ] {
        let reply = server
            .connect()
            .await
            .send(&request(method, path, &[], ""))
            .await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"));
        let message = reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains(says), "{path}: {message}");
    }
}
