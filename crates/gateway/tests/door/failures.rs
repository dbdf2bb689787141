//! Engines that fail: what the client is told, that none of their words reach it, and who is blamed.

use super::support::{Front, LONG, prompt};
use gateway::engine::Code;
use scripted::{Act, Engine, Rule};
use std::time::Duration;

fn refuse(status: u16) -> Act {
    Act::Refuse {
        status,
        message: None,
    }
}

/// Prefill fails while decode hangs: the client hears of it at once, not at its deadline.
#[tokio::test]
async fn a_failed_prefill_is_told_while_decode_hangs() {
    let rows = [
        (400, Code::InvalidRequest),
        (429, Code::OverCapacity),
        (500, Code::PrefillFailed),
        (503, Code::OverCapacity),
    ];
    for (status, code) in rows {
        let front = Front::new(Engine::sglang_pair()).await;
        front.fleet.rule(Rule::new(refuse(status)).on("prefill"));
        let heard = front.ask_within(&prompt(1, 20), LONG).await;
        heard.failed_clean(code);
        front.comes_to_rest().await;
        assert_eq!(front.fleet.counts("decode").aborted, 1, "{status}");
        assert_eq!(front.fleet.all().broken, 0, "{status}");
    }
}

/// Prefill says in its body that it failed, and decode answers 200 with what it has.
#[tokio::test]
async fn an_abort_inside_a_200_is_a_failure() {
    let front = Front::new(Engine::sglang_pair()).await;
    front.fleet.rule(Rule::new(Act::InBand).on("prefill"));
    front.fleet.rule(Rule::new(Act::Garbage).on("decode"));
    let heard = front.ask(&prompt(1, 20)).await;
    assert!(!heard.begun && heard.tokens.is_empty(), "{heard:?}");
    assert!(heard.end.is_err());
    front.comes_to_rest().await;
}

/// The incident: prefill computes a placeholder and says 200, decode answers with what it has.
#[tokio::test]
async fn a_placeholder_is_never_an_answer() {
    let front = Front::new(Engine::sglang_pair()).await;
    front.fleet.rule(Rule::new(Act::Incident).on("prefill"));
    let heard = front.ask(&prompt(1, 20)).await;
    heard.failed_clean(Code::IntegrityWrongCount);
    let message = heard.end.unwrap_err().message;
    assert!(
        message.contains("20 tokens") && message.contains("computed 1"),
        "{message}"
    );
    front
        .until("integrity_wrong_count", |count| count == 1)
        .await;
    front.comes_to_rest().await;
}

/// The same where the engine does it by itself, because nothing keeps long prompts from it.
#[tokio::test]
async fn without_the_edge_the_count_alone_stops_it() {
    let [prefill, decode] = Engine::sglang_pair();
    let prefill = Engine {
        leaks: true,
        ..prefill.sized(4096, 200)
    };
    let front = Front::new([prefill, decode]).await;
    let long = prompt(1, 300);
    front
        .ask(&long)
        .await
        .failed_clean(Code::ContextLengthExceeded);
    assert_eq!(
        front.fleet.all().arrived,
        0,
        "nothing was asked of an engine"
    );
    let mut unbounded = front.found(0);
    unbounded.lengths = front.found(1).lengths;
    front.doors.measured("prefill", Ok(unbounded));
    front
        .ask(&long)
        .await
        .failed_clean(Code::IntegrityWrongCount);
    front.comes_to_rest().await;
}

#[tokio::test]
async fn what_cannot_be_understood_is_no_answer() {
    for act in [Act::Nonsense, Act::Drop, Act::Cut] {
        for role in ["prefill", "decode"] {
            // A prefill whose decode is gone waits for it, and nobody says so: it is ended for its age.
            let front = Front::with(Engine::sglang_pair(), |config| {
                config.machine.linger_ms = 200;
            })
            .await;
            println!("{act:?} {role}");
            front.fleet.rule(Rule::new(act.clone()).on(role));
            let heard = front.ask(&prompt(1, 20)).await;
            let code = match role {
                "prefill" => Code::PrefillFailed,
                _ => Code::DecodeFailed,
            };
            assert_eq!(heard.code(), code, "{act:?} {role}");
            let right = scripted::expected(&prompt(1, 20), heard.tokens.len());
            assert_eq!(heard.tokens, right, "{act:?} {role}");
            front.comes_to_rest().await;
        }
    }
}

