//! What each verdict of the newer suites rests on, taken away once: the other half of a comparison,
//! or the control that acquits.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What `pair` finds between an SGLang prefill and decode that answer and count like this.
async fn rooms(
    prefill: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    decode: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    count: fn(u64) -> u64,
) -> Vec<(Kind, String)> {
    let router = serve(Form::Plain, |it| it, honest).await;
    let prefill = serve(Form::Plain, count, prefill).await;
    let decode = serve(Form::Plain, count, decode).await;
    let pair = Pair {
        prefill: endpoint(&prefill, "key-of-a"),
        decode: endpoint(&decode, "key-of-a"),
        bootstrap: Some(8998),
    };
    let known = Known {
        pair: Some(pair),
        ..known()
    };
    let run = ProbeRun::new(two(&router), SEED, budget());
    Suite::Pair.run(&run, &known).await.unwrap();
    let findings = run.findings().into_iter();
    findings.map(|it| (it.kind, it.says)).collect()
}

#[tokio::test]
async fn a_pair_may_agree_and_still_be_wrong() {
    let copies = |asked: &Asked| Reply::Text(asked.copied());
    let found = rooms(copies, copies, |it| it).await;
    assert!(found.iter().all(|it| it.0 == Kind::SilentAcceptance));
    assert_eq!(
        found[0].1,
        "both sides answer 200 to a prompt of 601 tokens, over the limit of 600"
    );
    assert_eq!(found.len(), 3); // 600 is not over 600
    let found = rooms(honest, honest, |it| it - 1).await;
    assert_eq!(
        found[0].1,
        "both sides answer 200 to a prompt of 600 tokens: prefill counted 599 tokens of it, \
         decode 599"
    );
    let found = rooms(honest, copies, |it| it).await;
    assert_eq!(
        found[0],
        (
            Kind::SilentAcceptance,
            "decode answers 200 to a prompt of 601 tokens, over the limit of 600 to which prefill \
             answers 400"
                .to_owned()
        )
    );
}

#[tokio::test]
async fn coherence_needs_three_answers_of_three() {
    let busy = |asked: &Asked| match asked.tokens {
        301.. => Reply::Error(503, "busy"),
        _ => Reply::Text(asked.copied()),
    };
    let report_ = report(Form::Plain, &[Suite::Coherence], &known(), busy).await;
    assert_eq!(report_.findings, [], "{}", report::table(&report_));
    let long = AtomicU64::new(0);
    let now_and_then = move |asked: &Asked| match asked.tokens > 300 {
        true if long.fetch_add(1, Relaxed) % 3 == 2 => Reply::Text("on the contrary".to_owned()),
        _ => Reply::Text(asked.copied()),
    };
    let report_ = report(Form::Plain, &[Suite::Coherence], &known(), now_and_then).await;
    assert_eq!(report_.findings, [], "{}", report::table(&report_));
}

/// The edge is looked for with one text and must hold for others: a model that goes on with that one
/// up to 430 tokens, and with no other so far, forgets.
#[tokio::test]
async fn an_edge_of_one_text_only_is_no_edge() {
    let asked_of: Mutex<(BTreeMap<String, u32>, Option<String>)> = Mutex::default();
    let script = move |asked: &Asked| {
        let text: String = asked.prompt.chars().take(40).collect();
        let (times, searched) = &mut *asked_of.lock().unwrap();
        let n = times.entry(text.clone()).or_default();
        *n += 1;
        if searched.is_none() && *n == 5 {
            *searched = Some(text.clone()); // again and again, by a search
        }
        let other = searched.as_ref().is_some_and(|it| *it != text);
        match asked.tokens > if other { 300 } else { 430 } {
            true => Reply::Text("on the contrary".to_owned()),
            false => Reply::Text(asked.copied()),
        }
    };
    let report_ = report(Form::Plain, &[Suite::Coherence], &known(), script).await;
    let table = report::table(&report_);
    assert_eq!(kinds(&report_), [Kind::Suspect].into(), "{table}");
}

/// An answer with this many tokens of its prompt cached, whole or as a stream.
fn with_cached(asked: &Asked, text: &str, cached: u64) -> Reply {
    let body = serde_json::json!({
        "choices": [{"index": 0, "text": text}],
        "usage": {"prompt_tokens": asked.tokens,
                  "prompt_tokens_details": {"cached_tokens": cached}},
    });
    let body = match asked.body["stream"] == true {
        true => format!("data: {body}\n\ndata: [DONE]\n\n"),
        false => body.to_string(),
    };
    Reply::Raw(format!("HTTP/1.1 200 x\r\nconnection: close\r\n\r\n{body}").into_bytes())
}

#[tokio::test]
async fn an_adapter_is_acquitted_by_noise_and_by_what_all_prompts_share() {
    let known = Known {
        adapters: vec!["poet".to_owned()],
        ..known()
    };
    // Eight tokens are those of every prompt's beginning; and no answer is the same twice.
    let n = AtomicU64::new(0);
    let seen: Mutex<BTreeSet<_>> = Mutex::default();
    let noisy = move |asked: &Asked| {
        let of = |name: &str| asked.body[name].as_str().unwrap_or("").to_owned();
        let mine = (
            of("model"),
            of("cache_salt"),
            asked.key.clone(),
            asked.prompt.clone(),
        );
        let again = !seen.lock().unwrap().insert(mine);
        let cached = if again { asked.tokens } else { 8 };
        let text = format!("{} {}", asked.copied(), n.fetch_add(1, Relaxed));
        with_cached(asked, &text, cached)
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known, noisy).await;
    let adapters = report_
        .findings
        .iter()
        .filter(|it| it.says.contains("poet"));
    assert_eq!(adapters.count(), 0, "{}", report::table(&report_));
}

/// Over the limit, 200 once; later refused, with the prompt counted all the same.
#[tokio::test]
async fn a_refusal_that_counts_is_no_reproduction() {
    let over = AtomicU64::new(0);
    let script = move |asked: &Asked| match asked.tokens > LIMIT {
        true if over.fetch_add(1, Relaxed) > 0 => {
            let body = format!(
                r#"{{"error":{{"message":"too long"}},"usage":{{"prompt_tokens":{}}}}}"#,
                asked.tokens
            );
            Reply::Raw(format!("HTTP/1.1 400 x\r\nconnection: close\r\n\r\n{body}").into_bytes())
        }
        _ => Reply::Text(asked.copied()),
    };
    let url = serve(Form::Plain, |it| it, script).await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    Suite::Flood.run(&run, &known()).await.unwrap();
    let found = run.findings();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, Kind::SilentAcceptance);
    probe::shrink::shrink(&run).await;
    let shrunk = run.findings().remove(0).shrunk.unwrap();
    assert_eq!((shrunk.shows.len(), shrunk.tried), (0, 3));
}
