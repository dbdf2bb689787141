//! Never 200 after a known fault (H-6): every code, before and after the first token, and an
//! engine that breaks its contract.

use std::time::Duration;

use gateway::api::errors;
use gateway::engine::{Code, Event, Fault, Finish, Provenance};
use serde_json::json;

use crate::support::{END, Script, Server, VOCAB, committed, request, token, tokens};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn a_fault_before_the_first_token_is_its_status_also_for_a_stream() {
    let server = Server::start().await;
    for &code in Code::ALL {
        for (stream, already) in [(false, 0), (true, 0), (true, 1), (false, 1), (false, 2)] {
            let reply = server.begin(PATH, json!({"prompt": "a", "stream": stream}));
            let script = server.engine.next().await;
            for event in [committed(), tokens(0, "x")].into_iter().take(already) {
                script.send(event).await;
            }
            let fault = Fault::new(code, "what happened").on("somewhere");
            script.send(Event::Failed(fault)).await;
            let reply = reply.await.unwrap();
            let row = errors::row(code);
            assert_eq!(
                reply.status,
                row.status.as_u16(),
                "{code:?} {stream} {already}"
            );
            assert_eq!(
                reply.json(),
                json!({"error": {
                    "message": "what happened", "type": row.kind, "param": "somewhere",
                    "code": code.as_str(),
                }})
            );
            let wait = reply
                .headers
                .get("retry-after")
                .map(|s| s.parse::<u64>().unwrap());
            assert_eq!(wait, row.retry_after_s);
        }
    }
}

#[tokio::test]
async fn a_stream_that_has_begun_ends_with_an_error_event_and_no_done() {
    let server = Server::start().await;
    for code in [
        Code::DecodeFailed,
        Code::IntegrityWrongChecksum,
        Code::DecodeTimeout,
    ] {
        let connection = server.connect().await;
        let body = json!({"prompt": "a", "stream": true}).to_string();
        let bytes = request("POST", PATH, &[], &body);
        let stream = tokio::spawn(async move { connection.stream(&bytes).await });
        let script = server.engine.next().await;
        script.send(committed()).await;
        script.send(tokens(0, "x")).await;
        let mut stream = stream.await.unwrap();
        assert_eq!(stream.json().await["choices"][0]["text"], "x");
        script.send(Event::Failed(Fault::new(code, "died"))).await;
        let (events, clean) = stream.rest().await;
        assert_eq!(events.len(), 1, "nothing but the error: {events:?}");
        let error: serde_json::Value = serde_json::from_str(&events[0]).unwrap();
        assert_eq!(error["error"]["code"], code.as_str());
        assert!(!clean, "the body must not come to an ordinary end");
    }
}

/// Something that an engine must not do, and what a client is told.
async fn broken(server: &Server, events: Vec<Event>, complaint: &str) {
    for stream in [false, true] {
        let body = json!({"prompt": "a", "max_tokens": 3, "stream": stream});
        let reply = server.begin(PATH, body);
        let script: Script = server.engine.next().await;
        for event in &events {
            // It may have been cancelled already: that is the point.
            let _ = script.events.send(event.clone()).await;
        }
        let Script { events: sender, .. } = script;
        drop(sender);
        let reply = reply.await.unwrap();
        if reply.status == 200 {
            assert!(stream, "{events:?}");
            let text = reply.text();
            assert!(
                !reply.complete && !text.contains("[DONE]"),
                "{events:?}: {text}"
            );
            assert!(text.contains("\"code\":\"internal\""), "{events:?}: {text}");
            assert!(text.contains(complaint), "{events:?}: {text}");
        } else {
            assert_eq!(
                (reply.status, reply.code().as_str()),
                (500, "internal"),
                "{events:?}"
            );
            assert!(
                reply.text().contains(complaint),
                "{events:?}: {}",
                reply.text()
            );
        }
    }
}

#[tokio::test]
async fn an_engine_that_breaks_its_contract_is_not_believed() {
    let server = Server::start().await;
    let finished = |choice| Event::Finished {
        choice,
        reason: Finish::Stop,
    };
    let one = |id| Event::Tokens {
        choice: 0,
        tokens: vec![token(id)],
    };
    for (complaint, events) in [
        ("without an outcome", vec![]),
        ("without an outcome", vec![committed()]),
        ("before the prompt was verified", vec![tokens(0, "x")]),
        ("before the prompt was verified", vec![finished(0)]),
        ("while a choice is not", vec![Event::Done]),
        ("while a choice is not", vec![committed(), Event::Done]),
        ("without a token", vec![committed(), finished(0)]),
        ("nobody asked for", vec![committed(), tokens(1, "x")]),
        ("nobody asked for", vec![committed(), finished(1)]),
        ("outside the vocabulary", vec![committed(), one(VOCAB)]),
        ("the maximum", vec![committed(), tokens(0, "four")]),
        (
            "while a choice is not",
            vec![committed(), tokens(0, "x"), Event::Done],
        ),
        (
            "without an outcome",
            vec![committed(), tokens(0, "x"), finished(0)],
        ),
        (
            "committed again after a token",
            vec![committed(), tokens(0, "x"), committed()],
        ),
        (
            "twice",
            vec![committed(), tokens(0, "x"), finished(0), finished(0)],
        ),
        (
            "it had finished",
            vec![committed(), tokens(0, "x"), finished(0), tokens(0, "y")],
        ),
        (
            "while a choice is not",
            vec![committed(), tokens(0, "x"), one(END), Event::Done],
        ),
    ] {
        broken(&server, events, complaint).await;
    }
}

#[tokio::test]
async fn a_second_commit_before_a_token_is_a_retry_and_the_last_one_counts() {
    let server = Server::start().await;
    let reply = server.begin(PATH, json!({"prompt": "abc"}));
    let script = server.engine.next().await;
    let first = Provenance {
        cached_tokens: 1,
        ..Provenance::default()
    };
    script.send(Event::Committed(first)).await;
    script.say("x", Finish::Stop).await;
    let usage = reply.await.unwrap().json()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1);
}

#[tokio::test]
async fn a_refusal_keeps_its_code_and_its_advice() {
    let server = Server::start().await;
    let fault = Fault::new(Code::RateLimited, "later").retry_after(Duration::from_millis(2500));
    server.engine.refuse(fault);
    let reply = server.post(PATH, &json!({"prompt": "a"})).await;
    assert_eq!((reply.status, reply.code().as_str()), (429, "rate_limited"));
    assert_eq!(reply.headers["retry-after"], "3");
}
