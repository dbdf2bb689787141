//! Where requests go: to engines that are named, by what they have to do, near to what they share.

use super::support::{Front, LONG, hear, job, prompt};
use gateway::door::Upstream;
use gateway::engine::{Code, Engine as _, Event, Job, TenantId};
use scripted::{Act, Engine, Rule};

fn singles(names: &[&str]) -> Vec<Engine> {
    let named = |name: &&str| Engine::sglang().named(name);
    names.iter().map(named).collect()
}

fn upstream(front: &Front, name: &str) -> Upstream {
    Upstream {
        name: name.into(),
        authority: front.fleet.address(name).to_string(),
        tls: false,
        key: None,
    }
}

/// To an engine that is named no more nothing new goes, and what it does is brought to its end.
#[tokio::test]
async fn an_engine_that_is_named_no_more_ends_what_it_does() {
    let slow = singles(&["one", "two"]).into_iter();
    let front = Front::new(slow.map(|engine| engine.paced(1, 0, 30))).await;
    front.doors.engines(vec![upstream(&front, "one")]);
    let first = prompt(1, 20);
    let mut answer = front.submit(&first, LONG).expect("taken");
    while !matches!(answer.events.recv().await, Some(Event::Tokens { .. })) {}
    front.doors.engines(vec![upstream(&front, "two")]);
    front.measure_all();
    let before = front.fleet.counts("one").arrived;
    // However much the other has to do.
    let all: Vec<_> = (5..9)
        .map(|seed| front.submit(&prompt(seed, 200), LONG).expect("taken"))
        .collect();
    for answer in all {
        hear(answer).await;
    }
    for seed in 2..5 {
        let prompt = prompt(seed, 20);
        front.ask(&prompt).await.is_right(&prompt);
    }
    let mut end = None;
    while let Some(event) = answer.events.recv().await {
        end = Some(event);
    }
    assert_eq!(end, Some(Event::Done), "what ran was brought to its end");
    let counts = front.fleet.counts("one");
    assert_eq!((counts.arrived, counts.broken), (before, 0), "{counts:?}");
    let known = |front: &Front| front.doors.facts().workers.len();
    while known(&front) > 1 {
        front.measure_all();
        tokio::task::yield_now().await;
    }
    // None is left, and one comes back.
    front.doors.engines(Vec::new());
    front.ask(&first).await.failed_clean(Code::Unavailable);
    front.doors.engines(vec![upstream(&front, "one")]);
    front.measure_all();
    front.ask(&first).await.is_right(&first);
    assert_eq!(front.fleet.counts("one").arrived, before + 1);
}

/// A client that leaves while its engine is named no more: its leg is ended there as anywhere.
#[tokio::test]
async fn an_engine_that_is_named_no_more_is_still_told_to_end() {
    let slow = singles(&["one", "two"]).into_iter();
    let front = Front::new(slow.map(|engine| engine.paced(1, 0, 50))).await;
    let mut answer = front.submit(&prompt(1, 20), LONG).expect("taken");
    while !matches!(answer.events.recv().await, Some(Event::Tokens { .. })) {}
    front.doors.engines(vec![upstream(&front, "two")]);
    drop(answer);
    front.comes_to_rest().await;
    let counts = front.fleet.counts("one");
    assert_eq!((counts.abort_calls, counts.aborted), (1, 1), "{counts:?}");
}

