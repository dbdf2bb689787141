//! What reaches workers, what reaches the reader.

use crate::support::*;
use gateway::engine::{Engine, Event, Finish, Job, Provenance, Sampling, TenantId};
use handoff::{Ending, GatewayToDecode};
use wire::Ask;

async fn in_flight(engine: &gateway::pairs::Pairs, expected: &[&str]) {
    soon(async {
        loop {
            let seen = engine.in_flight();
            let words = seen.iter().map(|it| {
                assert!(it.since.is_some(), "{it:?}");
                format!("{} {} {} {}", it.request, it.stage, it.prefill, it.decode)
            });
            if words.collect::<Vec<_>>() == expected {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// How far a request is can be seen at any time.
#[tokio::test]
async fn what_is_under_way_is_seen() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    in_flight(&engine, &[]).await;
    let mut answer = engine.submit(job(&[11, 12, 13], 2)).unwrap();
    let at = |stage: &str| format!("{}-1 {stage} prefill-0 decode-0", engine.epoch());
    let (attempt, ..) = decode.expect().await;
    in_flight(&engine, &[&at("announced")]).await;
    decode.expecting(attempt);
    prefill.attempt().await;
    in_flight(&engine, &[&at("prefill")]).await;
    decode.committed(attempt);
    in_flight(&engine, &[&at("decode")]).await;
    decode.token(attempt, 0, 70, Some(Finish::Length));
    decode.ended(attempt, Ending::Finished);
    rest(&mut answer).await;
    in_flight(&engine, &[]).await;
}

#[tokio::test]
async fn an_answer_arrives_as_it_was_said_and_workers_see_the_job_as_it_was_given() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let sampling = Sampling {
        temperature: 0.5,
        seed: 99,
        logit_bias: vec![(3, -1.0)],
        logprobs: Some(2),
        ..Sampling::default()
    };
    let asked = Job {
        choices: 2,
        sampling,
        ignore_eos: true,
        ..job(&[11, 12, 13], 7)
    };
    let mut answer = engine.submit(asked).unwrap();
    assert_eq!(answer.request, format!("{}-1", engine.epoch()));

    let hello = &decode.0.gateway;
    assert_eq!((hello.epoch, hello.model), (engine.epoch(), MODEL));
    let (attempt, spec, from) = decode.expect().await;
    assert_eq!(
        (spec.tokens.as_slice(), spec.max_new, spec.choices),
        (&[11, 12, 13][..], 7, 2)
    );
    assert_eq!(from, prefill.0.epoch);
    let ask = Ask::decode(&spec.sampling).unwrap();
    assert_eq!((ask.sampling.temperature, ask.sampling.seed), (0.5, 99));
    assert_eq!(
        (ask.sampling.logit_bias, ask.sampling.logprobs),
        (vec![(3, -1.0)], Some(2))
    );
    assert!(ask.ignore_eos && spec.cache);

    decode.expecting(attempt);
    let (same, told, to) = prefill.attempt().await;
    assert_eq!((same, &told, to), (attempt, &spec, decode.0.epoch));

    decode.committed(attempt);
    decode.token(attempt, 0, 70, None);
    decode.token(attempt, 1, 80, Some(handoff::Finish::Stop));
    decode.token(attempt, 0, 71, Some(handoff::Finish::Length));
    decode.ended(attempt, Ending::Finished);
    let events = rest(&mut answer).await;
    let provenance = Provenance {
        cached_tokens: 16,
        prefill_epoch: prefill.0.epoch.to_string(),
        decode_epoch: decode.0.epoch.to_string(),
        ..Provenance::default()
    };
    assert_eq!(events[0], Event::Committed(provenance));
    let Event::Tokens { choice: 0, tokens } = &events[1] else {
        panic!("{events:?}")
    };
    assert_eq!(tokens[0].logprob, Some(-0.5));
    assert_eq!(tokens[0].top, [(70, -0.5), (71, -1.5)]);
    let reason = Finish::Stop;
    assert_eq!(events[3], Event::Finished { choice: 1, reason });
    let reason = Finish::Length;
    assert_eq!(
        events[5..],
        [Event::Finished { choice: 0, reason }, Event::Done]
    );
    assert_eq!((ids(&events, 0), ids(&events, 1)), (vec![70, 71], vec![80]));
    let facts = engine.facts();
    assert_eq!(counter(&facts, "requests_answered"), 1);
    assert_eq!(counter(&facts, "attempts_announced"), 1);
}

/// H-9, H-6: what nobody verified is not shown, and the request is not saved by a later commit.
#[tokio::test]
async fn a_token_before_the_commit_fails_the_request_and_is_never_delivered() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1, 2], 4)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.token(attempt, 0, 70, None);
    decode.answer(attempt, &[71]);
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((before, fault.code.as_str()), (vec![], "decode_failed"));
    assert_eq!(decode.cancelled().await, attempt);
    assert_eq!(prefill.withdrawn().await, attempt);
}

/// A stop string was found: the worker hears it, and tokens that cross it harm nobody.
#[tokio::test]
async fn a_stopped_choice_stops_at_decode_and_the_other_goes_on() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let two = Job {
        choices: 2,
        ..job(&[1, 2], 4)
    };
    let mut answer = engine.submit(two).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    decode.token(attempt, 0, 70, None);
    decode.token(attempt, 1, 80, None);
    for _ in 0..3 {
        event(&mut answer).await;
    }
    answer.steering.stop_choice(0);
    answer.steering.stop_choice(0);
    answer.steering.stop_choice(9);
    let choice = 0;
    assert_eq!(
        decode.next().await,
        GatewayToDecode::StopChoice { attempt, choice }
    );
    decode.token(attempt, 0, 71, None); // on its way when the stop came
    decode.token(attempt, 1, 81, Some(handoff::Finish::Length));
    decode.ended(attempt, Ending::Finished);
    let events = rest(&mut answer).await;
    assert_eq!((ids(&events, 0), ids(&events, 1)), (vec![], vec![81]));
    assert_eq!(events.last(), Some(&Event::Done), "{events:?}");
}

/// H-13: one tenant is one isolation domain, in every request.
#[tokio::test]
async fn tenants_are_told_apart_and_recognized() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut domains = Vec::new();
    for tenant in ["red", "blue", "red"] {
        let tenant = TenantId::new(tenant);
        let mut answer = engine
            .submit(Job {
                tenant,
                ..job(&[1], 1)
            })
            .unwrap();
        let (attempt, spec, _) = decode.expect().await;
        decode.expecting(attempt);
        prefill.attempt().await;
        decode.answer(attempt, &[5]);
        assert_eq!(ids(&rest(&mut answer).await, 0), [5]);
        prefill.withdrawn().await; // decode's ending is final: prefill need not say its own
        domains.push(spec.domain);
    }
    assert_eq!(domains[0], domains[2]);
    assert_ne!(domains[0], domains[1]);
}
