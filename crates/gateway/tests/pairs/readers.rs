//! Readers that leave, and readers that do not read.

use crate::support::*;
use gateway::engine::{Code, Engine, Event};
use gateway::pairs::Config;

#[tokio::test]
async fn a_dropped_answer_is_a_cancel_at_decode_and_a_withdrawal_at_prefill() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let answer = engine.submit(job(&[1], 1)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    drop(answer);
    assert_eq!(decode.cancelled().await, attempt);
    assert_eq!(prefill.withdrawn().await, attempt);
    assert_eq!(counter(&engine.facts(), "requests_abandoned"), 1);
}

/// Its events alone may go as well; the next token finds nobody.
#[tokio::test]
async fn a_reader_that_drops_its_events_is_gone() {
    let mut site = Site::new(1, 1).await;
    let (engine, mut prefill, mut decode) = site.pair().await;
    let answer = engine.submit(job(&[1], 2)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    let _steering = answer.steering;
    drop(answer.events);
    decode.committed(attempt);
    assert_eq!(decode.cancelled().await, attempt);
}

/// Memory is bounded by the answer's room, not by how much is generated.
#[tokio::test]
async fn a_reader_that_falls_behind_is_cancelled_and_told_so() {
    let mut site = Site::new(1, 1).await;
    let config = Config {
        answer_events_max: 4,
        ..site.config()
    };
    let (engine, mut prefill, mut decode) = site.pair_with(config).await;
    let mut answer = engine.submit(job(&[1], 100)).unwrap();
    let mut other = engine.submit(job(&[2], 1)).unwrap();
    let attempt = taken(&mut prefill, &mut decode).await;
    let unharmed = taken(&mut prefill, &mut decode).await;
    decode.committed(attempt);
    for id in 0..50 {
        decode.token(attempt, 0, id, None);
    }
    assert_eq!(decode.cancelled().await, attempt);
    assert_eq!(prefill.withdrawn().await, attempt);
    let (events, fault) = failed(&mut answer).await;
    assert!(matches!(events[0], Event::Committed(_)));
    assert_eq!(
        ids(&events, 0),
        [0, 1, 2],
        "what had room, and nothing else"
    );
    assert_eq!(fault.code, Code::Internal);
    assert_eq!(counter(&engine.facts(), "readers_fallen_behind"), 1);
    decode.answer(unharmed, &[9]);
    assert_eq!(ids(&rest(&mut other).await, 0), [9]);
}
