//! Sick servers that look fine: counts, caches, limits, salts, and servers that die.

use super::table::Case;
use super::*;
use serde_json::json;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

async fn judged(case: Case) -> ProbeReport {
    let report = report(Form::Plain, case.suites, &case.known, case.script).await;
    let table = report::table(&report);
    assert_eq!(report.verdict(), case.expected.0, "{}: {table}", case.name);
    if let Some(kind) = case.expected.1 {
        assert!(kinds(&report).contains(&kind), "{}: {table}", case.name);
    }
    report
}

/// Nothing is refused, 600 tokens are advertised: what is above is the incident, and it is not looked
/// for in prompts of a million tokens.
#[tokio::test]
async fn what_is_accepted_beyond_the_advertised_context_is_found_cheaply() {
    let longest = std::sync::Arc::new(AtomicU64::new(0));
    let seen = longest.clone();
    let accepts = move |asked: &Asked| {
        seen.fetch_max(asked.tokens, Relaxed);
        Reply::Text(asked.copied())
    };
    let case = Case {
        known: Known {
            context: Some(LIMIT),
            ..Known::default()
        },
        ..Case::found(
            "",
            Kind::SilentAcceptance,
            &[Suite::Boundary, Suite::Flood],
            accepts,
        )
    };
    let report_ = judged(case).await;
    let table = report::table(&report_);
    assert!(
        table.contains("200 for a prompt of 601 tokens, over the limit of 600"),
        "{table}"
    );
    assert!(longest.load(Relaxed) <= 2 * LIMIT, "{longest:?}");
    assert!(report_.suites.iter().all(|it| it.1.is_none()), "{table}");
}

/// Nothing is refused and nothing is advertised: that cannot be told, and costs a part of the budget.
#[tokio::test]
async fn a_server_without_any_limit_leaves_budget_to_other_suites() {
    let accepts = |asked: &Asked| Reply::Text(asked.copied());
    let case = Case {
        known: Known::default(),
        expected: (ProbeVerdict::CouldNotTell, None),
        ..Case::clean("", &[Suite::Boundary, Suite::Load], accepts)
    };
    let report_ = judged(case).await;
    let table = report::table(&report_);
    assert!(
        table.contains("nothing is advertised; give --context or --limit"),
        "{table}"
    );
    assert!(report_.counts.tokens < 500_000, "{table}");
    assert_eq!(report_.suites[1].1, None, "{table}");
}

/// What is counted for a prompt must not depend on who else asks.
#[tokio::test]
async fn somebody_elses_count_is_found() {
    let first: Mutex<BTreeSet<String>> = Mutex::default();
    let mixed = move |asked: &Asked| {
        let again = !first.lock().unwrap().insert(asked.prompt.clone());
        let mut body = asked.answer(&asked.copied());
        if again && asked.n.is_multiple_of(4) {
            body["usage"]["prompt_tokens"] = json!(asked.tokens + 5);
        }
        Reply::Json(200, vec![], body)
    };
    let report_ = judged(Case::found(
        "",
        Kind::SilentAcceptance,
        &[Suite::Load],
        mixed,
    ))
    .await;
    assert!(report::table(&report_).contains("the same one was counted as"));
    let absurd = |asked: &Asked| {
        let mut body = asked.answer(&asked.copied());
        body["usage"]["prompt_tokens_details"] = json!({"cached_tokens": asked.tokens + 1});
        Reply::Json(200, vec![], body)
    };
    let report_ = judged(Case::found(
        "",
        Kind::SilentAcceptance,
        &[Suite::Load],
        absurd,
    ))
    .await;
    assert!(report::table(&report_).contains("are said to have been cached"));
}

/// A cut that nobody tells of.
#[tokio::test]
async fn a_silent_cut_is_found_though_the_word_stands_in_the_answer() {
    let cut = |asked: &Asked| {
        let mut body = asked.answer(&format!("{} truncated", asked.copied()));
        body["usage"]["prompt_tokens"] = json!(asked.tokens.min(LIMIT));
        body["truncated"] = json!(false);
        Reply::Json(200, vec![], body)
    };
    judged(Case::found(
        "",
        Kind::SilentAcceptance,
        &[Suite::Boundary],
        cut,
    ))
    .await;
}

