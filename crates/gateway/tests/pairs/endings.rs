//! Requests that workers or the edge refuse, deadlines, draining.

use std::time::{Duration, Instant};

use crate::support::*;
use gateway::engine::{Code, Engine, Event, Job, Readiness};
use gateway::pairs::{EndError, Pairs};
use handoff::{Ending, Failure, Fault, Refusal, Rejection, Role};

/// Law: rejected is terminal, and what is over the limit at the edge reaches no worker.
#[tokio::test]
async fn over_the_limit_at_the_edge_no_worker_sees_anything() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let limit = engine.facts().limit().unwrap().clone();
    assert_eq!((limit.max_prompt_tokens, limit.max_model_len), (1023, 1024));

    let mut long = engine.submit(job(&[1; 1024], 1)).unwrap();
    let (before, fault) = failed(&mut long).await;
    assert_eq!((before.len(), fault.code), (0, Code::ContextLengthExceeded));
    let figures = [
        "1024 tokens",
        "at most 1023",
        "prefill pool 1600 tokens (100 pages of 16)",
    ];
    for words in figures {
        assert!(fault.message.contains(words), "{fault}");
    }
    let mut sum = engine.submit(job(&[1; 1023], 2)).unwrap();
    assert_eq!(failed(&mut sum).await.1.code, Code::MaxTokensOverContext);
    let choices = 4000; // a first page of each is more than the pool has
    let mut many = engine
        .submit(Job {
            choices,
            ..job(&[1; 10], 1000)
        })
        .unwrap();
    assert_eq!(failed(&mut many).await.1.code, Code::InvalidRequest);

    let facts = engine.facts();
    assert_eq!(counter(&facts, "requests_rejected"), 3);
    assert_eq!(
        counter(&facts, "attempts_announced") + counter(&facts, "attempts_sent"),
        0
    );
    // At the limit it is taken, and this is the first that either worker sees.
    let mut fits = engine.submit(job(&[1; 1023], 1)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.answer(attempt, &[9]);
    assert_eq!(ids(&rest(&mut fits).await, 0), [9]);
}

#[tokio::test]
async fn a_rejection_of_decode_is_told_with_its_figures_and_prefill_hears_nothing() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1, 2, 3], 4)).unwrap();
    let (first, _, _) = decode.expect().await;
    let (tokens, limit, by) = (3, 2, Role::Decode);
    let why = Rejection::PromptTooLong { tokens, limit, by };
    decode.ended(first, Ending::Rejected(why));
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((before.len(), fault.code), (0, Code::ContextLengthExceeded));
    assert!(
        fault.message.contains("3 tokens; decode takes at most 2"),
        "{fault}"
    );
    let _next = engine.submit(job(&[1], 1)).unwrap();
    let second = taken(&mut prefill, &mut decode).await;
    assert_ne!(
        first, second,
        "the first that prefill sees is the second attempt"
    );
}

/// The original error wins over decode's cancel, which comes of it.
#[tokio::test]
async fn a_rejection_of_prefill_is_what_the_client_hears() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut answer = engine.submit(job(&[1, 2, 3], 4)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    let (needed, pool, by) = (5, 4, Role::Prefill);
    prefill.ended(
        attempt,
        Ending::Rejected(Rejection::TooManyPages { needed, pool, by }),
    );
    assert_eq!(decode.cancelled().await, attempt);
    decode.ended(attempt, Ending::Cancelled);
    let (_, fault) = failed(&mut answer).await;
    assert_eq!(fault.code, Code::InvalidRequest);
    assert!(
        fault
            .message
            .contains("need 5 pages, but the pool of prefill has 4"),
        "{fault}"
    );
    assert_eq!(
        counter(&engine.facts(), "attempts_announced"),
        1,
        "no retry"
    );
}

#[tokio::test]
async fn refusals_and_faults_of_workers_have_their_own_codes() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let endings = [
        (Ending::Refused(Refusal::QueueFull), Code::QueueFull),
        (Ending::Refused(Refusal::TenantCap), Code::RateLimited),
        (Ending::Refused(Refusal::Draining), Code::Draining),
    ];
    for (ending, code) in endings {
        let mut answer = engine.submit(job(&[1], 1)).unwrap();
        let (attempt, _, _) = decode.expect().await;
        decode.ended(attempt, ending);
        assert_eq!(failed(&mut answer).await.1.code, code);
    }
    // A fault of the pages is tried once more, under another id, and then it is the outcome.
    let mut answer = engine.submit(job(&[1], 1)).unwrap();
    let mut attempts = Vec::new();
    for _ in 0..2 {
        let attempt = taken(&mut prefill, &mut decode).await;
        decode.ended(
            attempt,
            Ending::Failed(Failure::Integrity(Fault::WrongChecksum)),
        );
        assert_eq!(prefill.withdrawn().await, attempt);
        attempts.push(attempt);
    }
    assert_ne!(attempts[0], attempts[1]);
    let (before, fault) = failed(&mut answer).await;
    assert_eq!(
        (before.len(), fault.code),
        (0, Code::IntegrityWrongChecksum)
    );
    assert!(
        fault.message.contains("other bytes than were stated"),
        "{fault}"
    );
}

