//! Clients that leave or stop reading, and servers that end.

use std::time::Duration;

use gateway::Config;
use gateway::engine::{Code, Engine, Event, Fault, Finish, Readiness, TokenOut};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{Client, Server, committed, request, tokens, within};

fn post(body: serde_json::Value) -> Vec<u8> {
    request("POST", "/v1/completions", &[], &body.to_string())
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_cancels_it() {
    let server = Server::start().await;
    for stream in [false, true] {
        let mut client = server.connect().await;
        client
            .socket
            .write_all(&post(json!({"prompt": "a", "stream": stream})))
            .await
            .unwrap();
        let script = server.engine.next().await;
        script.send(committed()).await;
        drop(client);
        script.cancelled().await;
    }
    let log = server.ended().await;
    assert_eq!(log.len(), 2);
    assert!(
        log.iter().all(|line| line["outcome"] == "client_left"),
        "{log:?}"
    );
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream_cancels_it() {
    let server = Server::start().await;
    let connection = server.connect().await;
    let bytes = post(json!({"prompt": "a", "stream": true}));
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let script = server.engine.next().await;
    script.send(committed()).await;
    script.send(tokens(0, "x")).await;
    let mut stream = stream.await.unwrap();
    assert_eq!(stream.json().await["choices"][0]["text"], "x");
    drop(stream);
    script.cancelled().await;
    let log = server.ended().await;
    assert_eq!(
        (&log[0]["outcome"], &log[0]["status"]),
        (&json!("client_left"), &json!(200))
    );
    assert_eq!(log[0]["completion_tokens"], 1);
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cancelled_and_gets_no_done() {
    let server = Server::with(Config {
        stream_buffer: 4,
        ..Config::default()
    })
    .await;
    server
        .engine
        .change(|facts| facts.limits[0].max_model_len = u32::MAX);
    let connection = Client::connect_narrow(server.address).await;
    let bytes = post(json!({"prompt": "a", "stream": true}));
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let script = server.engine.next().await;
    script.send(committed()).await;
    script.send(tokens(0, "x")).await;
    let stream = stream.await.unwrap();
    // Until every buffer on the way is full, however large they are.
    while script
        .events
        .send(tokens(0, &"y".repeat(512)))
        .await
        .is_ok()
    {}
    script.cancelled().await;
    let (events, clean) = stream.rest().await;
    assert!(!clean && !events.contains(&"[DONE]".to_owned()));
    let log = server.ended().await;
    assert_eq!(log[0]["outcome"], "client_slow");
}

#[tokio::test]
async fn a_socket_that_is_never_read_is_closed() {
    let config = Config {
        write_stall: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::with(config).await;
    server
        .engine
        .change(|facts| facts.limits[0].max_model_len = u32::MAX);
    let mut client = Client::connect_narrow(server.address).await;
    let body = json!({
        "messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 20,
    });
    let bytes = request("POST", "/v1/chat/completions", &[], &body.to_string());
    client.socket.write_all(&bytes).await.unwrap();
    let script = server.engine.next().await;
    script.send(committed()).await;
    // An answer of some 9 MB, twice what the gateway's socket takes.
    let wide = TokenOut {
        id: 97,
        logprob: Some(-1.0),
        top: vec![(98, -1.0); 20],
    };
    for _ in 0..8 {
        script
            .send(Event::Tokens {
                choice: 0,
                tokens: vec![wide.clone(); 1024],
            })
            .await;
    }
    script.finish(0, Finish::Length).await;
    script.send(Event::Done).await;
    within(async {
        // Until only the scraper's own is left.
        while !server
            .get("/metrics")
            .await
            .text()
            .contains("\ncofferdam_connections 1\n")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(client);
}

#[tokio::test]
async fn shutdown_lets_what_runs_finish_and_takes_nothing_new() {
    let mut server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": "a"}));
    let script = server.engine.next().await;
    let mut idle = server.connect().await;
    assert_eq!(
        idle.send(&request("GET", "/readyz", &[], "")).await.status,
        200
    );
    server.stop();
    assert!(idle.reply().await.is_none(), "idle connections are closed");
    script.say("done", Finish::Stop).await;
    let reply = reply.await.unwrap();
    assert_eq!(
        (reply.status, &reply.json()["choices"][0]["text"]),
        (200, &json!("done"))
    );
    let address = server.address;
    let log = server.ended().await;
    assert_eq!(log.last().unwrap()["outcome"], "ok");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_outlasts_the_drain_deadline_fails_loudly() {
    let config = Config {
        drain: Duration::from_millis(50),
        ..Config::default()
    };
    let mut server = Server::with(config).await;
    let waiting = server.begin("/v1/completions", json!({"prompt": "a", "stream": true}));
    let first = server.engine.next().await;
    let streaming = server.begin("/v1/completions", json!({"prompt": "a", "stream": true}));
    let second = server.engine.next().await;
    second.send(committed()).await;
    second.send(tokens(0, "x")).await;
    server.stop();
    let waiting = waiting.await.unwrap();
    assert_eq!((waiting.status, waiting.code().as_str()), (503, "draining"));
    first.cancelled().await;
    second.cancelled().await;
    let streaming = streaming.await.unwrap();
    if streaming.status == 200 {
        assert!(streaming.text().contains("\"draining\"") && !streaming.complete);
        assert!(!streaming.text().contains("[DONE]"));
    } else {
        assert_eq!(streaming.code(), "draining");
    }
    server.ended().await;
}

#[tokio::test]
async fn nothing_is_taken_while_the_engine_is_not_ready() {
    let server = Server::start().await;
    let cases = [
        (
            Readiness::NotReady("no decode worker".to_owned()),
            "unavailable",
            "no decode worker",
        ),
        (Readiness::Draining, "draining", "ending"),
        (Readiness::Unknown, "unavailable", "reported"),
    ];
    // A worker that is away takes the limit with it: what is said is still who is missing.
    let without = cases.clone().map(|it| (Vec::new(), it));
    let with = cases.map(|it| (server.engine.facts().limits.clone(), it));
    for (limits, (readiness, code, words)) in with.into_iter().chain(without) {
        server.engine.change(|facts| {
            facts.limits = limits;
            facts.readiness = readiness;
        });
        let refused = server
            .post("/v1/completions", &json!({"prompt": "a"}))
            .await;
        for reply in [
            refused,
            server.get("/readyz").await,
            server.get("/health").await,
        ] {
            assert_eq!((reply.status, reply.code().as_str()), (503, code));
            assert!(
                reply.json()["error"]["message"]
                    .as_str()
                    .unwrap()
                    .contains(words)
            );
            assert!(reply.headers.contains_key("retry-after"));
        }
        assert_eq!(server.get("/livez").await.status, 200);
    }
    server.engine.change(|facts| {
        facts.readiness = Readiness::Ready;
        facts.limits.clear();
    });
    let reply = server
        .post("/v1/completions", &json!({"prompt": "a"}))
        .await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"));
    assert_eq!(server.engine.waiting().await, 0);
}

#[tokio::test]
async fn an_engine_that_says_nothing_runs_into_the_gateways_own_deadline() {
    let config = Config {
        request_timeout: Duration::ZERO,
        ..Config::default()
    };
    let server = Server::with(config).await;
    let reply = server.begin("/v1/completions", json!({"prompt": "a"}));
    let script = server.engine.next().await;
    let reply = reply.await.unwrap();
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (504, "queue_timeout")
    );
    script.cancelled().await;
    server.engine.refuse(Fault::new(Code::Unavailable, "gone"));
    assert_eq!(
        server
            .post("/v1/completions", &json!({"prompt": "a"}))
            .await
            .status,
        503
    );
}
