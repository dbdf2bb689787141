//! Aborts: by prefix, by id, heard, unheard, and answered late.

use scripted::{Act, Engine, Fleet, Rule, What, expected};
use serde_json::json;

use crate::talk::{A_WHILE, SOON, post, read, send};
use crate::{leg, tokens};

async fn abort(fleet: &Fleet, name: &str, rid: &str) {
    let got = post(fleet.address(name), "/abort_request", &json!({"rid": rid})).await;
    assert_eq!((got.status, got.body.as_str()), (200, ""));
}

#[tokio::test]
async fn sglang_aborts_by_prefix() {
    let fleet = Fleet::start([Engine::sglang().paced(60_000, 0, 0)])
        .await
        .unwrap();
    let at = fleet.address("single");
    let mut running = Vec::new();
    for rid in ["abc", "abc1", "xyz"] {
        let mut body = tokens(&[1], 4);
        body["rid"] = rid.into();
        running.push(send(at, "/generate", &body).await);
    }
    assert!(fleet.until(SOON, |it| it.in_flight == 3).await);
    abort(&fleet, "single", "abc").await;
    for stream in &mut running[..2] {
        let got = read(stream).await.unwrap();
        assert_eq!(got.status, 200);
        assert_eq!(got.json()["meta_info"]["finish_reason"]["type"], "abort");
    }
    let counts = fleet.all();
    assert_eq!(
        (counts.aborted, counts.in_flight, counts.abort_calls),
        (2, 1, 1)
    );
    assert!(fleet.log().iter().any(|it| it.what
        == What::AbortCall {
            rid: "abc".into(),
            hits: 2
        }));
    abort(&fleet, "single", "unknown").await;
    assert_eq!(fleet.all().aborted, 2);
}

#[tokio::test]
async fn a_stream_ends_with_the_abort_in_it() {
    let fleet = Fleet::start([Engine::sglang().paced(0, 0, 60_000)])
        .await
        .unwrap();
    let at = fleet.address("single");
    let body = json!({"prompt": "x", "max_tokens": 9, "stream": true, "rid": "r"});
    let mut stream = send(at, "/v1/completions", &body).await;
    let mut seen = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("data: ") {
        stream.peek(&mut seen).await.unwrap();
    }
    abort(&fleet, "single", "r").await;
    let (events, done) = read(&mut stream).await.unwrap().events();
    assert!(done && events.len() == 2, "{events:?}");
    assert_eq!(events[1]["choices"][0]["finish_reason"], "abort");
}

#[tokio::test]
async fn vllm_aborts_by_the_id_that_it_gave() {
    let fleet = Fleet::start([Engine::vllm().paced(60_000, 0, 0)])
        .await
        .unwrap();
    let at = fleet.address("single");
    let body = json!({"token_ids": [1], "request_id": "r"});
    let mut stream = send(at, "/inference/v1/generate", &body).await;
    assert!(fleet.until(SOON, |it| it.in_flight == 1).await);
    for (id, ended) in [("r", 0), ("generate-tokens-r", 1)] {
        let got = post(
            at,
            "/inference/v1/abort_requests",
            &json!({"request_ids": [id]}),
        )
        .await;
        assert_eq!(got.status, 200);
        assert!(fleet.until(SOON, |it| it.aborted == ended).await);
    }
    let got = read(&mut stream).await.unwrap().json();
    assert_eq!(got["choices"][0]["finish_reason"], "abort");
    assert_eq!(
        post(at, "/inference/v1/abort_requests", &json!({}))
            .await
            .status,
        400
    );
}

#[tokio::test]
async fn an_abort_in_mid_transfer_breaks_it() {
    let [prefill, decode] = Engine::sglang_pair();
    let fleet = Fleet::start([prefill.paced(0, 60_000, 0), decode])
        .await
        .unwrap();
    let body = leg(&[1], 1, "r");
    let mut p = send(fleet.address("prefill"), "/generate", &body).await;
    let mut d = send(fleet.address("decode"), "/generate", &body).await;
    assert!(fleet.until(SOON, |it| it.in_flight == 2).await);
    abort(&fleet, "decode", "r").await;
    let got = read(&mut d).await.unwrap();
    assert!(
        got.status == 500 && got.body.contains("Aborted by AbortReq"),
        "{}",
        got.body
    );
    assert_eq!(read(&mut p).await.unwrap().status, 500);
    assert_eq!(
        (
            fleet.counts("decode").aborted,
            fleet.counts("decode").broken
        ),
        (1, 1)
    );
}

#[tokio::test]
async fn the_deaf_work_on_and_the_late_answer_afterwards() {
    let fleet = Fleet::start([Engine::sglang().paced(300, 0, 0)])
        .await
        .unwrap();
    let at = fleet.address("single");
    fleet.rule(Rule::new(Act::Deaf).marked("deaf"));
    fleet.rule(Rule::new(Act::Late { ms: 30 }).marked("late"));
    for marker in ["deaf", "late"] {
        let body = json!({"text": marker, "rid": marker, "sampling_params": {"max_new_tokens": 3}});
        let mut stream = send(at, "/generate", &body).await;
        if marker == "late" {
            assert!(
                tokio::time::timeout(A_WHILE, read(&mut stream))
                    .await
                    .is_err()
            );
        }
        assert!(fleet.until(SOON, |it| it.in_flight == 1).await);
        abort(&fleet, "single", marker).await;
        let got = read(&mut stream).await.unwrap().json();
        let right = expected(&scripted::tokens::encode(marker), 3);
        assert_eq!(got["output_ids"], json!(right));
    }
    assert_eq!((fleet.all().aborted, fleet.all().ended), (0, 2));
}

#[tokio::test]
async fn an_abort_may_never_be_acknowledged() {
    let fleet = Fleet::start([Engine::sglang()]).await.unwrap();
    fleet.rule(Rule::new(Act::Hang).path("/abort_request"));
    let body = json!({"rid": "r"});
    let mut stream = send(fleet.address("single"), "/abort_request", &body).await;
    assert!(
        tokio::time::timeout(A_WHILE, read(&mut stream))
            .await
            .is_err()
    );
}
