//! Another try: with new names, elsewhere, and never behind something that the client has.

use super::support::{Front, LONG, prompt};
use gateway::engine::{Code, Event};
use scripted::{Act, Engine, Rule};

fn two_prefills() -> [Engine; 3] {
    let [prefill, decode] = Engine::sglang_pair();
    [prefill.clone().named("one"), prefill.named("two"), decode]
}

/// Where there is no connection nothing was begun: nobody waits for what might still land.
#[tokio::test]
async fn a_dead_prefill_costs_nobody_an_answer_nor_time() {
    let front = Front::with(two_prefills(), |config| {
        config.machine.settle_ms = 600_000;
    })
    .await;
    front.fleet.kill("one").await;
    for seed in 0..6 {
        let prompt = prompt(seed, 20);
        front.ask(&prompt).await.is_right(&prompt);
    }
    front.comes_to_rest().await;
    let all = front.fleet.all();
    assert_eq!((all.rooms_again, all.broken), (0, 0), "{all:?}");
    front.until("legs_unreached", |count| count > 0).await;
}

/// The decode leg of an attempt that has failed is ended before another of the same request goes
/// there.
#[tokio::test]
async fn a_retry_waits_for_the_legs_before_it() {
    let front = Front::new(two_prefills()).await;
    let refuse = Act::Refuse {
        status: 500,
        message: None,
    };
    front.fleet.rule(Rule::new(refuse).nth(1).on("one"));
    let prompt = prompt(1, 20);
    front.ask(&prompt).await.is_right(&prompt);
    front.comes_to_rest().await;
    let decode = front.fleet.log();
    let decode: Vec<_> = decode.iter().filter(|it| &*it.engine == "decode").collect();
    let arrivals: Vec<usize> = decode
        .iter()
        .enumerate()
        .filter(|(_, it)| matches!(&it.what, scripted::What::Arrived(_)))
        .map(|(at, _)| at)
        .collect();
    let aborted = decode
        .iter()
        .position(|it| matches!(it.what, scripted::What::Aborted { .. }));
    if arrivals.len() == 2 {
        assert!(aborted.is_some_and(|at| arrivals[0] < at && at < arrivals[1]));
    }
}

#[tokio::test]
async fn a_refusal_of_the_client_is_not_tried_again() {
    let front = Front::new(two_prefills()).await;
    let refuse = Act::Refuse {
        status: 400,
        message: Some("that field is wrong".into()),
    };
    front.fleet.rule(Rule::new(refuse));
    let heard = front.ask(&prompt(1, 20)).await;
    heard.failed_clean(Code::InvalidRequest);
    let message = heard.end.unwrap_err().message;
    assert!(message.contains("that field is wrong"), "{message}");
    front.comes_to_rest().await;
    let prefills = front.fleet.counts("one").arrived + front.fleet.counts("two").arrived;
    assert_eq!(prefills, 1);
}

/// Decode is cut off in the middle: what the client has stays, and an error ends it.
#[tokio::test]
async fn nothing_is_tried_again_behind_what_was_released() {
    let pairs = ["", "-b"].map(|n| {
        Engine::sglang_pair().map(|engine| {
            let name = format!("{}{n}", engine.name);
            engine.named(&name)
        })
    });
    let front = Front::new(pairs.into_iter().flatten()).await;
    front.fleet.rule(Rule::new(Act::Cut).on("decode"));
    front.fleet.rule(Rule::new(Act::Cut).on("decode-b"));
    let prompt = prompt(1, 20);
    let mut answer = front.submit(&prompt, LONG).expect("taken");
    let (mut tokens, mut begun, mut failed) = (Vec::new(), 0, None);
    while let Some(event) = answer.events.recv().await {
        match event {
            Event::Committed(_) => begun += 1,
            Event::Tokens { tokens: new, .. } => tokens.extend(new.iter().map(|it| it.id)),
            Event::Failed(fault) => failed = Some(fault.code),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(failed, Some(Code::DecodeFailed));
    assert!(begun <= 1);
    assert_eq!(tokens, scripted::expected(&prompt, tokens.len()));
    let decodes = front.fleet.counts("decode").arrived + front.fleet.counts("decode-b").arrived;
    assert!(tokens.is_empty() || decodes == 1, "{decodes}");
}

/// Decode of an attempt that has failed goes on speaking, words of somebody else, while another pair
/// answers: none of them is in the answer.
#[tokio::test]
async fn what_an_old_attempt_says_is_in_no_answer() {
    let pairs = ["", "-b"].map(|n| {
        Engine::sglang_pair().map(|engine| {
            let name = format!("{}{n}", engine.name);
            engine.named(&name).paced(0, 0, 30)
        })
    });
    let front = Front::with(pairs.into_iter().flatten(), |config| {
        config.machine.settle_ms = 1_000; // so long the old decode is left to itself
    })
    .await;
    let refuse = Act::Refuse {
        status: 500,
        message: None,
    };
    let prompt = prompt(1, 20);
    let others = Rule::new(Act::IgnoreRoom).on("decode");
    front.fleet.rule(others.nth(1).every_ms(20));
    front
        .fleet
        .rule(Rule::new(refuse).on("prefill").nth(1).after_ms(70));
    front.ask(&prompt).await.is_right(&prompt);
    assert_eq!(front.fleet.counts("decode").arrived, 1);
    assert_eq!(front.fleet.counts("decode-b").arrived, 1);
    front.comes_to_rest().await;
}