/// Tenant B gets the answer that A got, and it has no canary in it. It is A's first, which A stays for,
/// and B gets it once.
#[tokio::test]
async fn another_tenants_answer_is_never_clean() {
    let first: Mutex<Option<String>> = Mutex::default();
    let n = AtomicU64::new(0);
    let free = move |asked: &Asked| {
        let n = n.fetch_add(1, Relaxed);
        let word = |it: u64| {
            format!(
                "w{}",
                "abcdefghijklmnopqrstuvwxyz"
                    .repeat(2)
                    .chars()
                    .skip((n * 7 + it * 11) as usize % 26)
                    .take(2 + (it % 5) as usize)
                    .collect::<String>()
            )
        };
        let story: Vec<_> = (0..24).map(|it| word(it * (n + 3))).collect();
        let story = format!("once {}", story.join(" "));
        let mut first = first.lock().unwrap();
        if n == 0 {
            assert!(asked.key.contains("key-of-a"));
            *first = Some(story.clone());
            return Reply::Text(story);
        }
        let foreign = (n > 7 && asked.key.contains("key-of-b")).then(|| first.take());
        match (foreign.flatten(), n % 3) {
            (Some(answer), _) => Reply::Text(answer),
            (None, 0) => Reply::Text(asked.copied()),
            (None, _) => Reply::Text(story),
        }
    };
    let case = Case {
        expected: (ProbeVerdict::CouldNotTell, None),
        ..Case::clean("", &[Suite::Abort], free)
    };
    let report_ = judged(case).await;
    let table = report::table(&report_);
    assert!(
        table.contains("16 words in a row that hardly another answer has"),
        "{table}"
    );
}

/// A salt that has the name of an adapter joins the base model's pages with the adapter's.
#[tokio::test]
async fn a_salt_of_an_adapters_name_must_not_join_it() {
    let seen: Mutex<BTreeSet<String>> = Mutex::default();
    let joined = move |asked: &Asked| {
        let of = |name: &str| asked.body[name].as_str().unwrap_or("").to_owned();
        let adapter = Some(of("model")).filter(|it| it != "m").unwrap_or_default();
        let key = format!(
            "{} {}{} {}",
            asked.key,
            adapter,
            of("cache_salt"),
            asked.prompt
        );
        let hit = !seen.lock().unwrap().insert(key);
        let mut body = asked.answer(&asked.copied());
        let cached = if hit { asked.tokens - 1 } else { 0 };
        body["usage"]["prompt_tokens_details"] = json!({"cached_tokens": cached});
        Reply::Json(200, vec![], body)
    };
    let case = Case {
        known: Known {
            adapters: vec!["poet".to_owned()],
            ..known()
        },
        ..Case::found("", Kind::SharedPrefix, &[Suite::Prefix], joined)
    };
    let report_ = judged(case).await;
    let says: Vec<_> = report_.findings.iter().map(|it| it.says.as_str()).collect();
    assert!(
        says.iter()
            .all(|it| it.contains("under a cache_salt of the name \"poet\"")),
        "{says:?}"
    );
}

/// A server that dies of a prompt over its limit, with the connection closed from then on, or with its
/// front alive.
#[tokio::test]
async fn a_server_that_dies_is_a_finding_of_its_own() {
    for front in [false, true] {
        let dead = AtomicBool::new(false);
        let dies = move |asked: &Asked| {
            if asked.tokens > LIMIT + 100 {
                dead.store(true, Relaxed);
            }
            match dead.load(Relaxed) {
                true if front => Reply::Error(500, "EngineDeadError"),
                true => Reply::Raw(Vec::new()),
                false => honest(asked),
            }
        };
        let suites = &[Suite::Boundary, Suite::Load, Suite::Stream, Suite::Flood];
        let report_ = judged(Case::found("", Kind::Crash, suites, dies)).await;
        let crashes = report_.counts.findings.iter();
        let crashes = crashes.filter(|((kind, _), _)| *kind == Kind::Crash);
        assert_eq!(crashes.map(|it| it.1).sum::<u64>(), 1, "it dies once");
        let table = report::table(&report_);
        assert!(
            table.contains(if front {
                "its engine is dead"
            } else {
                "it is dead"
            }),
            "{table}"
        );
        assert!(
            report_.counts.broken <= 8,
            "nobody asks a dead server on: {table}"
        );
        let crash = report_
            .findings
            .iter()
            .find(|it| it.kind == Kind::Crash)
            .unwrap();
        assert!(!crash.shows.is_empty());
    }
}

/// vLLM's decode: a reference to few blocks with a longer prompt ends it. Before, that was a refusal
/// that was wanted.
#[tokio::test]
async fn a_decode_that_dies_of_a_reference_is_found() {
    let state = Mutex::new((0_u64, true, false));
    let script = move |asked: &Asked| {
        let params = &asked.body["kv_transfer_params"];
        let (length, used, dead) = &mut *state.lock().unwrap();
        if *dead {
            return Reply::Error(500, "EngineDeadError");
        }
        if params["do_remote_decode"] == true {
            (*length, *used) = (asked.tokens, false);
            let mut body = asked.answer("x");
            body["kv_transfer_params"] = json!({"remote_block_ids": [1, 2]});
            return Reply::Json(200, vec![], body);
        }
        if params.is_object() && asked.tokens > *length + 60 {
            *dead = true;
            return Reply::Error(500, "EngineDeadError");
        }
        match params.is_object() && std::mem::replace(used, true) {
            true => Reply::Error(500, "no such blocks"),
            false => honest(asked),
        }
    };
    let url = serve(Form::Plain, |it| it, script).await;
    let known = Known {
        pair: Some(Pair {
            prefill: endpoint(&url, "key-of-a"),
            decode: endpoint(&url, "key-of-a"),
            bootstrap: None,
        }),
        ..known()
    };
    let run = ProbeRun::new(two(&url), SEED, budget());
    let stopped = Suite::Pair.run(&run, &known).await.err();
    let report_ = ProbeReport::new(url, SEED, &run, vec![(Suite::Pair, stopped)]);
    let table = report::table(&report_);
    assert_eq!(kinds(&report_), [Kind::Crash].into(), "{table}");
    let crash = &report_.findings[0];
    assert!(crash.shows[0].prompt().unwrap().len() > 2_000, "{table}");
}

