//! The engine in one process: the reference for everything else.

use handoff::{Ending, Finish, Rejection, Spec};
use pages::Domain;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use testkit::{SmallSpec, small_gguf};
use wire::{Ask, Sampling};
use worker::EngineConfig;
use worker::local::{Event, Local, Running};

fn model() -> PathBuf {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| tempfile::tempdir().unwrap());
    small_gguf(dir.path(), SmallSpec::default())
}

fn config() -> EngineConfig {
    EngineConfig {
        threads: 1,
        max_context: Some(256),
        ..EngineConfig::new(model())
    }
}

fn spec(tokens: Vec<u32>, max_new: u32, choices: u16, ask: &Ask) -> Spec {
    let sampling = ask.encode();
    Spec {
        choices,
        cache: true,
        sampling,
        ..Spec::new(Domain::new(1), tokens, max_new)
    }
}

fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n)
        .map(|i| 1000 + (seed * 7919 + i * 31) % 20_000)
        .collect()
}

fn endless() -> Ask {
    Ask {
        ignore_eos: true,
        ..Ask::greedy()
    }
}

fn submit(local: &Local, spec: Spec) -> Running {
    local
        .submit(spec, Instant::now() + Duration::from_secs(600))
        .unwrap()
}

/// Tokens and finish of every choice, and how the request ended.
fn collect(mut running: Running) -> (Vec<Vec<u32>>, Vec<Option<Finish>>, Ending) {
    let (mut tokens, mut finishes) = (Vec::new(), Vec::new());
    let mut committed = false;
    loop {
        match running
            .events
            .blocking_recv()
            .expect("an ending comes before the channel's end")
        {
            Event::Committed => {
                assert!(!std::mem::replace(&mut committed, true), "committed twice");
            }
            Event::Token {
                choice,
                token,
                finish,
            } => {
                assert!(committed, "a token before the commit");
                let choice = usize::from(choice);
                if tokens.len() <= choice {
                    tokens.resize(choice + 1, Vec::new());
                    finishes.resize(choice + 1, None);
                }
                assert_eq!(finishes[choice], None, "a token behind the last");
                tokens[choice].push(token.id);
                finishes[choice] = finish;
            }
            Event::Ended(ending) => return (tokens, finishes, ending),
        }
    }
}

fn at_rest(local: &Local) -> bool {
    let pages = local.facts().pages;
    pages.free * 16 == local.ready().pool_tokens
}

/// Polls until the engine's own snapshot says so.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn an_answer_is_the_same_alone_and_in_a_crowd_and_for_every_chunk() {
    let specs: Vec<Spec> = (0..12)
        .map(|i| {
            let ask = Ask {
                sampling: Sampling {
                    seed: u64::from(i),
                    ..Sampling::default()
                },
                ..endless()
            };
            let ask = if i % 3 == 0 { endless() } else { ask };
            spec(prompt(i, 1 + i * 13), 24, 1 + (i % 3) as u16, &ask)
        })
        .collect();
    let alone = Local::start(&config()).unwrap();
    let expected: Vec<_> = specs
        .iter()
        .map(|spec| collect(submit(&alone, spec.clone())))
        .collect();
    for (spec, (tokens, finishes, ending)) in specs.iter().zip(&expected) {
        assert_eq!(*ending, Ending::Finished);
        assert_eq!(tokens.len(), usize::from(spec.choices));
        assert!(tokens.iter().all(|tokens| tokens.len() == 24));
        assert!(
            finishes
                .iter()
                .all(|finish| *finish == Some(Finish::Length))
        );
    }
    let distinct: std::collections::BTreeSet<_> =
        expected.iter().flat_map(|(tokens, ..)| tokens).collect();
    assert!(
        distinct.len() > 12,
        "a model that says the same to everybody proves nothing"
    );

    for (chunk, max_batch) in [(7, 3), (64, 64)] {
        let crowd = EngineConfig {
            chunk,
            max_batch,
            pool_tokens: Some(1024),
            ..config()
        };
        let crowd = Local::start(&crowd).unwrap();
        let running: Vec<_> = specs
            .iter()
            .map(|spec| submit(&crowd, spec.clone()))
            .collect();
        for (running, expected) in running.into_iter().zip(&expected) {
            assert_eq!(
                collect(running),
                *expected,
                "chunk {chunk}, batch {max_batch}"
            );
        }
        wait_for("every page is free", || at_rest(&crowd));
    }
}

#[test]
fn over_the_limit_nothing_is_held() {
    let local = Local::start(&config()).unwrap();
    let limit = local.ready().max_prompt_tokens;
    assert_eq!(limit, 255, "one token of 256 is left for the answer");
    let deadline = Instant::now() + Duration::from_secs(60);
    let submit = |n, max_new| local.submit(spec(prompt(1, n), max_new, 1, &endless()), deadline);
    let too_long = submit(limit + 1, 1).unwrap_err();
    assert!(matches!(
        too_long,
        Ending::Rejected(Rejection::PromptTooLong {
            tokens: 256,
            limit: 255,
            ..
        })
    ));
    let too_much = submit(limit, 2).unwrap_err();
    assert!(matches!(
        too_much,
        Ending::Rejected(Rejection::ContextTooLong {
            prompt: 255,
            max_new: 2,
            limit: 256,
            ..
        })
    ));
    let (tokens, _, ending) = collect(submit(limit, 1).unwrap());
    assert_eq!((tokens[0].len(), ending), (1, Ending::Finished));
    assert_eq!(
        local.facts().counters.attempts_seen,
        1,
        "refused before the engine saw it"
    );
    wait_for("every page is free", || at_rest(&local));
}

