//! Streams, salts, adapters, SGLang's pairs, edges that nobody told of, and smaller reproductions.

use super::*;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn says(report: &ProbeReport) -> Vec<&str> {
    report.findings.iter().map(|it| it.says.as_str()).collect()
}

#[tokio::test]
async fn a_stream_that_says_something_else_than_the_whole_answer_is_a_wrong_answer() {
    for form in [Form::Plain, Form::Crumbs, Form::Gzip] {
        let report = report(form, &[Suite::Stream], &known(), honest).await;
        assert_eq!(
            report.verdict(),
            ProbeVerdict::Clean,
            "{}",
            report::table(&report)
        );
        assert!(report.counts.left > 0, "{:?}", report.counts);
    }
    let torn = |asked: &Asked| match asked.body["stream"] == true {
        true => Reply::Text(asked.copied().replacen(' ', "", 1)),
        false => honest(asked),
    };
    let report_ = report(Form::Plain, &[Suite::Stream], &known(), torn).await;
    assert_eq!(kinds(&report_), [Kind::WrongAnswer].into());
    // One that is never the same twice has no whole answer to compare with.
    let noise = Mutex::new(0);
    let noisy = move |_: &Asked| {
        let mut n = noise.lock().unwrap();
        *n += 1;
        Reply::Text(format!("answer {n}"))
    };
    let report_ = report(Form::Plain, &[Suite::Stream], &known(), noisy).await;
    assert!(kinds(&report_).is_empty() && report_.verdict() == ProbeVerdict::CouldNotTell);
}

#[tokio::test]
async fn a_stream_that_counts_otherwise_or_does_not_end_is_found() {
    let stream = |asked: &Asked, tokens: u64, end: &str| {
        let text = asked.copied();
        let body = format!(
            "data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}],\
             \"usage\":{{\"prompt_tokens\":{tokens}}}}}\n\n{end}"
        );
        let head = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        Reply::Raw(format!("{head}{body}").into_bytes())
    };
    for (more, end, kind) in [
        (1, "data: [DONE]\n\n", Kind::SilentAcceptance),
        (0, "", Kind::WrongErrorClass),
    ] {
        let script = move |asked: &Asked| match asked.body["stream"] == true {
            true => stream(asked, asked.tokens + more, end),
            false => honest(asked),
        };
        let report = report(Form::Plain, &[Suite::Stream], &known(), script).await;
        assert_eq!(kinds(&report), [kind].into(), "{}", report::table(&report));
    }
}

/// A server with a cache, keyed by what `key` makes of a request.
fn cached(key: impl Fn(&Asked) -> String + Send + Sync) -> impl Fn(&Asked) -> Reply + Send + Sync {
    let seen: Mutex<HashMap<String, ()>> = Mutex::default();
    move |asked: &Asked| {
        let key = format!("{} {}", key(asked), asked.prompt);
        let hit = seen.lock().unwrap().insert(key, ()).is_some();
        let (tokens, text) = (asked.tokens, asked.copied());
        let body = serde_json::json!({
            "choices": [{"index": 0, "text": text}],
            "usage": {"prompt_tokens": tokens,
                      "prompt_tokens_details": {"cached_tokens": if hit { tokens } else { 0 }}},
        });
        let body = match asked.body["stream"] == true {
            true => format!("data: {body}\n\ndata: [DONE]\n\n"),
            false => body.to_string(),
        };
        Reply::Raw(format!("HTTP/1.1 200 x\r\nconnection: close\r\n\r\n{body}").into_bytes())
    }
}

#[tokio::test]
async fn a_salt_must_not_join_tenants_and_must_keep_its_owner_apart() {
    let of = |asked: &Asked, name: &str| asked.body[name].as_str().unwrap_or("").to_owned();
    let good = move |asked: &Asked| format!("{} {}", asked.key, of(asked, "cache_salt"));
    let report_ = report(Form::Plain, &[Suite::Prefix], &known(), cached(good)).await;
    assert_eq!(report_.findings, [], "{}", report::table(&report_));
    // Whoever knows a salt shares its pages; without one, tenants are kept apart.
    let joined = move |asked: &Asked| match of(asked, "cache_salt") {
        salt if salt.is_empty() => asked.key.clone(),
        salt => salt,
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known(), cached(joined)).await;
    assert_eq!(kinds(&report_), [Kind::Suspect].into());
    assert!(
        says(&report_)
            .iter()
            .all(|it| it.contains("chose the same cache_salt"))
    );
    let ignored = |asked: &Asked| asked.key.clone();
    let report_ = report(Form::Plain, &[Suite::Prefix], &known(), cached(ignored)).await;
    let all = says(&report_);
    assert!(!all.is_empty() && all.iter().all(|it| it.contains("under another cache_salt")));
}