#[tokio::test]
async fn the_deadline_ends_a_request_at_both_workers() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut answer = engine
        .submit(Job {
            deadline,
            ..job(&[1], 1)
        })
        .unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    let (before, fault) = failed(&mut answer).await;
    assert_eq!((before.len(), fault.code), (0, Code::PrefillTimeout));
    assert_eq!(decode.cancelled().await, attempt);
    assert_eq!(prefill.withdrawn().await, attempt);

    // One that is over before it begins touches the queue alone.
    let deadline = Instant::now();
    let mut late = engine
        .submit(Job {
            deadline,
            ..job(&[1], 1)
        })
        .unwrap();
    assert_eq!(failed(&mut late).await.1.code, Code::QueueTimeout);
}

#[tokio::test]
async fn draining_finishes_what_runs_and_takes_nothing_new() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut running = engine.submit(job(&[1], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    engine.drain();
    until(&engine, |facts| facts.readiness == Readiness::Draining).await;
    let mut refused = engine.submit(job(&[1], 2)).unwrap();
    assert_eq!(failed(&mut refused).await.1.code, Code::Draining);
    decode.answer(attempt, &[6, 7]);
    assert_eq!(ids(&rest(&mut running).await, 0), [6, 7]);
}

#[tokio::test]
async fn the_end_is_told_to_what_still_runs() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let mut running = engine.submit(job(&[1], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    assert!(matches!(event(&mut running).await, Event::Committed(_)));
    soon(engine.end()).await.unwrap();
    assert_eq!(failed(&mut running).await.1.code, Code::Draining);
    assert_eq!(
        engine.submit(job(&[1], 2)).err().unwrap().code,
        Code::Draining
    );
    assert_eq!(
        decode.0.next::<handoff::GatewayToDecode>().await,
        None,
        "its connection ended"
    );
}

/// H-13: what a tenant names divides what it shares, in what workers are told.
#[tokio::test]
async fn a_cache_salt_is_a_domain_of_its_own_at_the_workers() {
    let mut site = Site::new(1, 1).await;
    let (engine, _prefill, mut decode) = site.pair().await;
    let mut domains = Vec::new();
    for salt in [None, Some("a"), Some("b"), Some("a")] {
        let cache_salt = salt.map(str::to_owned);
        let job = Job {
            cache_salt,
            ..job(&[1], 1)
        };
        let answer = engine.submit(job).unwrap();
        let (_, spec, _) = decode.expect().await;
        domains.push(spec.domain);
        drop(answer);
        decode.cancelled().await;
    }
    let [whole, a, b, again] = domains[..] else {
        panic!("{domains:?}")
    };
    assert!(
        whole != a && a != b && b != whole && a == again,
        "{domains:?}"
    );
}

/// Whoever waits for the engine hears that its task is gone.
#[tokio::test]
async fn a_task_that_panics_ends_the_engine_with_an_error() {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    struct Panics;
    impl pages::Decisions for Panics {}
    impl handoff::Decisions for Panics {
        fn fits_pair(self, _: &handoff::Limit, _: &handoff::Spec) -> Result<(), Rejection> {
            panic!("as a machine does whose own state is none")
        }
    }
    let mut site = Site::new(1, 1).await;
    let engine = Pairs::start_by(Panics, site.config()).unwrap();
    let _workers = (site.prefill(0, 100).await, site.decode(0, 200).await);
    ready(&engine).await;
    let mut answer = engine.submit(job(&[1], 1)).unwrap();
    assert_eq!(soon(engine.ended()).await, Err(EndError::Panicked));
    assert_eq!(rest(&mut answer).await, []);
    assert_eq!(soon(engine.end()).await, Err(EndError::Panicked));
}

/// The end came while this one was on its way to the machine.
#[tokio::test]
async fn what_the_machine_has_not_judged_hears_of_the_end_as_well() {
    let mut site = Site::new(1, 1).await;
    let (engine, _prefill, _decode) = site.pair().await;
    let (_, mut answer) =
        tokio::join!(engine.end(), async { engine.submit(job(&[1], 1)).unwrap() });
    assert_eq!(failed(&mut answer).await.1.code, Code::Draining);
}

#[tokio::test]
async fn without_a_pair_nothing_is_taken() {
    let mut site = Site::new(1, 1).await;
    let engine = Pairs::start(site.config()).unwrap();
    let _decode = site.decode(0, 100).await;
    let facts = until(&engine, |facts| !facts.workers[1].epoch.is_empty()).await;
    let missing = Readiness::NotReady("no prefill worker is connected and ready".into());
    assert_eq!(
        (facts.readiness.clone(), facts.limit().cloned()),
        (missing, None)
    );
    let mut answer = engine.submit(job(&[1], 1)).unwrap();
    assert_eq!(failed(&mut answer).await.1.code, Code::Unavailable);
}