/// More than was asked for, twice the same, and a body without an end.
#[tokio::test]
async fn an_answer_ends_where_it_was_to_end() {
    for act in [Act::Twice, Act::Endless] {
        let front = Front::new([Engine::sglang()]).await;
        front.fleet.rule(Rule::new(act.clone()));
        let prompt = prompt(1, 20);
        let heard = front.ask(&prompt).await;
        let right = scripted::expected(&prompt, heard.tokens.len());
        assert_eq!(heard.tokens, right, "{act:?}");
        front.comes_to_rest().await;
    }
}

/// A body in one piece has no more bytes than an answer may have.
#[tokio::test]
async fn an_answer_has_a_bound_in_bytes() {
    let front = Front::with(Engine::sglang_pair(), |config| {
        config.answer_bytes_max = 200;
        config.machine.linger_ms = 200;
    })
    .await;
    let heard = front.ask(&prompt(1, 20)).await;
    heard.failed_clean(Code::PrefillFailed);
    assert!(front.count("legs_lost") >= 1);
    front.comes_to_rest().await;
    let wide = Front::with(Engine::sglang_pair(), |config| {
        config.answer_bytes_max = 4_000
    })
    .await;
    wide.ask(&prompt(1, 20)).await.is_right(&prompt(1, 20));
}

/// An engine that was started again is another one: what the one before has done is not held against it.
#[tokio::test]
async fn another_life_does_not_rest_for_the_one_before() {
    use gateway::engine::Engine as _;
    let front = Front::new(Engine::sglang_pair()).await;
    let fails = Act::Fail {
        status: 500,
        message: None,
    };
    front.fleet.rule(Rule::new(fails).on("prefill"));
    let rests = |front: &Front| {
        let facts = front.doors.facts();
        let worker = facts.workers.iter().find(|it| it.name == "prefill");
        format!("{:?}", worker.unwrap().readiness).contains("rests")
    };
    while !rests(&front) {
        front.ask(&prompt(1, 20)).await;
    }
    front.fleet.script(scripted::Script::default());
    let mut again = front.found(0);
    again.life = "2".into();
    front.doors.measured("prefill", Ok(again));
    front.ask(&prompt(2, 20)).await.is_right(&prompt(2, 20));
    assert!(!rests(&front));
}

/// A stream whose end is missing may have lost tokens, however well it seems to end.
#[tokio::test]
async fn a_stream_that_does_not_say_where_it_ends_is_not_whole() {
    for (engines, answers) in [
        (vec![Engine::sglang()], "single"),
        (Engine::sglang_pair().into(), "decode"),
    ] {
        let front = Front::new(engines).await;
        front.fleet.rule(Rule::new(Act::Undone).on(answers));
        let prompt = prompt(1, 20);
        let heard = front.ask(&prompt).await;
        assert_eq!(heard.code(), Code::DecodeFailed);
        let right = scripted::expected(&prompt, heard.tokens.len());
        assert_eq!(heard.tokens, right);
        front.comes_to_rest().await;
    }
}

/// A response that nobody asked for on a connection is not the next request's.
#[tokio::test]
async fn an_unasked_response_is_nobodys() {
    let front = Front::new([Engine::sglang()]).await;
    front.fleet.rule(Rule::new(Act::Unasked).nth(1));
    for seed in 1..4 {
        let prompt = prompt(seed, 20);
        front.ask(&prompt).await.is_right(&prompt);
    }
}

/// A prefill that hangs: decode's words are held, and the request ends by its deadline.
#[tokio::test]
async fn a_hung_prefill_ends_by_the_deadline() {
    let front = Front::with(Engine::sglang_pair(), |config| {
        config.machine.linger_ms = 100;
    })
    .await;
    front.fleet.rule(Rule::new(Act::Hang).on("prefill"));
    front.fleet.rule(Rule::new(Act::IgnoreRoom).on("decode"));
    let heard = front
        .ask_within(&prompt(1, 20), Duration::from_millis(300))
        .await;
    heard.failed_clean(Code::PrefillTimeout);
    front.comes_to_rest().await;
}

