//! Ordinary traffic: every answer is the one to its own prompt.

use super::support::{Front, LONG, WORDS, hear, job, prompt};
use gateway::engine::{Carried, Code, Engine as _, Finish, Job};
use scripted::{Dialect, Engine, Role};
use serde_json::json;
use std::sync::Arc;

#[tokio::test]
async fn every_kind_of_engine_answers_its_own_prompt() {
    let kinds: Vec<Vec<Engine>> = vec![
        Engine::sglang_pair().into(),
        Engine::sglang_pair()
            .map(|engine| Engine {
                incremental: true,
                ..engine
            })
            .into(),
        Engine::vllm_pair().into(),
        vec![Engine::sglang()],
        vec![Engine::vllm()],
        vec![Engine::llama()],
    ];
    for engines in kinds {
        let about = format!("{:?}", engines[0].dialect);
        let front = Front::new(engines).await;
        for seed in 0..3 {
            let prompt = prompt(seed, 20 + seed);
            println!("{about}");
            front.ask(&prompt).await.is_right(&prompt);
        }
        front.comes_to_rest().await;
        let all = front.fleet.all();
        assert_eq!(
            (all.orphans, all.broken, all.rooms_again),
            (0, 0, 0),
            "{about}"
        );
        assert_eq!((all.references_misused, all.abort_calls), (0, 0), "{about}");
    }
}

/// What an engine says that it had cached is told, and its next answer does not inherit it.
#[tokio::test]
async fn cached_tokens_are_the_answer_s_own() {
    let caches = |engine: Engine| Engine {
        cached: 16,
        ..engine
    };
    for (engine, cached) in [(caches(Engine::sglang()), 16), (Engine::sglang(), 0)] {
        let front = Front::new([engine]).await;
        let heard = front.ask(&prompt(1, 20)).await;
        heard.is_right(&prompt(1, 20));
        assert_eq!(heard.cached, cached);
    }
}

/// One hundred and twenty at eight at once, every fifth of which leaves at some time: every answer is
/// right, and nothing is left at the engines.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_with_leavers_gets_its_own_answers_and_leaves_nothing() {
    for dialect in [Dialect::Sglang, Dialect::Vllm] {
        let pair = |n: &str| {
            [Role::Prefill, Role::Decode].map(|role| {
                let name = format!("{}{n}", role.name());
                Engine::new(dialect, role).named(&name).paced(2, 2, 1)
            })
        };
        let engines = pair("").into_iter().chain(pair("-b"));
        let front = Arc::new(Front::new(engines).await);
        let mut crowd = tokio::task::JoinSet::new();
        for worker in 0..8u32 {
            let front = front.clone();
            crowd.spawn(async move {
                for round in 0..15 {
                    let n = worker * 15 + round;
                    let prompt = prompt(n, 10 + n % 40);
                    if n % 5 != 0 {
                        front.ask(&prompt).await.is_right(&prompt);
                        continue;
                    }
                    let mut answer = front.submit(&prompt, LONG).expect("taken");
                    if n % 2 == 0 {
                        answer.events.recv().await; // it has begun
                    }
                }
            });
        }
        while let Some(done) = crowd.join_next().await {
            done.expect("nobody has panicked");
        }
        front.comes_to_rest().await;
        let all = front.fleet.all();
        assert_eq!((all.orphans, all.rooms_again), (0, 0), "{all:?}");
        assert_eq!((all.broken, all.references_misused), (0, 0), "{all:?}");
        front.until("requests_answered", |count| count == 96).await;
    }
}

/// vLLM writes a conversation's prompt itself: its tokens are asked for before, prefill is sent them,
/// and what decode counts must be as many.
#[tokio::test]
async fn a_conversation_that_vllm_writes_is_counted_before() {
    for engines in [Vec::from(Engine::vllm_pair()), vec![Engine::vllm()]] {
        let front = Front::new(engines).await;
        let messages = json!([{"role": "user", "content": "what is there"}]);
        let fields = json!({"messages": messages, "tools": [{"type": "function"}], "stop": "now"});
        let carried = Carried {
            chat: true,
            stream: true,
            fields: fields.as_object().expect("it is one").clone(),
        };
        let tokens = front.doors.tokens_of(&carried).await.expect("it says");
        let tokens = tokens.expect("it writes it");
        assert_eq!(
            tokens.len(),
            scripted::tokens::count(&scripted::tokens::chat([("user", "what is there")]))
        );
        let job = |tokens: &[u32]| Job {
            carried: Some(Arc::new(carried.clone())),
            ..job(tokens, LONG)
        };
        let heard = hear(front.doors.submit(job(&tokens)).expect("taken")).await;
        assert_eq!(heard.end, Ok(Finish::Length));
        let right = scripted::expected(&tokens, WORDS as usize);
        assert_eq!(heard.said, scripted::tokens::decode(&right));
        assert_eq!(heard.sampled, Some(WORDS));
        for name in ["prefill", "decode", "single"] {
            for arrival in front.fleet.arrivals(name) {
                let has = |name: &str| arrival.fields.iter().any(|it| it == name);
                assert!(has("cache_salt"), "{arrival:?}");
                let prefill = name == "prefill";
                assert_eq!((has("tools"), has("seed")), (!prefill, !prefill));
            }
        }
        // The engine has another conversation than was counted.
        let heard = hear(front.doors.submit(job(&tokens[1..])).expect("taken")).await;
        let fault = heard.end.expect_err("a count that differs is no answer");
        assert_eq!(fault.code, Code::IntegrityWrongCount, "{fault}");
        assert_eq!(heard.said, "");
    }
}
