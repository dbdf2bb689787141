//! Each thing that a script can have an engine do.

use scripted::tokens::encode;
use scripted::{Act, Engine, Fleet, Rule, Script, Whose, expected_text, whose};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::talk::{A_WHILE, Got, SOON, post, read, send, write};

async fn with(act: Act) -> Fleet {
    let script = Script::new([Rule::new(act)]);
    Fleet::with_script([Engine::sglang()], script)
        .await
        .unwrap()
}

fn ask(stream: bool) -> Value {
    json!({"prompt": "mine", "max_tokens": 6, "stream": stream, "rid": "a0f9"})
}

async fn got(fleet: &Fleet, stream: bool) -> Got {
    post(fleet.address("single"), "/v1/completions", &ask(stream)).await
}

fn text(got: &Got) -> String {
    got.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn refusals_in_each_envelope() {
    for status in [400, 429, 500, 503] {
        for (engine, kind) in [
            (Engine::sglang(), "/type"),
            (Engine::vllm(), "/error/type"),
            (Engine::llama(), "/error/type"),
        ] {
            let refuse = Act::Refuse {
                status,
                message: Some("no".into()),
            };
            let fleet = Fleet::with_script([engine], Script::new([Rule::new(refuse)]))
                .await
                .unwrap();
            let got = got(&fleet, false).await;
            assert_eq!(got.status, status);
            assert!(got.json().pointer(kind).is_some(), "{}", got.body);
            assert!(got.body.contains("\"no\""));
        }
    }
}

#[tokio::test]
async fn aborts_inside_a_200() {
    let fleet = with(Act::InBand).await;
    let whole = got(&fleet, false).await;
    assert_eq!(whole.status, 200);
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "abort");
    let mut body = ask(true);
    body["stream_options"] = json!({"include_usage": true});
    let at = fleet.address("single");
    let (events, done) = post(at, "/v1/completions", &body).await.events();
    assert!(done);
    assert_eq!(events[0]["error"]["code"], 400);
    assert_eq!(events[1]["usage"]["prompt_tokens"], 1);
    let body = json!({"text": "mine", "stream": true});
    let (events, _) = post(fleet.address("single"), "/generate", &body)
        .await
        .events();
    assert_eq!(events[0]["meta_info"]["finish_reason"]["status_code"], 400);
}

#[tokio::test]
async fn garbage_others_words_and_others_ids() {
    let right = expected_text("mine", 6);
    for (act, expected) in [
        (Act::Garbage, Whose::Garbage),
        (Act::OtherText, Whose::Foreign),
        (Act::OtherId, Whose::Right),
    ] {
        let fleet = with(act.clone()).await;
        let got = got(&fleet, false).await;
        assert_eq!(whose(&encode("mine"), &text(&got)), expected, "{act:?}");
        assert_eq!(got.json()["usage"]["prompt_tokens"], 4);
        let id = if act == Act::OtherId { "b1a0" } else { "a0f9" };
        assert_eq!(got.json()["id"], id);
        assert_eq!(text(&got) == right, act == Act::OtherId);
    }
}

#[tokio::test]
async fn hangs_drops_and_nonsense() {
    let fleet = with(Act::Hang).await;
    let mut stream = send(fleet.address("single"), "/v1/completions", &ask(false)).await;
    assert!(
        tokio::time::timeout(A_WHILE, read(&mut stream))
            .await
            .is_err()
    );
    drop(stream);
    assert!(fleet.quiet(SOON).await && fleet.all().disconnected == 1);
    let fleet = with(Act::Drop).await;
    let mut stream = send(fleet.address("single"), "/v1/completions", &ask(false)).await;
    assert!(read(&mut stream).await.is_none());
    assert_eq!((fleet.all().ended, fleet.all().disconnected), (1, 0));
    let fleet = with(Act::Nonsense).await;
    let got = got(&fleet, true).await;
    assert!(got.status == 200 && serde_json::from_str::<Value>(&got.body).is_err());
}

#[tokio::test]
async fn bodies_are_cut_or_stall_half_way() {
    for stream in [false, true] {
        let fleet = with(Act::Cut).await;
        let cut = got(&fleet, stream).await;
        assert!(
            cut.status == 200 && !cut.whole && !cut.body.is_empty(),
            "{cut:?}"
        );
        assert!(!cut.body.contains("[DONE]"));
        let fleet = with(Act::Stall).await;
        let mut peer = send(fleet.address("single"), "/v1/completions", &ask(stream)).await;
        assert!(
            tokio::time::timeout(A_WHILE, read(&mut peer))
                .await
                .is_err()
        );
        drop(peer);
        assert!(fleet.quiet(SOON).await && fleet.all().disconnected == 1);
    }
}