#[test]
fn a_client_that_leaves_and_a_stopped_choice_give_their_pages_back() {
    let local = Local::start(&EngineConfig {
        pool_tokens: Some(1024),
        ..config()
    })
    .unwrap();
    drop(submit(&local, spec(prompt(3, 40), 200, 1, &endless())));
    let mut running = submit(&local, spec(prompt(4, 40), 200, 2, &endless()));
    let mut got = 0;
    while got < 8 {
        if let Some(Event::Token { .. }) = running.events.blocking_recv() {
            got += 1;
        }
    }
    running.steering.stop_choice(0);
    running.steering.stop_choice(1);
    let mut ending = None;
    while let Some(event) = running.events.blocking_recv() {
        match event {
            Event::Ended(how) => ending = Some(how),
            _ => got += 1,
        }
    }
    assert_eq!(ending, Some(Ending::Finished));
    assert!(got < 400, "both choices were stopped, {got} tokens came");
    wait_for("both were seen", || {
        local.facts().counters.attempts_seen == 2
    });
    wait_for("every page is free", || at_rest(&local));
    let counters = local.facts().counters;
    assert_eq!((counters.attempts_seen, counters.dropped_grants), (2, 0));
}

#[test]
fn a_deadline_ends_a_request_and_says_where() {
    let local = Local::start(&config()).unwrap();
    let running = local
        .submit(spec(prompt(5, 200), 50, 1, &endless()), Instant::now())
        .unwrap();
    let (_, _, ending) = collect(running);
    assert!(
        matches!(ending, Ending::Failed(handoff::Failure::Deadline(_))),
        "{ending:?}"
    );
    wait_for("every page is free", || at_rest(&local));
}

#[test]
fn a_pool_that_is_too_small_refuses_to_start_and_names_what_fits() {
    let small = EngineConfig {
        pool_tokens: Some(128),
        ..config()
    };
    let error = Local::start(&small).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let error = error.to_string();
    assert!(
        error.contains("largest --max-context that fits is 128"),
        "{error}"
    );
    assert!(error.contains("--pool-tokens 256"), "{error}");
    let fits = EngineConfig {
        max_context: Some(128),
        ..small
    };
    assert_eq!(Local::start(&fits).unwrap().ready().max_context, 128);
}

#[test]
fn scrubbing_changes_no_answer() {
    let spec = spec(prompt(6, 50), 12, 2, &endless());
    let plain = collect(submit(&Local::start(&config()).unwrap(), spec.clone()));
    let scrubbing = EngineConfig {
        scrub: true,
        pool_tokens: Some(256),
        ..config()
    };
    let scrubbing = Local::start(&scrubbing).unwrap();
    for _ in 0..3 {
        assert_eq!(collect(submit(&scrubbing, spec.clone())), plain);
    }
    wait_for("every page is free", || at_rest(&scrubbing));
}

#[test]
fn a_stop_token_ends_an_answer_and_not_before_its_least_length() {
    let local = Local::start(&config()).unwrap();
    let said = |ask: &Ask| {
        let (tokens, finishes, ending) = collect(submit(&local, spec(prompt(3, 9), 24, 1, ask)));
        assert_eq!(ending, Ending::Finished);
        (tokens[0].clone(), finishes[0])
    };
    let (all, _) = said(&endless());
    // A token that it says for the first time in the midst of its answer.
    let at = (4..20)
        .find(|at| !all[..*at].contains(&all[*at]))
        .expect("a model that repeats itself from the start proves nothing");
    let stop = Ask {
        stop_tokens: vec![all[at]],
        ..endless()
    };
    let (tokens, finish) = said(&stop);
    assert_eq!((&tokens[..], finish), (&all[..=at], Some(Finish::Stop)));
    let longer = Ask {
        min_tokens: at as u32 + 1,
        ..stop
    };
    let (tokens, _) = said(&longer);
    assert_eq!(tokens[..at], all[..at], "until there nothing is different");
    assert!(tokens.len() > at, "it may not end there: {tokens:?}");
    assert_ne!(tokens[at], all[at], "so another token is said");
}

/// Whoever serves over it must hear of its end, asked for or not.
#[tokio::test]
async fn the_end_of_the_engines_thread_is_heard() {
    let local = Local::start(&config()).unwrap();
    let ended = local.ended();
    tokio::pin!(ended);
    let early = tokio::time::timeout(Duration::ZERO, &mut ended).await;
    assert!(early.is_err(), "it runs");
    local.stop().unwrap();
    ended.await;
}
