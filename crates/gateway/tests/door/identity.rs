//! Whose answer it is, how often a name is used, and what clients cannot choose.

use super::support::{Front, LONG, WORDS, hear, job, prompt};
use gateway::engine::{Code, Engine as _, TenantId};
use scripted::{Act, Engine, Rule};
use std::collections::BTreeSet;

#[tokio::test]
async fn an_answer_under_another_name_is_not_released() {
    for engines in [
        Vec::from(Engine::sglang_pair()),
        Vec::from(Engine::vllm_pair()),
        vec![Engine::sglang()],
        vec![Engine::vllm()],
    ] {
        let about = format!("{:?} {}", engines[0].dialect, engines.len());
        let answers = engines.last().unwrap().name.clone();
        let front = Front::new(engines).await;
        front.fleet.rule(Rule::new(Act::OtherId).on(&answers));
        let heard = front.ask(&prompt(1, 20)).await;
        assert_eq!(heard.code(), Code::IntegrityAnothersAnswer, "{about}");
        assert!(!heard.begun, "{about}");
        front.comes_to_rest().await;
    }
}

#[tokio::test]
async fn who_does_not_count_is_not_believed() {
    for engines in [
        Vec::from(Engine::sglang_pair()),
        Vec::from(Engine::vllm_pair()),
    ] {
        let front = Front::new(engines).await;
        front.fleet.rule(Rule::new(Act::NoUsage).on("prefill"));
        let heard = front.ask(&prompt(1, 20)).await;
        assert!(matches!(
            heard.code(),
            Code::IntegrityWrongCount | Code::PrefillFailed
        ));
        assert!(!heard.begun && heard.tokens.is_empty());
        front.comes_to_rest().await;
    }
}

#[tokio::test]
async fn a_count_that_differs_is_never_an_answer() {
    for (role, counted) in [
        ("prefill", 19),
        ("prefill", 21),
        ("decode", 19),
        ("decode", 2500),
    ] {
        for engines in [
            Vec::from(Engine::sglang_pair()),
            Vec::from(Engine::vllm_pair()),
        ] {
            let front = Front::new(engines).await;
            let act = Act::Count {
                prompt_tokens: counted,
            };
            front.fleet.rule(Rule::new(act).on(role));
            let heard = front.ask(&prompt(1, 20)).await;
            heard.failed_clean(Code::IntegrityWrongCount);
            front.comes_to_rest().await;
        }
    }
}

#[tokio::test]
async fn no_name_and_no_room_comes_twice() {
    let front = Front::new(Engine::sglang_pair()).await;
    front.fleet.rule(
        Rule::new(Act::Refuse {
            status: 500,
            message: None,
        })
        .on("prefill")
        .times(3),
    );
    for seed in 0..8 {
        front.ask(&prompt(seed, 20)).await;
    }
    front.comes_to_rest().await;
    let mut rooms = BTreeSet::new();
    let mut names = BTreeSet::new();
    for engine in ["prefill", "decode"] {
        for arrival in front.fleet.arrivals(engine) {
            assert!(names.insert(arrival.rid.expect("every leg has a name")));
            rooms.insert((engine, arrival.room.expect("and a room")));
        }
    }
    let widths: BTreeSet<usize> = names.iter().map(String::len).collect();
    assert_eq!(widths.len(), 1, "of one width: SGLang aborts by prefix");
    assert_eq!(names.len(), rooms.len());
}

/// Each tenant's pages are kept apart at the engines, and so are the parts that a tenant asks for.
#[tokio::test]
async fn every_domain_has_a_salt_of_its_own() {
    for (engines, field) in [
        (vec![Engine::sglang()], "extra_key"),
        (vec![Engine::vllm()], "cache_salt"),
    ] {
        let front = Front::new(engines).await;
        let salts = [
            ("a", None),
            ("a", None),
            ("b", None),
            ("a", Some("x")),
            ("b", Some("x")),
        ];
        for (tenant, salt) in salts {
            let mut job = job(&prompt(1, 20), LONG);
            job.tenant = TenantId::new(tenant);
            job.cache_salt = salt.map(str::to_owned);
            let answer = front.doors.submit(job).expect("taken");
            hear(answer).await.is_right(&prompt(1, 20));
        }
        let arrivals = front.fleet.arrivals("single");
        let sent: Vec<&str> = arrivals
            .iter()
            .map(|it| it.body[field].as_str().expect("a salt"))
            .collect();
        assert_eq!(sent[0], sent[1]);
        let different: BTreeSet<&str> = sent.iter().copied().collect();
        assert_eq!(different.len(), 4, "{sent:?}");
        assert!(sent.iter().all(|salt| *salt != "x" && !salt.is_empty()));
        assert_eq!(
            arrivals[0].body["max_tokens"]
                .as_u64()
                .unwrap_or(WORDS.into()),
            6
        );
    }
}

/// A reference is used by its own request, once, and one that nobody can use is not passed on.
#[tokio::test]
async fn references_are_used_once_and_by_their_own() {
    let front = Front::new(Engine::vllm_pair()).await;
    front
        .fleet
        .rule(Rule::new(Act::NoReference).on("prefill").nth(2));
    for seed in 0..3 {
        let prompt = prompt(seed, 20);
        let heard = front.ask(&prompt).await;
        match seed {
            1 => heard.failed_clean(Code::PrefillFailed),
            _ => heard.is_right(&prompt),
        }
    }
    front.comes_to_rest().await;
    let all = front.fleet.all();
    assert_eq!(
        (all.references_used, all.references_misused),
        (2, 0),
        "{all:?}"
    );
    assert_eq!(
        front.fleet.counts("decode").arrived,
        2,
        "decode was not asked without one"
    );
}