#[tokio::test]
async fn bodies_do_not_end() {
    for stream in [false, true] {
        let fleet = with(Act::Endless).await;
        let mut peer = send(fleet.address("single"), "/v1/completions", &ask(stream)).await;
        assert!(
            tokio::time::timeout(A_WHILE, read(&mut peer))
                .await
                .is_err()
        );
        assert_eq!(fleet.all().in_flight, 1);
    }
}

#[tokio::test]
async fn answers_come_twice_in_one_body_or_unasked_behind_it() {
    let fleet = with(Act::Twice).await;
    let one = expected_text("mine", 6);
    assert_eq!(got(&fleet, false).await.body.matches(&one).count(), 2);
    let (events, _) = got(&fleet, true).await.events();
    assert_eq!(events.len(), 12);
    let fleet = with(Act::Unasked).await;
    let mut peer = send(fleet.address("single"), "/v1/completions", &ask(false)).await;
    let mut bytes = Vec::new();
    while String::from_utf8_lossy(&bytes).matches(&one).count() < 2 {
        let reading = peer.read_buf(&mut bytes);
        tokio::time::timeout(SOON, reading).await.unwrap().unwrap();
    }
    assert_eq!(
        String::from_utf8_lossy(&bytes)
            .matches("HTTP/1.1 200 OK")
            .count(),
        2
    );
}

#[tokio::test]
async fn counts_are_wrong_or_missing() {
    let fleet = with(Act::Count { prompt_tokens: 3 }).await;
    assert_eq!(got(&fleet, false).await.json()["usage"]["prompt_tokens"], 3);
    let fleet = with(Act::NoUsage).await;
    assert_eq!(got(&fleet, false).await.json()["usage"], Value::Null);
}

#[tokio::test]
async fn a_failure_may_come_after_the_transfer() {
    let fleet = Fleet::start(Engine::sglang_pair()).await.unwrap();
    fleet.rule(
        Rule::new(Act::Fail {
            status: 500,
            message: None,
        })
        .on("decode"),
    );
    let body = crate::leg(&[1], 1, "r");
    let (p, d) = tokio::join!(
        post(fleet.address("prefill"), "/generate", &body),
        post(fleet.address("decode"), "/generate", &body)
    );
    assert_eq!((p.status, d.status), (200, 500));
}

#[tokio::test]
async fn decode_may_wait_for_nobody() {
    let fleet = Fleet::start(Engine::sglang_pair()).await.unwrap();
    for (act, expected) in [
        (Act::IgnoreRoom, Whose::Foreign),
        (Act::Garbage, Whose::Garbage),
    ] {
        fleet.rule(Rule::new(act).on("decode"));
        let got = post(
            fleet.address("decode"),
            "/generate",
            &crate::leg(&[1], 1, "r"),
        )
        .await;
        assert_eq!(whose(&[1], got.json()["text"].as_str().unwrap()), expected);
    }
}

#[tokio::test]
async fn rules_choose_by_number_engine_marker_and_path() {
    let engines = [Engine::sglang().named("a"), Engine::sglang().named("b")];
    let fleet = Fleet::start(engines).await.unwrap();
    let refuse = |status| Act::Refuse {
        status,
        message: None,
    };
    fleet.rule(Rule::new(refuse(503)).on("a").nth(2));
    fleet.rule(Rule::new(refuse(400)).marked("bad").times(1));
    fleet.rule(Rule::new(refuse(500)).path("/health"));
    let ask = async |name: &str, prompt: &str| {
        let body = json!({"prompt": prompt});
        post(fleet.address(name), "/v1/completions", &body)
            .await
            .status
    };
    assert_eq!(ask("a", "x").await, 200);
    assert_eq!(ask("b", "x").await, 200);
    assert_eq!(ask("a", "x").await, 503);
    assert_eq!(ask("a", "x").await, 200);
    assert_eq!(ask("b", "a bad one").await, 400);
    assert_eq!(ask("b", "a bad one").await, 200);
    assert_eq!(
        crate::talk::get(fleet.address("b"), "/health").await.status,
        500
    );
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let fleet = Fleet::start([Engine::sglang()]).await.unwrap();
    let mut peer = crate::talk::connect(fleet.address("single")).await;
    for stream in [false, true, false] {
        write(&mut peer, "/v1/completions", &ask(stream)).await;
        assert_eq!(read(&mut peer).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn delays_come_before_the_answer() {
    let script = Script::new([Rule::new(Act::Answer).after_ms(100)]);
    let fleet = Fleet::with_script([Engine::sglang()], script)
        .await
        .unwrap();
    let before = std::time::Instant::now();
    got(&fleet, false).await;
    assert!(before.elapsed().as_millis() >= 100);
}
