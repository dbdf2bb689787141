//! Workers that die.

use crate::support::*;
use gateway::engine::{Code, Engine, Event};
use gateway::pairs::Pairs;
use handoff::{Ending, Failure, Fault};

#[tokio::test]
async fn prefill_lost_before_the_commit_one_retry_with_new_ids_gives_the_answer() {
    let mut site = Site::new(2, 1).await;
    let engine = Pairs::start(site.config()).unwrap();
    let mut decode = site.decode(0, 200).await;
    let mut first = site.prefill(0, 100).await;
    ready(&engine).await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let before = taken(&mut first, &mut decode).await;
    let mut second = site.prefill(1, 100).await;
    until(&engine, |facts| !facts.workers[1].epoch.is_empty()).await;

    drop(first);
    assert_eq!(decode.cancelled().await, before);
    decode.ended(before, Ending::Cancelled);
    let (after, _, from) = decode.expect().await;
    assert_eq!(from, second.0.epoch);
    assert_ne!(before, after, "a retry has an id of its own");
    decode.expecting(after);
    assert_eq!(second.attempt().await.0, after);
    decode.answer(before, &[66]); // an old life's answer is nobody's
    decode.answer(after, &[6, 7]);
    let events = rest(&mut answer).await;
    let Event::Committed(provenance) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(provenance.prefill_epoch, second.0.epoch.to_string());
    assert_eq!(
        (ids(&events, 0), events.last()),
        (vec![6, 7], Some(&Event::Done))
    );
    assert_eq!(counter(&engine.facts(), "attempts_announced"), 2);
}

/// After the commit decode holds all that the answer needs.
#[tokio::test]
async fn prefill_lost_after_the_commit_harms_nobody() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    decode.token(attempt, 0, 6, None);
    drop(prefill);
    until(&engine, |facts| facts.workers[0].epoch.is_empty()).await;
    decode.token(attempt, 0, 7, Some(handoff::Finish::Length));
    decode.ended(attempt, Ending::Finished);
    let events = rest(&mut answer).await;
    assert_eq!(
        (ids(&events, 0), events.last()),
        (vec![6, 7], Some(&Event::Done))
    );
}

/// H-16: a reader that saw a token is never shown another answer's tokens behind it.
#[tokio::test]
async fn decode_lost_after_a_token_fails_without_a_retry() {
    let mut site = Site::new(1, 2).await;
    let engine = Pairs::start(site.config()).unwrap();
    let mut prefill = site.prefill(0, 100).await;
    let mut decode = site.decode(0, 200).await;
    ready(&engine).await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    let mut other = site.decode(1, 200).await;
    until(&engine, |facts| !facts.workers[2].epoch.is_empty()).await;
    decode.committed(attempt);
    decode.token(attempt, 0, 6, None);
    for _ in 0..2 {
        event(&mut answer).await;
    }
    drop(decode);
    let (_, fault) = failed(&mut answer).await;
    assert_eq!(fault.code, Code::DecodeFailed);
    assert_eq!(prefill.withdrawn().await, attempt);
    let _next = engine.submit(job(&[3], 1)).unwrap();
    assert_eq!(
        other.expect().await.1.tokens,
        [3],
        "the first that it hears is the next request"
    );
}

#[tokio::test]
async fn decode_lost_before_a_token_is_retried_once_and_not_twice() {
    let mut site = Site::new(1, 2).await;
    let engine = Pairs::start(site.config()).unwrap();
    let mut prefill = site.prefill(0, 100).await;
    let mut decode = site.decode(0, 200).await;
    ready(&engine).await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let first = taken(&mut prefill, &mut decode).await;
    decode.committed(first);
    assert!(matches!(event(&mut answer).await, Event::Committed(_)));
    let mut other = site.decode(1, 200).await;
    until(&engine, |facts| !facts.workers[2].epoch.is_empty()).await;
    drop(decode);
    assert_eq!(prefill.withdrawn().await, first);
    let second = taken(&mut prefill, &mut other).await;
    assert_ne!(first, second);
    drop(other);
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((before, fault.code), (vec![], Code::DecodeFailed));
    assert_eq!(counter(&engine.facts(), "attempts_announced"), 2);
}

/// A prefill that finds one of its own rules broken says so and ends: counted, and written down with
/// whose request it was.
#[tokio::test]
async fn last_words_of_a_prefill_are_counted_and_written_down() {
    let mut site = Site::new(1, 1).await;
    let audit = site.path("audit.jsonl");
    let config = gateway::pairs::Config {
        audit: Some(audit.clone()),
        ..site.config()
    };
    let (engine, mut prefill, mut decode) = site.pair_with(config).await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    let fail_stop = Failure::Integrity(Fault::FailStop);
    prefill.ended(attempt, Ending::Failed(fail_stop));
    assert_eq!(decode.cancelled().await, attempt);
    decode.ended(attempt, Ending::Cancelled);
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((before, fault.code), (vec![], Code::IntegrityFailStop));
    assert_eq!(counter(&engine.facts(), "integrity_fail_stop"), 1);
    let written = std::fs::read_to_string(&audit).unwrap();
    for word in [
        "integrity_fault",
        "fail_stop",
        &attempt.to_string(),
        &prefill.0.epoch.to_string(),
    ] {
        assert!(written.contains(word), "{word}: {written}");
    }
}