/// Engines that do not answer their abort are given up, and their connections closed.
#[tokio::test]
async fn a_deaf_engine_is_given_up() {
    let front = Front::with(Engine::sglang_pair(), |config| {
        config.machine.linger_ms = 50;
        config.machine.abort_ms = 50;
    })
    .await;
    front
        .fleet
        .rule(Rule::new(Act::Deaf).on("prefill").after_ms(600_000));
    let heard = front
        .ask_within(&prompt(1, 20), Duration::from_millis(100))
        .await;
    heard.failed_clean(Code::PrefillTimeout);
    assert!(front.fleet.until(LONG, |all| all.disconnected >= 1).await);
    front.until("aborts_unanswered", |count| count >= 1).await;
}

/// Ten failures of prefill: decode is never left alone for them, and the pair answers when prefill
/// does again.
#[tokio::test]
async fn decode_is_not_blamed_for_prefill() {
    let front = Front::with(Engine::sglang_pair(), |config| {
        config.machine.max_retries = 0;
        config.machine.faults = 3;
        config.machine.rest_ms = 50;
    })
    .await;
    front
        .fleet
        .rule(Rule::new(refuse(500)).on("prefill").times(3));
    for seed in 0..3 {
        front
            .ask(&prompt(seed, 20))
            .await
            .failed_clean(Code::PrefillFailed);
    }
    let resting = |front: &Front, role: &str| {
        use gateway::engine::{Engine as _, Readiness};
        let facts = front.doors.facts();
        let worker = facts.workers.iter().find(|it| it.name == role).unwrap();
        worker.readiness != Readiness::Ready
    };
    assert!(resting(&front, "prefill"));
    assert!(!resting(&front, "decode"));
    let prompt = prompt(9, 20);
    let again = async {
        loop {
            let heard = front.ask(&prompt).await;
            match heard.end {
                Ok(_) => return heard,
                Err(fault) => assert_eq!(fault.code, Code::Unavailable, "{fault}"),
            }
            tokio::task::yield_now().await;
        }
    };
    let heard = tokio::time::timeout(LONG, again)
        .await
        .expect("it rests a while");
    heard.is_right(&prompt);
}

/// Engines that hang cost a stage's time and not the request's: another pair answers.
#[tokio::test]
async fn an_engine_that_says_nothing_has_a_stage_and_no_more() {
    for engines in [Vec::from(Engine::sglang_pair()), Engine::vllm_pair().into()] {
        for hung in ["prefill", "decode"] {
            let about = format!("{:?}, {hung}", engines[0].dialect);
            let named = |engine: &Engine, pair: &str| {
                let name = format!("{pair}-{}", engine.name);
                engine.clone().named(&name)
            };
            let all = ["a", "b"].map(|pair| [named(&engines[0], pair), named(&engines[1], pair)]);
            let all = all.concat();
            let front = Front::with(all, |config| {
                config.machine.prefill_ms = 300;
                config.machine.silence_ms = 300;
                config.machine.linger_ms = 300;
            })
            .await;
            front
                .fleet
                .rule(Rule::new(Act::Hang).on(&format!("a-{hung}")));
            for seed in 0..3 {
                let prompt = prompt(seed, 20);
                println!("{about}");
                front.ask(&prompt).await.is_right(&prompt);
            }
        }
    }
    // Who goes on speaking is not silent, however long it takes.
    let slow = Engine::sglang_pair().map(|engine| engine.paced(1, 1, 60));
    let front = Front::with(slow, |config| config.machine.silence_ms = 150).await;
    let words = prompt(1, 20);
    front.ask(&words).await.is_right(&words);
    // Decode's time does not wait for prefill's, which is long.
    for engines in [vec![Engine::sglang()], Engine::sglang_pair().into()] {
        let last = engines.last().expect("one or two").name.clone();
        let front = Front::with(engines, |config| {
            config.machine.silence_ms = 150;
            config.machine.max_retries = 0;
        })
        .await;
        front.fleet.rule(Rule::new(Act::Stall).on(&last));
        let code = front.ask(&words).await.code();
        assert_eq!(code, Code::DecodeTimeout, "{last}");
    }
    // Where there is no other, the stage is said.
    let front = Front::with(Engine::vllm_pair(), |config| {
        config.machine.prefill_ms = 100;
        config.machine.max_retries = 0;
    })
    .await;
    front.fleet.rule(Rule::new(Act::Hang).on("prefill"));
    let heard = front.ask(&prompt(1, 20)).await;
    heard.failed_clean(Code::PrefillTimeout);
}
