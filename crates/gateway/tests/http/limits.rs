//! Sizes, times, lengths and places: each limit refuses by its own code, and never more than it
//! must.

use std::time::{Duration, Instant};

use gateway::Config;
use gateway::engine::Finish;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{CONTEXT, MAX_PROMPT, Server, request, within};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn prompts_are_judged_to_the_token_and_nothing_reaches_the_engine_above() {
    let server = Server::start().await;
    let limit = MAX_PROMPT as usize;
    for n in [limit - 1, limit] {
        let reply = server.begin(PATH, json!({"prompt": "a".repeat(n), "max_tokens": 1}));
        let script = server.engine.next().await;
        assert_eq!(script.job.prompt.len(), n);
        script.say("x", Finish::Length).await;
        assert_eq!(reply.await.unwrap().json()["usage"]["prompt_tokens"], n);
    }
    let reply = server
        .post(PATH, &json!({"prompt": "a".repeat(limit + 1)}))
        .await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "context_length_exceeded")
    );
    assert_eq!(
        reply.json()["error"]["message"],
        "the prompt has 49 tokens; the limit is 48 tokens (prefill-0 has 48 tokens; decode-0 has \
         64)"
    );
    assert_eq!(server.engine.waiting().await, 0);
}

#[tokio::test]
async fn prompt_plus_maximum_is_judged_to_the_token() {
    let server = Server::start().await;
    let room = CONTEXT - 10;
    let reply = server.begin(PATH, json!({"prompt": "0123456789", "max_tokens": room}));
    let script = server.engine.next().await;
    assert_eq!(script.job.max_new, room);
    script.say("x", Finish::Length).await;
    assert_eq!(reply.await.unwrap().status, 200);
    let over = json!({"prompt": "0123456789", "max_tokens": room + 1});
    let reply = server.post(PATH, &over).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "max_tokens_over_context")
    );
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    for figure in [
        "10 tokens",
        "55",
        "together 65",
        "context is 64",
        "at most 54",
    ] {
        assert!(message.contains(figure), "{figure}: {message}");
    }
    assert_eq!(server.engine.waiting().await, 0);
}

#[tokio::test]
async fn bodies_over_the_limit_are_refused_declared_or_not() {
    let server = Server::with(Config {
        max_body_bytes: 1000,
        ..Config::default()
    })
    .await;
    let mut client = server.connect().await;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: 1001\r\n\r\n");
    let reply = client.send(head.as_bytes()).await; // not a byte of the body was needed
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (413, "payload_too_large")
    );
    assert_eq!(reply.headers["connection"], "close");
    assert!(client.reply().await.is_none());

    let mut client = server.connect().await;
    let chunk = format!("{:x}\r\n{}\r\n", 600, "a".repeat(600));
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    let reply = client
        .send(format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes())
        .await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (413, "payload_too_large")
    );

    let padded = format!("{:<1000}", r#"{"prompt": "a", "n": 0}"#);
    let reply = server
        .connect()
        .await
        .send(&request("POST", PATH, &[], &padded))
        .await;
    assert_eq!(reply.code(), "invalid_request", "1000 bytes are read");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let config = Config {
        body_timeout: Duration::from_millis(50),
        ..Config::default()
    };
    let server = Server::with(config).await;
    let mut client = server.connect().await;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\n{{\"");
    let reply = client.send(head.as_bytes()).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (408, "request_timeout")
    );
    assert!(
        client.reply().await.is_none(),
        "and the connection is closed"
    );
}

