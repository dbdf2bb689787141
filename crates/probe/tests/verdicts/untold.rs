//! What cannot be told is said to be so: busy servers, lengths that cost too much, reuse that may be
//! chance. And what only time tells.

use super::table::{Case, all_are_as_expected};
use super::*;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const BOUNDARY: &[Suite] = &[Suite::Boundary];

/// Busy from the first prompt of so many tokens on, for everybody.
fn busy_from(tokens: u64) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    let busy = AtomicBool::new(false);
    move |asked: &Asked| match busy.fetch_or(asked.tokens >= tokens, Relaxed) {
        false if asked.tokens < tokens => honest(asked),
        _ => Reply::Error(503, "busy"),
    }
}

#[tokio::test]
async fn a_busy_server_refuses_nothing() {
    let always = |asked: &Asked| match asked.tokens > 300 {
        true => Reply::Error(429, "slow down"),
        false => honest(asked),
    };
    let cases = vec![
        Case::clean(
            "busy to every longer prompt, limit unknown",
            BOUNDARY,
            always,
        )
        .knowing(Known::default())
        .untold()
        .saying("the server is busy (429 to a prompt, again and again)"),
        Case::clean(
            "busy from just below the limit on",
            BOUNDARY,
            busy_from(LIMIT - 1),
        )
        .untold()
        .saying("the server is busy (503 to short prompts too"),
        Case::clean(
            "busy from just above the limit on",
            BOUNDARY,
            busy_from(LIMIT + 1),
        )
        .untold()
        .saying("the server is busy (503 to short prompts too"),
        Case::clean(
            "busy ever since it was flooded",
            &[Suite::Flood],
            busy_from(LIMIT + 1),
        )
        .untold()
        .saying("answers 503 to whatever it is asked: busy, or dead?"),
    ];
    all_are_as_expected(cases).await;
}

#[tokio::test]
async fn what_costs_too_much_is_not_sent_and_said() {
    let context = Known {
        context: Some(300_000),
        ..Known::default()
    };
    let longest = std::sync::Arc::new(AtomicU64::new(0));
    let seen = longest.clone();
    let accepts = move |asked: &Asked| {
        seen.fetch_max(asked.tokens, Relaxed);
        honest(asked)
    };
    let dear = Case::clean("a context of 300,000 tokens", BOUNDARY, accepts)
        .knowing(context)
        .untold()
        .saying("a prompt as long as the context of 300000 tokens takes too much");
    let pool = Known {
        pool: Some(600_000),
        ..known()
    };
    let seen = longest.clone();
    let accepts = move |asked: &Asked| {
        seen.fetch_max(asked.tokens, Relaxed);
        honest(asked)
    };
    let wide = Case::clean("a pool of 600,000 tokens", BOUNDARY, accepts)
        .knowing(pool)
        .saying("no prompt of 599999 tokens or more was sent: the budget is small");
    all_are_as_expected(vec![dear, wide]).await;
    assert!(longest.load(Relaxed) <= 2 * LIMIT, "{longest:?}");
}

/// Five words are too few, and twice five of different requests are not: then both are convicted, the
/// first one too.
#[tokio::test]
async fn who_was_seen_with_too_little_is_convicted_with_the_next() {
    let shown: Mutex<HashSet<String>> = Mutex::default();
    let twice = move |asked: &Asked| {
        let mut shown = shown.lock().unwrap();
        let words = asked.words_of_another(5).filter(|_| asked.n % 5 == 4);
        match words.map(|it| it.join(" ")) {
            Some(words) if shown.len() < 2 && shown.insert(words.clone()) => {
                Reply::Text(format!("{} and {words}", asked.copied()))
            }
            _ => honest(asked),
        }
    };
    let report_ = report(Form::Plain, &[Suite::Load], &known(), twice).await;
    let table = report::table(&report_);
    assert_eq!(report_.verdict(), ProbeVerdict::Found, "{table}");
    assert_eq!(report_.counts.findings[&(Kind::Leak, "load")], 2, "{table}");
}

/// What was computed for one tenant is found in the cache for the other, six times of ten: neither
/// chance nor proof.
#[tokio::test]
async fn reuse_that_may_be_chance_is_neither_found_nor_clean() {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let mixed = AtomicU64::new(0);
    let sometimes = move |asked: &Asked| {
        let mut seen = seen.lock().unwrap();
        let own = !seen.insert(format!("{} {}", asked.key, asked.prompt));
        let first = seen.insert(asked.prompt.clone());
        // The second key's first request of a prompt that is known.
        let crossed = !own && !first && mixed.fetch_add(1, Relaxed) < 6;
        let mut body = asked.answer(&asked.copied());
        let cached = if own || crossed { asked.tokens - 1 } else { 0 };
        body["usage"]["prompt_tokens_details"] = json!({"cached_tokens": cached});
        Reply::Json(200, vec![], body)
    };
    let case = Case::clean("six hits of ten", &[Suite::Load, Suite::Prefix], sometimes)
        .untold()
        .saying(
            "whether another tenant's prompt was answered from what had been computed is uncertain",
        );
    all_are_as_expected(vec![case]).await;
}