/// A field of engines that ends the engine: five hundred is no refusal that was wanted.
#[tokio::test]
async fn an_engine_that_dies_of_an_injected_field_is_found() {
    let dead = AtomicBool::new(false);
    let injected = std::sync::Arc::new(AtomicU64::new(0));
    let seen = injected.clone();
    let script = move |asked: &Asked| {
        let field = asked.body["kv_transfer_params"].is_object();
        seen.fetch_add(u64::from(field), Relaxed);
        dead.fetch_or(field, Relaxed);
        match dead.load(Relaxed) {
            true => Reply::Error(500, "EngineDeadError"),
            false => honest(asked),
        }
    };
    let report_ = judged(Case::found("", Kind::Crash, &[Suite::Retry], script)).await;
    assert_eq!(kinds(&report_), [Kind::Crash].into());
    assert_eq!(injected.load(Relaxed), 2, "nobody asks a dead server on");
}

/// A supervisor starts it again: it had died all the same.
#[tokio::test]
async fn a_server_that_dies_and_comes_back_had_died() {
    let away = AtomicU64::new(0);
    let script = move |asked: &Asked| {
        if asked.tokens > LIMIT + 100 {
            away.store(5, Relaxed);
        }
        let left = away.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => Reply::Raw(Vec::new()),
            Err(_) => honest(asked),
        }
    };
    let report_ = judged(Case::found("", Kind::Crash, &[Suite::Boundary], script)).await;
    let table = report::table(&report_);
    assert!(table.contains("and came back: it had died"), "{table}");
}

/// 4,000 tokens are advertised, and 600 are taken: that is the limit then, and no fault of this suite's.
#[tokio::test]
async fn a_limit_far_below_the_advertised_context_is_found() {
    let case = Case {
        known: Known {
            context: Some(4_000),
            ..Known::default()
        },
        ..Case::clean("", &[Suite::Boundary], honest)
    };
    let report_ = judged(case).await;
    assert!(report_.counts.by_status[&400] >= 4, "{:?}", report_.counts);
}

/// A model that cannot hold the shortest prompts says nothing of longer ones.
#[tokio::test]
async fn coherence_without_a_control_is_no_pass() {
    let n = AtomicU64::new(0);
    let forgetful = move |asked: &Asked| match n.fetch_add(1, Relaxed) % 3 {
        0 => Reply::Text("on the contrary".to_owned()),
        _ => honest(asked),
    };
    let case = Case {
        expected: (ProbeVerdict::CouldNotTell, None),
        ..Case::clean("", &[Suite::Coherence], forgetful)
    };
    let report_ = judged(case).await;
    assert!(report::table(&report_).contains("nothing can be told of longer ones"));
}

/// A connection that is refused is said once, before everything else.
#[tokio::test]
async fn nobody_there_is_said_once_and_first() {
    let run = ProbeRun::new(two("http://127.0.0.1:9"), SEED, budget());
    let mut suites = Vec::new();
    for suite in [Suite::Load, Suite::Abort, Suite::Prefix, Suite::Control] {
        suites.push((suite, suite.run(&run, &known()).await.err()));
    }
    let report_ = ProbeReport::new("http://127.0.0.1:9".into(), SEED, &run, suites);
    let why = report_.why_not_told();
    assert_eq!(why.len(), 1, "{why:?}");
    assert!(
        why[0].contains("is it running, is the address right?"),
        "{why:?}"
    );
    assert!(run.counts().requests <= 4, "{:?}", run.counts());
}

/// The budget's time ends a request that hangs, and what was found before is reported.
#[tokio::test]
async fn a_hanging_request_does_not_outlive_the_budget() {
    let script = |asked: &Asked| match asked.n {
        0 => Reply::Raw(b"HTTP/1.1 200 x\r\n\r\n<".into()),
        _ => Reply::Hang,
    };
    let url = serve(Form::Plain, |it| it, script).await;
    let budget = Budget {
        time: Duration::from_millis(600),
        ..budget()
    };
    let run = ProbeRun::new(two(&url), SEED, budget);
    run.ask("load", Question::new(Tenant(0), 4)).await.unwrap();
    let spent = run.ask("load", Question::new(Tenant(0), 4)).await;
    assert_eq!(spent.err(), Some(probe::run::Spent::Time));
    assert_eq!(run.counts().hung, 0, "the server had more time");
    assert_eq!(run.findings().len(), 1);
}
