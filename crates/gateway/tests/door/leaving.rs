//! Clients that leave: nothing is dropped in the middle of a transfer, and nothing is left behind.

use super::support::{Front, LONG, prompt};
use gateway::engine::{Code, Event};
use scripted::{Act, Engine, Rule};

/// The client leaves while prefill computes: both legs go on until the transfer has ended.
#[tokio::test]
async fn a_leaver_in_prefill_breaks_nothing_off() {
    for engines in [
        Engine::sglang_pair().map(|engine| engine.paced(150, 50, 5)),
        Engine::vllm_pair().map(|engine| engine.paced(150, 50, 5)),
    ] {
        let about = format!("{:?}", engines[0].dialect);
        let front = Front::new(engines).await;
        let answer = front.submit(&prompt(1, 20), LONG).expect("taken");
        assert!(front.fleet.until(LONG, |all| all.arrived >= 1).await);
        drop(answer);
        front.comes_to_rest().await;
        let all = front.fleet.all();
        assert_eq!((all.broken, all.orphans), (0, 0), "{about}: {all:?}");
        assert_eq!(
            front.fleet.counts("prefill").ended,
            1,
            "{about}: prefill went to its end"
        );
        front.until("requests_abandoned", |count| count == 1).await;
    }
}

/// It leaves while decode generates: decode is ended by the engine's own call.
#[tokio::test]
async fn a_leaver_in_decode_ends_decode() {
    let pair = Engine::sglang_pair().map(|engine| Engine {
        longest: 4096,
        ..engine.paced(1, 1, 20)
    });
    let front = Front::new(pair).await;
    let mut answer = front.submit(&prompt(1, 20), LONG).expect("taken");
    loop {
        match answer.events.recv().await.expect("it goes on") {
            Event::Tokens { .. } => break,
            Event::Committed(_) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(answer);
    front.comes_to_rest().await;
    let decode = front.fleet.counts("decode");
    assert_eq!((decode.abort_calls, decode.aborted), (1, 1), "{decode:?}");
    assert_eq!(front.fleet.all().broken, 0);
    // How a leg ends that was told to is no failure of its engine.
    front.ask(&prompt(2, 20)).await.is_right(&prompt(2, 20));
    front.until("requests_answered", |count| count == 1).await;
    let counts = ["legs_aborted", "decode_failed", "legs_lost"].map(|it| front.count(it));
    assert_eq!(counts, [1, 0, 0]);
}

/// A stop string in the text: the answer ends well, and decode is ended.
#[tokio::test]
async fn a_stopped_answer_ends_well() {
    let pair = Engine::sglang_pair().map(|engine| engine.paced(1, 1, 20));
    let front = Front::new(pair).await;
    let mut answer = front.submit(&prompt(1, 20), LONG).expect("taken");
    let mut ended = false;
    let mut stopped = false;
    while let Some(event) = answer.events.recv().await {
        match event {
            Event::Tokens { .. } if !stopped => {
                stopped = true;
                answer.steering.stop_choice(0);
            }
            Event::Done => ended = true,
            Event::Failed(fault) => panic!("{fault}"),
            _ => {}
        }
    }
    assert!(stopped && ended);
    front.comes_to_rest().await;
}

/// Prefill loses its connection after decode was asked: what it was writing may still land, so decode
/// is not ended before it has had its time.
#[tokio::test]
async fn decode_outlives_a_prefill_that_ended_in_doubt() {
    let front = Front::with(Engine::sglang_pair(), |config| {
        config.machine.settle_ms = 200;
        config.machine.max_retries = 0;
    })
    .await;
    front.fleet.rule(Rule::new(Act::Drop).on("prefill"));
    let heard = front.ask(&prompt(1, 20)).await;
    assert!(heard.end.is_err());
    let before = front.fleet.counts("decode");
    assert_eq!(before.abort_calls, 0, "the client was told first");
    front.comes_to_rest().await;
    let log = front.fleet.log();
    let at = |what: &dyn Fn(&scripted::What) -> bool, engine: &str| {
        let event = log
            .iter()
            .find(|it| &*it.engine == engine && what(&it.what));
        event.expect("it happened").at_ms
    };
    let asked = at(
        &|what| matches!(what, scripted::What::Arrived(_)),
        "prefill",
    );
    let ended = at(
        &|what| matches!(what, scripted::What::AbortCall { .. }),
        "decode",
    );
    assert!(ended - asked >= 199.0, "{} ms", ended - asked);
}

/// The gateway's own end breaks nothing off either: requests are told at once, legs go on as long as a
/// transfer may be under way.
#[tokio::test]
async fn the_end_of_the_gateway_breaks_no_transfer_off() {
    for engines in [
        Engine::sglang_pair().map(|engine| engine.paced(150, 50, 5)),
        Engine::vllm_pair().map(|engine| engine.paced(150, 50, 5)),
    ] {
        let about = format!("{:?}", engines[0].dialect);
        let front = Front::new(engines).await;
        let answer = front.submit(&prompt(1, 20), LONG).expect("taken");
        assert!(front.fleet.until(LONG, |all| all.arrived >= 1).await);
        let (heard, ended) = tokio::join!(super::support::hear(answer), front.doors.end());
        ended.expect("it ends well");
        heard.failed_clean(Code::Draining);
        let all = front.fleet.all();
        assert_eq!(front.fleet.counts("prefill").ended, 1, "{about}: {all:?}");
        assert!(front.fleet.quiet(LONG).await);
        let all = front.fleet.all();
        assert_eq!((all.broken, all.orphans), (0, 0), "{about}: {all:?}");
    }
    // What decode generates is ended by its own call, as for a client that leaves.
    let pair = Engine::sglang_pair().map(|engine| Engine {
        longest: 4096,
        ..engine.paced(1, 1, 20)
    });
    let front = Front::new(pair).await;
    let mut answer = front.submit(&prompt(1, 20), LONG).expect("taken");
    while !matches!(answer.events.recv().await, Some(Event::Tokens { .. })) {}
    front.doors.end().await.expect("it ends well");
    let decode = front.fleet.counts("decode");
    assert_eq!((decode.abort_calls, decode.broken), (1, 0), "{decode:?}");
    // A leg that hangs has its time.
    let front = Front::with(Engine::sglang_pair(), |config| {
        config.end_within = std::time::Duration::from_millis(200);
    })
    .await;
    front.fleet.rule(Rule::new(Act::Hang).on("prefill"));
    let answer = front.submit(&prompt(1, 20), LONG).expect("taken");
    assert!(front.fleet.until(LONG, |all| all.arrived >= 1).await);
    let end = tokio::time::timeout(LONG, front.doors.end()).await;
    end.expect("nobody waits for ever").expect("it ends well");
    drop(answer);
}