/// Of a body something must come again and again, and all of it in time.
#[tokio::test]
async fn a_body_that_comes_in_drops_is_given_up() {
    let ms = Duration::from_millis;
    for (body_idle, body_timeout, pause) in [
        (ms(100), ms(60_000), ms(5_000)),
        (ms(60_000), ms(300), ms(20)),
    ] {
        let config = Config {
            body_idle,
            body_timeout,
            ..Config::default()
        };
        let server = Server::with(config).await;
        let mut client = server.connect().await;
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: 40000\r\n\r\n");
        client.socket.write_all(head.as_bytes()).await.unwrap();
        let start = Instant::now();
        let (mut read, mut write) = client.socket.into_split();
        let drops = tokio::spawn(async move {
            while write.write_all(b" ").await.is_ok() {
                tokio::time::sleep(pause).await;
            }
        });
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains("request_timeout") {
            assert_ne!(within(read.read_buf(&mut said)).await.unwrap(), 0);
        }
        assert!(said.starts_with(b"HTTP/1.1 408 "));
        assert!(start.elapsed() < Duration::from_secs(30), "{pause:?}");
        drops.abort();
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_is_given_up() {
    let config = Config {
        header_timeout: Duration::from_millis(50),
        ..Config::default()
    };
    let server = Server::with(config).await;
    for bytes in ["", "GET /livez HTTP/1.1\r\nhost: t\r\nx-slow:"] {
        let mut client = server.connect().await;
        client.socket.write_all(bytes.as_bytes()).await.unwrap();
        assert!(client.reply().await.is_none());
    }
}

#[tokio::test]
async fn heads_over_the_limit_are_refused() {
    let server = Server::start().await;
    let get = |size: usize| request("GET", "/livez", &[("x-big", &"a".repeat(size))], "");
    assert_eq!(
        server.connect().await.send(&get(15 << 10)).await.status,
        200
    );
    let reply = server.connect().await.send(&get(17 << 10)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (431, "headers_too_large")
    );
    // Far above, hyper itself answers before the head is whole.
    assert_eq!(
        server
            .connect()
            .await
            .send(&get(70 << 10)[..66 << 10])
            .await
            .status,
        431
    );
    let many: Vec<(&str, &str)> = vec![("x-many", "1"); 101];
    assert_eq!(
        server
            .connect()
            .await
            .send(&request("GET", "/livez", &many, ""))
            .await
            .status,
        431
    );
}

#[tokio::test]
async fn running_requests_are_bounded() {
    let server = Server::with(Config {
        max_running: 1,
        ..Config::default()
    })
    .await;
    let running = server.begin(PATH, json!({"prompt": "a"}));
    let script = server.engine.next().await;
    let reply = server.post(PATH, &json!({"prompt": "b"})).await;
    assert_eq!((reply.status, reply.code().as_str()), (429, "queue_full"));
    assert_eq!(reply.headers["retry-after"], "1");
    script.say("x", Finish::Stop).await;
    assert_eq!(running.await.unwrap().status, 200);
    let again = server.begin(PATH, json!({"prompt": "c"}));
    server.engine.next().await.say("x", Finish::Stop).await;
    assert_eq!(again.await.unwrap().status, 200, "the place is free again");
}

#[tokio::test]
async fn connections_are_bounded_and_told_so() {
    let server = Server::with(Config {
        max_connections: 1,
        ..Config::default()
    })
    .await;
    let mut first = server.connect().await;
    let live = request("GET", "/livez", &[], "");
    assert_eq!(first.send(&live).await.status, 200);
    let mut second = server.connect().await;
    let reply = second.send(&live).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (503, "over_capacity")
    );
    assert!(second.reply().await.is_none());
    assert_eq!(
        first.send(&live).await.status,
        200,
        "who was there is still served"
    );
}

#[tokio::test]
async fn bodies_share_a_budget() {
    let config = Config {
        body_budget_bytes: 8 << 10,
        max_body_bytes: 8 << 10,
        ..Config::default()
    };
    let server = Server::with(config).await;
    let mut slow = server.connect().await;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: 8000\r\nexpect: 100-continue\r\n\r\n"
    );
    slow.socket.write_all(head.as_bytes()).await.unwrap();
    // "100 Continue" says that the gateway reads this body, so its share is taken.
    let going = slow.reply().await.unwrap();
    assert_eq!(going.status, 100);
    let reply = server
        .post(PATH, &json!({"prompt": "a".repeat(1000)}))
        .await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (503, "over_capacity")
    );
    drop(slow);
}
