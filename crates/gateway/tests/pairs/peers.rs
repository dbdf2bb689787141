//! Workers that send garbage, are of another model, or say how they are.

use crate::support::*;
use gateway::engine::{Code, Engine, PageCounts, Readiness, WorkerRole};
use gateway::pairs::{Config, Pairs};
use handoff::{DecodeToGateway, Ending, GatewayToDecode};
use std::time::Duration;
use wire::{Counters, Facts, Frame, Pages};

/// What is no message costs its connection, is counted, and nobody else notices.
#[tokio::test]
async fn garbage_closes_its_connection_and_is_counted() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let bad_token = |attempt| DecodeToGateway::Tokens {
        attempt,
        choice: 0,
        token: 0,
        payload: vec![255, 0],
        finish: None,
    };
    let nobody = handoff::AttemptId {
        epoch: decode.0.epoch,
        n: 1,
    };
    let unreadable = handoff::codec::encode(&bad_token(nobody)).unwrap();
    let facts = Frame::Facts(Box::default()).encode();
    let garbage = [
        vec![],
        vec![0],
        vec![0, 1, 200, 200],
        vec![9, 9],
        Frame::AskFacts.encode(),
        Frame::Core(&unreadable).encode(),
        [facts.clone(), facts].concat(),
    ];
    for (i, bytes) in garbage.into_iter().enumerate() {
        decode.0.raw(bytes.clone());
        let closed = decode.0.next::<GatewayToDecode>().await;
        assert_eq!(closed, None, "{bytes:?} is still welcome");
        let facts = until(&engine, |facts| facts.workers[1].epoch.is_empty()).await;
        assert_eq!(counter(&facts, "malformed_messages"), i as u64 + 1);
        decode = site.decode(0, 200).await;
        ready(&engine).await;
    }
    let mut answer = engine.submit(job(&[1], 1)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.answer(attempt, &[4]);
    assert_eq!(ids(&rest(&mut answer).await, 0), [4]);
}

/// A token that cannot be read, in the middle of an answer, is a fault of decode.
#[tokio::test]
async fn an_unreadable_token_fails_its_answer() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1], 3)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    decode.token(attempt, 0, 5, None);
    let (choice, payload, finish) = (0, vec![1, 255], None);
    decode.0.say(&DecodeToGateway::Tokens {
        attempt,
        choice,
        token: 1,
        payload,
        finish,
    });
    let (events, fault) = failed(&mut answer).await;
    assert_eq!((ids(&events, 0), fault.code), (vec![5], Code::DecodeFailed));
}

#[tokio::test]
async fn a_worker_of_another_model_is_hung_up_on() {
    let mut site = Site::new(1, 1).await;
    let engine = Pairs::start(site.config()).unwrap();
    let _prefill = site.prefill(0, 100).await;
    let mut stranger = site.decode_connection(0).await;
    let mut hello = site.hello(handoff::Role::Decode, 100);
    hello.model = [8; 32];
    stranger.say(&DecodeToGateway::Hello(hello));
    assert_eq!(stranger.next::<GatewayToDecode>().await, None);
    assert_eq!(
        engine.facts().limit(),
        None,
        "what it said of its pool does not count"
    );
    let _decode = site.decode(0, 100).await;
    ready(&engine).await;
}

#[tokio::test]
async fn facts_of_workers_are_shown() {
    let mut site = Site::new(1, 1).await;
    let (engine, prefill, mut decode) = site.pair().await;
    let pages = Pages {
        free: 190,
        sealed: 7,
        cached: 3,
        ..Pages::default()
    };
    let counters = Counters {
        attempts_seen: 12,
        ..Counters::default()
    };
    decode.0.facts = Facts {
        pages,
        counters,
        ..Facts::default()
    };
    let shown = async {
        let seen = |facts: &gateway::engine::EngineFacts| facts.workers[1].pages.free == 190;
        until(&engine, seen).await
    };
    let facts = tokio::select! {
        facts = shown => facts,
        other = decode.0.next::<GatewayToDecode>() => panic!("{other:?}"),
    };
    let worker = &facts.workers[1];
    assert_eq!(
        (worker.role, worker.name.as_str()),
        (WorkerRole::Decode, "decode-0")
    );
    assert_eq!(worker.epoch, decode.0.epoch.to_string());
    assert_eq!((worker.pool_tokens, worker.page_size), (3200, 16));
    assert_eq!(
        (worker.max_model_len, worker.max_prompt_tokens),
        (1024, 1023)
    );
    let expected = PageCounts {
        free: 190,
        sealed: 7,
        cached: 3,
        ..PageCounts::default()
    };
    assert_eq!(worker.pages, expected);
    let seen = worker
        .counters
        .iter()
        .find(|count| count.name == "attempts_seen")
        .unwrap();
    assert_eq!((seen.value, seen.help.is_empty()), (12, false));
    let how = &facts.limit().unwrap().derivation;
    assert!(
        how[0].contains("decode pool 3200 tokens (200 pages of 16)"),
        "{how:?}"
    );
    assert_eq!(facts.models[0].id, "small");

    drop(prefill);
    let away = Readiness::NotReady("not connected".into());
    until(&engine, |facts| facts.workers[0].readiness == away).await;
}

/// H-15: a worker that hangs (stopped, or stuck in a step) ends nobody's patience but its own.
#[tokio::test]
async fn a_worker_that_shows_no_sign_of_life_is_given_up() {
    let mut site = Site::new(1, 1).await;
    let config = Config {
        silence_max: Duration::from_secs(4),
        ..site.config()
    };
    let (engine, mut hangs, mut decode) = site.pair_with(config).await;
    let mut answer = engine.submit(job(&[1], 1)).unwrap();
    let attempt = taken(&mut hangs, &mut decode).await;
    // From here on prefill reads nothing, while decode answers as it waits.
    assert_eq!(decode.cancelled().await, attempt);
    decode.ended(attempt, Ending::Cancelled);
    let (_, fault) = failed(&mut answer).await;
    assert_eq!(
        fault.code,
        Code::Unavailable,
        "nobody is left for the retry"
    );
    assert_eq!(counter(&engine.facts(), "silent_workers"), 1);
}

/// A decode worker that has just come back is connected here before prefill has found it. Asked
/// then, it would refuse: that is not ready.
#[tokio::test]
async fn a_worker_without_anybody_to_hand_over_with_is_not_ready() {
    let mut site = Site::new(1, 1).await;
    let (engine, _prefill, mut decode) = site.pair().await;
    decode.0.facts.peers = 0;
    let alone = Readiness::NotReady("not connected to a worker of the other role".into());
    tokio::select! {
        _ = until(&engine, |facts| facts.workers[1].readiness == alone) => {}
        other = decode.0.next::<GatewayToDecode>() => panic!("{other:?}"),
    }
    decode.0.facts.peers = 1;
    tokio::select! {
        _ = until(&engine, |facts| facts.workers[1].readiness == Readiness::Ready) => {}
        other = decode.0.next::<GatewayToDecode>() => panic!("{other:?}"),
    }
}