/// Whoever refuses salts has none to judge; whoever says that it understands them and refuses one is
/// not acquitted.
#[tokio::test]
async fn a_salt_that_is_said_to_be_understood_is_not_refused() {
    let of_key = |asked: &Asked| asked.key.clone();
    for (salts, verdict) in [
        (false, ProbeVerdict::Clean),
        (true, ProbeVerdict::CouldNotTell),
    ] {
        let known = Known { salts, ..known() };
        let answers = cached(of_key);
        let refuses = move |asked: &Asked| match asked.body.get("cache_salt") {
            Some(_) => Reply::Error(400, "unknown field"),
            None => answers(asked),
        };
        // `load` shows canaries, without which nobody is acquitted.
        let suites = [Suite::Load, Suite::Prefix];
        let report = report(Form::Plain, &suites, &known, refuses).await;
        let table = report::table(&report);
        assert_eq!(report.verdict(), verdict, "{table}");
        assert_eq!(
            table.contains("says that cache_salt is understood"),
            salts,
            "{table}"
        );
    }
}

#[tokio::test]
async fn pages_of_one_adapter_must_not_serve_another() {
    let known = Known {
        adapters: vec!["poet".to_owned()],
        ..known()
    };
    let name = |asked: &Asked| {
        format!(
            "{} {}{}",
            asked.key, asked.body["model"], asked.body["cache_salt"]
        )
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known, cached(name)).await;
    assert_eq!(report_.findings, [], "{}", report::table(&report_));
    let mixed = |asked: &Asked| format!("{}{}", asked.key, asked.body["cache_salt"]);
    let report_ = report(Form::Plain, &[Suite::Prefix], &known, cached(mixed)).await;
    let all = says(&report_);
    assert!(
        all.iter()
            .any(|it| it.contains("used for adapter \"poet\", which had not been asked"))
    );
    // The content: the base model answers otherwise once the adapter has been asked the same.
    let asked_of_poet: Mutex<BTreeSet<String>> = Mutex::default();
    let tainted = move |asked: &Asked| {
        let mut poems = asked_of_poet.lock().unwrap();
        if asked.body["model"] == "poet" {
            poems.insert(asked.prompt.clone());
        }
        let taint = asked.body["model"] == "m" && poems.contains(&asked.prompt);
        drop(poems);
        match (cached_reply(asked), taint) {
            (_, true) => Reply::Text("a verse".to_owned()),
            (reply, false) => reply,
        }
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known, tainted).await;
    assert!(
        kinds(&report_).contains(&Kind::WrongAnswer),
        "{}",
        report::table(&report_)
    );
    let by_name = cached(name);
    let unknown = move |asked: &Asked| match asked.body["model"] == "poet" {
        true => Reply::Error(404, "no such model"),
        false => by_name(asked),
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known, unknown).await;
    assert_eq!(report_.verdict(), ProbeVerdict::CouldNotTell);
    assert!(report::table(&report_).contains("adapter \"poet\" is not served (status 404)"));
}