/// Prompts that begin alike go where the first went, in one isolation domain; another domain's do not
/// follow them; and nobody waits at one engine while another has nothing to do.
#[tokio::test]
async fn what_begins_alike_goes_to_one_engine_within_its_domain() {
    let front = Front::new(singles(&["one", "two", "three"])).await;
    let shared = prompt(1, 300);
    let ask = |tenant: &str, end: u32| {
        let mut prompt = shared.clone();
        prompt.push(300 + end);
        Job {
            tenant: TenantId::new(tenant),
            ..job(&prompt, LONG)
        }
    };
    let arrived = |front: &Front| ["one", "two", "three"].map(|it| front.fleet.counts(it).arrived);
    // Another is busy, so that the least loaded is not always the first.
    for end in 0..6 {
        hear(front.doors.submit(ask("a", end)).expect("taken")).await;
    }
    assert_eq!(arrived(&front), [6, 0, 0]);
    front.fleet.rule(Rule::new(Act::Hang).on("one").nth(1));
    let held = front.doors.submit(ask("b", 0)).expect("taken");
    assert!(front.fleet.until(LONG, |all| all.arrived >= 7).await);
    // The first engine is busy with another's prompt; a's follow each other all the same.
    hear(front.doors.submit(ask("a", 7)).expect("taken")).await;
    assert_eq!(arrived(&front), [8, 0, 0]);
    // Nobody knows of c: it goes where there is nothing to do.
    hear(front.doors.submit(ask("c", 8)).expect("taken")).await;
    assert_eq!(arrived(&front), [8, 1, 0]);
    drop(held);
}

/// What is near has its bound: an engine with much to do gets nothing more for that.
#[tokio::test]
async fn nobody_waits_at_one_engine_for_what_it_may_remember() {
    let front = Front::new(singles(&["one", "two"])).await;
    front.fleet.rule(Rule::new(Act::Hang).on("one"));
    let shared = prompt(1, 2_000);
    let mut held = Vec::new();
    for end in 0..5 {
        let mut prompt = shared.clone();
        prompt.push(300 + end);
        held.push(front.submit(&prompt, LONG).expect("taken"));
        let all = u64::from(end) + 1;
        assert!(front.fleet.until(LONG, |it| it.arrived == all).await);
    }
    let [one, two] = ["one", "two"].map(|it| front.fleet.counts(it).arrived);
    assert_eq!(
        (one, two),
        (3, 2),
        "4,096 tokens more than the other, and no more"
    );
}

/// A session goes where it was, whatever it says now; the same word of another domain means nothing.
#[tokio::test]
async fn a_session_stays_where_it_was() {
    let front = Front::new(singles(&["one", "two"])).await;
    let ask = |tenant: &str, seed: u32| Job {
        tenant: TenantId::new(tenant),
        session: Some("mine".into()),
        ..job(&prompt(seed, 20), LONG)
    };
    front.fleet.rule(Rule::new(Act::Hang).on("one").nth(1));
    let held = front.doors.submit(ask("x", 0)).expect("taken");
    assert!(front.fleet.until(LONG, |all| all.arrived >= 1).await);
    hear(front.doors.submit(ask("a", 1)).expect("taken")).await;
    drop(held);
    for seed in 2..6 {
        hear(front.doors.submit(ask("a", seed)).expect("taken")).await;
    }
    assert_eq!(front.fleet.counts("two").arrived, 5);
}

/// An engine of weight 3 has three times as much to do.
#[tokio::test]
async fn who_has_more_weight_gets_more() {
    let slow = singles(&["one", "two"]).into_iter();
    let front = Front::new(slow.map(|engine| engine.paced(50, 0, 50))).await;
    let mut heavy = front.found(1);
    heavy.weight = 3;
    front.doors.measured("two", Ok(heavy));
    let answers: Vec<_> = (0..12)
        .map(|seed| front.submit(&prompt(seed, 20), LONG).expect("taken"))
        .collect();
    assert!(front.fleet.until(LONG, |all| all.arrived == 12).await);
    let [one, two] = ["one", "two"].map(|it| front.fleet.counts(it).arrived);
    assert_eq!((one, two), (3, 9));
    for answer in answers {
        hear(answer).await;
    }
}

/// Engines of one group do not meet those of another.
#[tokio::test]
async fn groups_do_not_meet() {
    let [prefill, decode] = Engine::sglang_pair();
    let front = Front::new([prefill, decode]).await;
    let mut other = front.found(1);
    other.group = 7;
    front.doors.measured("decode", Ok(other.clone()));
    front
        .ask(&prompt(1, 20))
        .await
        .failed_clean(Code::Unavailable);
    let mut same = front.found(0);
    same.group = 7;
    front.doors.measured("prefill", Ok(same));
    let prompt = prompt(1, 20);
    front.ask(&prompt).await.is_right(&prompt);
}