/// A forward pass that fails is that of whoever had the request: prefill before the commit, decode
/// behind it.
#[tokio::test]
async fn a_pass_that_fails_behind_the_commit_is_decodes() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    decode.token(attempt, 0, 6, None);
    decode.ended(attempt, Ending::Failed(Failure::Compute));
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((ids(&before, 0), fault.code), (vec![6], Code::DecodeFailed));
}

/// What goes on after a put-back goes on behind the ids that were named; the client has heard those
/// that were said. They are the same, or it is no message.
#[tokio::test]
async fn a_token_that_is_named_otherwise_than_said_costs_the_connection() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1, 2], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    decode.token_named(attempt, 0, (6, 7), None);
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((ids(&before, 0), fault.code), (vec![], Code::Unavailable));
    assert_eq!(counter(&engine.facts(), "malformed_messages"), 1);
}

/// A connection that ends is counted once, whoever ended it, and its worker is away at once: nobody waits until
/// workers are asked again how they are.
#[tokio::test]
async fn a_connection_that_ends_is_counted_once_and_seen_at_once() {
    let mut site = Site::new(1, 1).await;
    let config = gateway::pairs::Config {
        facts_every: std::time::Duration::from_secs(3_600),
        ..site.config()
    };
    let (engine, prefill, mut decode) = site.pair_with(config).await;
    assert_eq!(counter(&engine.facts(), "connections"), 2);
    assert_eq!(counter(&engine.facts(), "connections_ended"), 0);
    drop(prefill);
    let facts = until(&engine, |facts| facts.workers[0].epoch.is_empty()).await;
    assert_eq!(counter(&facts, "connections_ended"), 1, "the worker's end");
    assert_eq!(facts.limit(), None, "what it takes does not count");
    // What is no message ends it here, and the reader of its bytes ends behind that.
    decode.0.raw(vec![9, 9]);
    assert_eq!(decode.0.next::<handoff::GatewayToDecode>().await, None);
    let facts = until(&engine, |facts| facts.workers[1].epoch.is_empty()).await;
    assert_eq!(counter(&facts, "connections_ended"), 2, "ended here");
    // One that the machine hangs up on.
    let mut stranger = site.decode_connection(0).await;
    let mut hello = site.hello(handoff::Role::Decode, 100);
    hello.model = [8; 32];
    stranger.say(&handoff::DecodeToGateway::Hello(hello));
    assert_eq!(stranger.next::<handoff::GatewayToDecode>().await, None);
    let facts = until(&engine, |facts| counter(facts, "connections_ended") >= 3).await;
    // Both of them back: whatever was said late of the old ones is known by then.
    let _prefill = site.prefill(0, 100).await;
    let _decode = site.decode(0, 200).await;
    assert!(facts.workers[1].epoch.is_empty(), "a stranger is no worker");
    ready(&engine).await;
    assert_eq!(
        counter(&engine.facts(), "connections_ended"),
        3,
        "each once"
    );
    assert_eq!(counter(&engine.facts(), "connections"), 5);
}

/// Nobody comes back, and nobody is asked how it is: that a worker has gone is seen by that alone.
#[tokio::test]
async fn a_worker_that_goes_is_away_without_anything_else() {
    let mut site = Site::new(1, 1).await;
    let hour = std::time::Duration::from_secs(3_600);
    let config = gateway::pairs::Config {
        facts_every: hour,
        redial: (hour, hour),
        ..site.config()
    };
    let (engine, prefill, _decode) = site.pair_with(config).await;
    drop(prefill);
    let facts = until(&engine, |facts| facts.workers[0].epoch.is_empty()).await;
    assert_eq!(counter(&facts, "connections_ended"), 1);
    assert_eq!(facts.limit(), None, "what it takes does not count");
}

/// A worker that comes back is another life, and is dialled again by itself.
#[tokio::test]
async fn a_restarted_worker_serves_again_under_its_new_epoch() {
    let mut site = Site::new(1, 1).await;
    let (engine, prefill, mut decode) = site.pair().await;
    let old = prefill.0.epoch;
    drop(prefill);
    let mut prefill = site.prefill(0, 50).await;
    let new = prefill.0.epoch.to_string();
    let facts = until(&engine, |facts| facts.workers[0].epoch == new).await;
    assert_ne!(new, old.to_string());
    assert_eq!(
        facts.limit().unwrap().max_prompt_tokens,
        800,
        "its pool is measured anew"
    );
    let mut answer = engine.submit(job(&[1], 1)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.answer(attempt, &[8]);
    assert_eq!(ids(&rest(&mut answer).await, 0), [8]);
}