/// Every second request of a prompt is cached: enough for the suite's own control.
fn cached_reply(asked: &Asked) -> Reply {
    let again = asked
        .before
        .iter()
        .any(|it| it.0 == asked.key && it.1 == asked.prompt);
    let (tokens, text) = (asked.tokens, asked.copied());
    let cached = if again { tokens } else { 0 };
    let body = serde_json::json!({
        "choices": [{"index": 0, "text": text}],
        "usage": {"prompt_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}},
    });
    let body = match asked.body["stream"] == true {
        true => format!("data: {body}\n\ndata: [DONE]\n\n"),
        false => body.to_string(),
    };
    Reply::Raw(format!("HTTP/1.1 200 x\r\nconnection: close\r\n\r\n{body}").into_bytes())
}

/// Nobody says what the limit is, all is answered with 200, and from 431 tokens on wrongly: so it
/// looks from outside when only prefill's pool is small.
#[tokio::test]
async fn an_edge_that_nobody_told_of_is_found_to_the_token() {
    const EDGE: u64 = 430;
    let script = |asked: &Asked| match asked.tokens {
        601.. => Reply::Error(400, "too long"),
        tokens if tokens > EDGE => Reply::Text("on the contrary".to_owned()),
        _ => Reply::Text(asked.copied()),
    };
    let report_ = report(Form::Plain, &[Suite::Coherence], &known(), script).await;
    assert_eq!(kinds(&report_), [Kind::WrongAnswer].into());
    assert!(says(&report_)[0].contains("prompts of 430 tokens are gone on with, and none"));
    // A model that loses the thread somewhere between 380 and 480, each text at another place.
    let forgetful = |asked: &Asked| {
        let bytes = asked.prompt.bytes().take(40);
        let holds = 380 + bytes.fold(7, |all: u64, it| (all * 31 + u64::from(it)) % 97);
        match asked.tokens {
            601.. => Reply::Error(400, "too long"),
            tokens if tokens > holds => Reply::Text("on the contrary".to_owned()),
            _ => Reply::Text(asked.copied()),
        }
    };
    let report_ = report(Form::Plain, &[Suite::Coherence], &known(), forgetful).await;
    assert_eq!(
        kinds(&report_),
        [Kind::Suspect].into(),
        "{}",
        report::table(&report_)
    );
}

/// SGLang's pair: prefill replaces what is too long by a placeholder and says so to nobody.
#[tokio::test]
async fn both_sides_of_a_room_must_say_the_same() {
    let side = |prefill: bool, broken: bool| {
        move |asked: &Asked| {
            let room = asked.body["bootstrap_room"].is_u64();
            assert!(
                room && asked.body["bootstrap_port"] == 8998,
                "{}",
                asked.body
            );
            match (asked.tokens > LIMIT, prefill && broken) {
                (true, false) if !broken => Reply::Error(400, "too long"),
                _ => Reply::Text(asked.copied()),
            }
        }
    };
    for broken in [false, true] {
        let count = move |it| if broken && it > LIMIT { 1 } else { it };
        let prefill = serve(Form::Plain, count, side(true, broken)).await;
        let decode = serve(Form::Plain, |it| it, side(false, broken)).await;
        let router = serve(Form::Plain, |it| it, honest).await;
        let known = Known {
            pair: Some(Pair {
                prefill: endpoint(&prefill, "key-of-a"),
                decode: endpoint(&decode, "key-of-a"),
                bootstrap: Some(8998),
            }),
            ..known()
        };
        let run = ProbeRun::new(two(&router), SEED, budget());
        Suite::Pair.run(&run, &known).await.unwrap();
        let all: Vec<_> = run.findings().into_iter().map(|it| it.says).collect();
        match broken {
            false => assert!(all.is_empty(), "{all:?}"),
            true => assert_eq!(
                all[0],
                "both sides answer 200 to a prompt of 601 tokens, over the limit of 600: prefill \
                 counted 1 tokens of it, decode 601"
            ),
        }
    }
}

/// What is left out of a reproduction is what it does not need.
#[tokio::test]
async fn reproductions_are_shrunk_to_what_they_need() {
    let script = |asked: &Asked| match asked.tokens > LIMIT {
        true => Reply::Text("anything".to_owned()),
        false => Reply::Text(asked.copied()),
    };
    let url = serve(Form::Plain, |it| it, script).await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    Suite::Flood.run(&run, &known()).await.unwrap();
    probe::shrink::shrink(&run).await;
    let findings = run.findings();
    let found = findings
        .iter()
        .find(|it| it.kind == Kind::SilentAcceptance)
        .unwrap();
    let shrunk = found.shrunk.as_ref().unwrap();
    let words = |sent: &probe::finding::Sent| sent.prompt().unwrap().split(' ').count() as u64;
    assert_eq!(
        (shrunk.shows.len(), words(&shrunk.shows[0])),
        (1, LIMIT + 1)
    );
    assert!(shrunk.tried <= 64, "{}", shrunk.tried);
}

/// A leak needs the request whose text it was; what was sent beside it goes.
#[tokio::test]
async fn a_leak_is_shrunk_in_both_requests_and_one_that_does_not_show_again_is_said() {
    for again in [true, false] {
        let leaked = std::sync::Arc::new(AtomicBool::new(false));
        let script = {
            let leaked = leaked.clone();
            move |asked: &Asked| {
                let leaks =
                    asked.body["rid"].is_string() || again && asked.key.contains("key-of-b");
                let first = leaks && !leaked.swap(true, Relaxed);
                match leaks && (again || first) {
                    true => Reply::Text(asked.foreign().unwrap_or_else(|| asked.copied())),
                    false => Reply::Text(asked.copied()),
                }
            }
        };
        let url = serve(Form::Plain, |it| it, script).await;
        let run = ProbeRun::new(two(&url), SEED, budget());
        run.ask("retry", Question::new(Tenant(0), 9)).await.unwrap();
        let mut ask = Question::new(Tenant(1), 9);
        ask.fields.insert("rid".to_owned(), Value::from("same"));
        ask.headers
            .push(("x-request-id".to_owned(), "same".to_owned()));
        run.ask("retry", ask).await.unwrap();
        assert_eq!(run.findings()[0].kind, Kind::Leak);
        probe::shrink::shrink(&run).await;
        let found = run.findings().remove(0);
        let shrunk = found.shrunk.unwrap();
        match again {
            false => assert_eq!((shrunk.shows.len(), shrunk.tried), (0, 6)),
            true => {
                let [source, victim] = &shrunk.shows[..] else {
                    panic!("{shrunk:?}")
                };
                assert!(victim.headers.is_empty() && !victim.body.contains_key("rid"));
                let words = |sent: &probe::finding::Sent| sent.prompt().unwrap().split(' ').count();
                assert!(words(victim) < 4, "{victim:?}");
                assert!(
                    words(source) <= 30,
                    "from {}: {source:?}",
                    words(&found.shows[0])
                );
            }
        }
    }
}