/// The same between the base model and an adapter.
#[tokio::test]
async fn an_adapters_reuse_that_may_be_chance_is_neither_found_nor_clean() {
    let adapters = Known {
        adapters: vec!["poet".to_owned()],
        ..known()
    };
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let mixed = AtomicU64::new(0);
    let sometimes = move |asked: &Asked| {
        let mut seen = seen.lock().unwrap();
        let of = format!(
            "{} {} {}",
            asked.key, asked.body["cache_salt"], asked.prompt
        );
        let own = !seen.insert(format!("{} {of}", asked.body["model"]));
        let of_base = seen.contains(&format!("\"m\" {of}"));
        let crossed = asked.body["model"] == "poet" && asked.body["max_tokens"] == 1;
        let crossed = !own && crossed && of_base && mixed.fetch_add(1, Relaxed) < 6;
        let mut body = asked.answer(&asked.copied());
        let cached = if own || crossed { asked.tokens - 1 } else { 0 };
        body["usage"]["prompt_tokens_details"] = json!({"cached_tokens": cached});
        Reply::Json(200, vec![], body)
    };
    let suites = &[Suite::Load, Suite::Prefix];
    let case = Case::clean("six hits of an adapter's ten", suites, sometimes)
        .knowing(adapters)
        .untold()
        .saying("whether what was computed for the base model was answered from what had been");
    all_are_as_expected(vec![case]).await;
}

/// Nine of a tenant's second requests are fast, and one is slow: too few to say that it has a cache.
#[tokio::test]
async fn a_cache_that_one_straggler_hides_is_no_missing_cache() {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let warm = AtomicU64::new(0);
    let script = move |asked: &Asked| {
        let computing =
            |n: u64| Reply::After(Duration::from_millis(400 * n), Box::new(honest(asked)));
        let known = format!("{} {}", asked.key, asked.prompt);
        match (
            asked.body["max_tokens"] == 1,
            seen.lock().unwrap().insert(known),
        ) {
            (false, _) => honest(asked),
            (true, true) => computing(1),
            (true, false) if warm.fetch_add(1, Relaxed) == 5 => computing(3),
            (true, false) => honest(asked),
        }
    };
    let case = Case::clean("a straggler", &[Suite::Load, Suite::Prefix], script)
        .untold()
        .saying(
            "whether the same tenant's second request was answered from what had been computed",
        );
    all_are_as_expected(vec![case]).await;
}

/// Engines' fields that are left aside by a server that leaves everything aside are not taken; those
/// that do something are.
#[tokio::test]
async fn what_an_injected_field_does_is_looked_at() {
    const RETRY: &[Suite] = &[Suite::Retry];
    let gives = |asked: &Asked| {
        let mut body = asked.answer(&asked.copied());
        if asked.body["kv_transfer_params"]["do_remote_decode"] == true {
            body["kv_transfer_params"] = json!({"remote_block_ids": [[1, 2]]});
        }
        Reply::Json(200, vec![], body)
    };
    let obeys = |asked: &Asked| match asked.body["kv_transfer_params"]["do_remote_prefill"] == true
    {
        true => Reply::Text("what these blocks hold".to_owned()),
        false => honest(asked),
    };
    let cases = vec![
        Case::found("gives references out", Kind::OpenControl, RETRY, gives)
            .saying("references to blocks are given out"),
        Case::found(
            "attends to a client's blocks",
            Kind::OpenControl,
            RETRY,
            obeys,
        )
        .saying("the answer does not go on with its prompt any more"),
    ];
    all_are_as_expected(cases).await;
}

/// A cache that reports nothing and takes salts without looking at them: the first byte tells. What is
/// computed takes so long here that no scheduler's whim makes up for it.
#[tokio::test]
async fn a_salt_that_is_ignored_by_a_cache_that_reports_nothing_is_found_by_time() {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let script = move |asked: &Asked| {
        let warm =
            asked.body["max_tokens"] != 1 || !seen.lock().unwrap().insert(asked.prompt.clone());
        let computing = Duration::from_millis(400);
        match warm {
            true => honest(asked),
            false => Reply::After(computing, Box::new(honest(asked))),
        }
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known(), script).await;
    let table = report::table(&report_);
    assert_eq!(kinds(&report_), [Kind::SharedPrefix].into(), "{table}");
    for says in [
        "tenant B can tell that tenant A has asked the same prompt: the first byte after",
        "was used for the same tenant's prompt under another cache_salt: the first byte after",
    ] {
        assert!(
            report_.findings.iter().any(|it| it.says.contains(says)),
            "{says}: {table}"
        );
    }
}
