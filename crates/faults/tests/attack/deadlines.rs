//! Every stage has its deadline, and the error names the stage; nobody holds more than its cap.

use crate::{attacked, questions};
use faults::{Answer, Question};
use std::time::Duration;
use testkit::crowd::COMPLETIONS;

fn refused(answer: Answer) -> (u16, String) {
    match answer {
        Answer::Error(status, code, _) => (status, code),
        other => panic!("{other:?}"),
    }
}

fn long(question: &Question, tokens: u64) -> Question {
    let mut question = question.clone();
    question.body["max_tokens"] = tokens.into();
    question
}

#[test]
fn a_prompt_that_takes_too_long_is_a_prefill_timeout() {
    let asked = questions(1, false);
    let site = attacked("", &["--prefill-deadline=1ms"]);
    let told = refused(asked[0].0.ask(&site.api));
    assert_eq!(told, (504, "prefill_timeout".to_owned()));
    site.rest(1);
}

#[test]
fn an_answer_that_takes_too_long_is_a_decode_timeout() {
    let asked = questions(1, false);
    let site = attacked("", &["--decode-deadline=20ms"]);
    let told = refused(long(&asked[0].0, 400).ask(&site.api));
    assert_eq!(told, (504, "decode_timeout".to_owned()));
    site.rest(1);
}

/// The first batch is half written and stays so: that is the transfer's time. Meanwhile decode's
/// pool has no room for another prompt, which waits for its turn in prefill's queue: that is the
/// queue's time. What the first one holds counts against its tenant.
#[test]
fn a_transfer_that_hangs_and_a_turn_that_does_not_come() {
    let asked = questions(2, false);
    let words = [
        "--prefill-deadline=2s",
        "--transfer-deadline=2s",
        "--queue-deadline=500ms",
        "--pool-tokens=1024",
        "--cancel-deadline=60s",
    ];
    let site = attacked("half@1", &words);
    site.board.hold("half-written");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| asked[0].0.ask(&site.api));
        site.board
            .held(Duration::from_secs(60))
            .expect("half a batch is written");
        let second = refused(asked[1].0.ask(&site.api));
        assert_eq!(second, (504, "queue_timeout".to_owned()));
        let first = refused(first.join().unwrap());
        assert_eq!(first, (504, "handoff_timeout".to_owned()));
    });
    site.board.release();
    site.rest(1);
    let (question, alone) = &asked[1];
    assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
}

#[test]
fn a_tenant_holds_no_more_than_its_cap() {
    let asked = questions(2, false);
    let site = attacked("half@1", &["--tenant-tokens=1000"]);
    site.board.hold("half-written");
    let pending = site.api.begin(COMPLETIONS, &asked[0].0.body).unwrap();
    site.board
        .held(Duration::from_secs(60))
        .expect("half a batch is written");
    let second = refused(asked[1].0.ask(&site.api));
    assert_eq!(second, (429, "rate_limited".to_owned()));
    site.board.release();
    assert_eq!(pending.whole().unwrap().status, 200);
    let (question, alone) = &asked[1];
    assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    site.rest(1);
}
