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

/// Of a pair it is prefill that remembers how a prompt begins.
#[tokio::test]
async fn what_begins_alike_goes_to_one_prefill() {
    let [prefill, decode] = Engine::sglang_pair();
    let front = Front::new([prefill.clone().named("one"), prefill.named("two"), decode]).await;
    let mut alike = prompt(1, 300);
    front.ask(&alike).await.is_right(&alike);
    assert_eq!(front.fleet.counts("one").arrived, 1, "the first of equals");
    front.fleet.rule(Rule::new(Act::Hang).on("one").nth(1));
    let held = front.submit(&prompt(2, 40), LONG).expect("taken");
    assert!(front.fleet.until(LONG, |all| all.arrived >= 4).await);
    assert_eq!(
        front.fleet.counts("one").arrived,
        2,
        "and has something to do now"
    );
    alike.push(300);
    front.ask(&alike).await.is_right(&alike);
    let [one, two] = ["one", "two"].map(|it| front.fleet.counts(it).arrived);
    assert_eq!((one, two), (3, 0));
    drop(held);
}

/// Which of them a request goes to is not known yet: what not all can do is promised by none.
#[tokio::test]
async fn engines_of_two_kinds_have_no_text_path() {
    let fields = |front: &Front| front.doors.facts().text_path.fields;
    let both = Front::new([Engine::sglang(), Engine::vllm().named("other")]).await;
    both.ask(&prompt(1, 20)).await.is_right(&prompt(1, 20));
    assert!(fields(&both).is_empty(), "{:?}", fields(&both));
    let one = Front::new([Engine::sglang()]).await;
    one.ask(&prompt(1, 20)).await.is_right(&prompt(1, 20));
    assert!(fields(&one).contains(&"tools"));
}

/// The key of an engine goes with each request to it, and to no other.
#[tokio::test]
async fn an_engine_s_key_goes_to_it_alone() {
    let front = Front::new(Engine::sglang_pair()).await;
    let mut prefill = upstream(&front, "prefill");
    // Another address is another engine; the same name with a key comes after it has left.
    front.doors.engines(vec![upstream(&front, "decode")]);
    prefill.key = Some("a-key".into());
    front
        .doors
        .engines(vec![prefill, upstream(&front, "decode")]);
    front.measure_all();
    front.ask(&prompt(1, 20)).await.is_right(&prompt(1, 20));
    let keys = ["prefill", "decode"].map(|name| {
        let legs = front.fleet.arrivals(name);
        let mut headers = legs[0].headers.clone().into_iter();
        headers
            .find(|(name, _)| name == "authorization")
            .map(|it| it.1)
    });
    assert_eq!(keys, [Some("Bearer a-key".to_owned()), None]);
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

/// A prefill with data-parallel ranks of unequal pools: each attempt goes to one that holds its prompt, in turn,
/// and both of its legs say which; what no rank holds is refused before anybody is asked.
#[tokio::test]
async fn a_prompt_goes_to_a_rank_that_holds_it() {
    let front = Front::new(Engine::sglang_pair()).await;
    let mut found = front.found(0);
    found.ranks = vec![100, 400];
    found.lengths = Some(handoff::Lengths {
        max_prompt: 400,
        max_model_len: 4096,
    });
    front.doors.measured("prefill", Ok(found));
    for (seed, tokens) in [
        (1, 50),
        (2, 50),
        (3, 100),
        (4, 101),
        (5, 300),
        (6, 400),
        (7, 20),
    ] {
        let prompt = prompt(seed, tokens);
        front.ask(&prompt).await.is_right(&prompt);
    }
    let [prefill, decode] = ["prefill", "decode"].map(|it| front.fleet.arrivals(it));
    let mut named = std::collections::BTreeSet::new();
    for leg in &prefill {
        let rank = leg.body["routed_dp_rank"].as_u64().expect("a rank");
        assert!(leg.prompt_tokens <= [100, 400][rank as usize], "{leg:?}");
        named.insert((leg.prompt_tokens <= 100, rank));
        let room = leg.room.expect("a room");
        assert_eq!(room % 2, rank, "who follows the room comes there too");
        let other = decode
            .iter()
            .find(|it| it.room == leg.room)
            .expect("its decode");
        assert_eq!(other.body["disagg_prefill_dp_rank"], rank);
    }
    assert_eq!(Vec::from_iter(named), [(false, 1), (true, 0), (true, 1)]);
    let before = front.fleet.all().arrived;
    let heard = front.ask(&prompt(1, 401)).await;
    heard.failed_clean(Code::ContextLengthExceeded);
    assert_eq!(front.fleet.all().arrived, before, "no engine was asked");
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
