//! Limits to the token, wherever the smallest one comes from; and pools that are too small.

use crate::past_the_gateway::{Ask, Past};
use crate::topology::Topology;
use crate::{COFFERDAM, counter, info_when, rest, serve, serve_words, small, worker};
use handoff::{Rejection, Role};
use serde_json::{Value, json};
use testkit::Api;
use testkit::crowd::{COMPLETIONS, prompt};
use testkit::process::Running;

fn request(tokens: usize, max_tokens: Option<usize>) -> Value {
    let mut body = json!({
        "prompt": prompt(tokens, tokens, 16, 3), "temperature": 0, "ignore_eos": true,
    });
    body["max_tokens"] = json!(max_tokens);
    body
}

/// Attempts that prefill and decode have seen.
fn seen(info: &Value) -> [u64; 2] {
    ["prefill", "decode"].map(|role| counter(worker(info, role), "attempts_seen"))
}

/// Asks with prompts of limit-1, limit and limit+1 tokens, and over the context. What is refused
/// reaches no worker.
fn judged_to_the_token(api: &Api, limit: usize, context: usize, how: &[&str]) {
    let before = seen(&rest(api));
    let mut good = 0;
    let mut answered = |tokens: usize, max_tokens: Option<usize>| {
        let answer = api.post(COMPLETIONS, &request(tokens, max_tokens)).good();
        good += 1;
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
        answer["usage"]["completion_tokens"].as_u64().unwrap() as usize
    };
    assert_eq!(answered(limit - 1, Some(1)), 1);
    assert_eq!(answered(limit, Some(1)), 1);
    assert_eq!(
        answered(10, Some(context - 10)),
        context - 10,
        "the whole context is there"
    );
    assert_eq!(
        answered(limit - 1, None),
        context - (limit - 1),
        "ends at the context"
    );
    let refused = |tokens: usize, max_tokens: Option<usize>| {
        let reply = api.post(COMPLETIONS, &request(tokens, max_tokens));
        assert_eq!(reply.status, 400, "{tokens} {max_tokens:?}");
        reply.error()
    };
    for (tokens, max_tokens) in [(limit + 1, Some(1)), (limit + 1, None), (limit + 500, None)] {
        let (code, message) = refused(tokens, max_tokens);
        assert_eq!(code, "context_length_exceeded", "{message}");
        for figure in [format!("{tokens} tokens"), format!("{limit} tokens")] {
            assert!(message.contains(&figure), "{figure} is not in {message}");
        }
        for part in how {
            assert!(
                message.contains(part),
                "how it came about: {part} is not in {message}"
            );
        }
    }
    let (code, message) = refused(10, Some(context - 9));
    assert_eq!(code, "max_tokens_over_context", "{message}");
    assert!(message.contains(&(context + 1).to_string()), "{message}");
    // One more that is good: when it is counted, everything before it has been.
    assert_eq!(answered(1, Some(1)), 1);
    let what = "exactly the good requests were seen by the workers";
    let info = info_when(api, what, |info| {
        seen(info) != before && seen(info)[0] >= before[0] + good
    });
    assert_eq!(seen(&rest(api)), before.map(|n| n + good), "{info}");
}

fn limit(api: &Api) -> (u64, u64) {
    let info = rest(api);
    let figure = |name: &str| info["limit"][name].as_u64().unwrap();
    (figure("max_prompt_tokens"), figure("max_model_len"))
}

#[test]
fn the_smallest_limit_may_be_prefills() {
    let model = small::model(512);
    let all = Topology::start(
        &model,
        &["--max-context=128", "--pool-tokens=128"],
        &["--max-context=256"],
    );
    assert_eq!(limit(&all.api), (127, 128));
    judged_to_the_token(
        &all.api,
        127,
        128,
        &["prefill pool 128 tokens (8 pages of 16)"],
    );
    rest(&all.api);

    // H-5, past the gateway: rejected by who has the limit, and by prefill for decode too.
    let mut past = Past::connect(&all, &model);
    let too_long = |tokens, limit, by| Rejection::PromptTooLong { tokens, limit, by };
    let total = |prompt, max_new, limit, by| Rejection::ContextTooLong {
        prompt,
        max_new,
        limit,
        by,
    };
    let (p, d) = (Role::Prefill, Role::Decode);
    let cases = [
        (Ask::prefill(128, 1), too_long(128, 127, p)),
        (Ask::prefill(129, 1), too_long(129, 127, p)),
        (Ask::prefill(120, 9), total(120, 9, 128, p)),
        (Ask::decode(256, 1), too_long(256, 255, d)),
        (Ask::decode(250, 7), total(250, 7, 256, d)),
    ];
    past.rejected(&cases);
    rest(&all.api);
}

/// Two pairs of different sizes: what one of them holds is answered by that one, a refusal names the
/// most that any holds, and that is what is advertised, until its worker is gone.
#[test]
fn of_several_pairs_the_largest_says_what_fits() {
    let model = small::model(512);
    let (small, large) = (
        ["--max-context=96", "--pool-tokens=96"],
        ["--max-context=256"],
    );
    let mut all = Topology::with(&model, &["--max-context=256"], &[&small, &large]);
    info_when(&all.api, "both pairs are up", |info| {
        info["limits"].as_array().is_some_and(|all| all.len() == 2)
    });
    assert_eq!(limit(&all.api), (255, 256));
    let advertised = all.api.get("/v1/models").good();
    assert_eq!(advertised["data"][0]["max_model_len"], 256, "{advertised}");

    let ask = |api: &Api, tokens, max| api.post(COMPLETIONS, &request(tokens, max));
    for (tokens, max, new) in [
        (10, Some(5), 5),
        (255, Some(1), 1),
        (10, Some(246), 246),
        (200, None, 56),
    ] {
        let answer = ask(&all.api, tokens, max).good();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], new, "{answer}");
    }
    let refused = |api: &Api, tokens, limit: usize, pool: &str| {
        let reply = ask(api, tokens, Some(1));
        let (code, message) = reply.error();
        assert_eq!(
            (reply.status, code.as_str()),
            (400, "context_length_exceeded")
        );
        for part in [format!("the limit is {limit} tokens"), pool.to_owned()] {
            assert!(message.contains(&part), "{part} is not in {message}");
        }
    };
    refused(&all.api, 256, 255, "context 256");

    drop(all.decodes.pop());
    info_when(&all.api, "the larger pair is gone", |info| {
        info["limit"]["max_model_len"] == 96
    });
    refused(&all.api, 200, 95, "decode pool 96 tokens (6 pages of 16)");
    let answer = ask(&all.api, 95, Some(1)).good();
    assert_eq!(answer["usage"]["prompt_tokens"], 95, "{answer}");
}

#[test]
fn the_smallest_limit_may_be_decodes() {
    let model = small::model(512);
    let all = Topology::start(
        &model,
        &["--max-context=256"],
        &["--max-context=96", "--pool-tokens=96"],
    );
    assert_eq!(limit(&all.api), (95, 96));
    judged_to_the_token(&all.api, 95, 96, &["decode pool 96 tokens (6 pages of 16)"]);
    rest(&all.api);

    let mut past = Past::connect(&all, &model);
    let too_long = |tokens, limit, by| Rejection::PromptTooLong { tokens, limit, by };
    let (p, d) = (Role::Prefill, Role::Decode);
    let cases = [
        (Ask::prefill(96, 1), too_long(96, 95, d)), // P checks D's limit again
        (Ask::prefill(256, 1), too_long(256, 255, p)),
        (Ask::decode(96, 1), too_long(96, 95, d)),
        (
            Ask::decode(94, 3),
            Rejection::ContextTooLong {
                prompt: 94,
                max_new: 3,
                limit: 96,
                by: d,
            },
        ),
        (
            Ask {
                choices: 4,
                ..Ask::decode(40, 20)
            },
            // 3 pages of the prompt and a first one of each choice; one alone would fit.
            Rejection::TooManyPages {
                needed: 7,
                pool: 6,
                by: d,
            },
        ),
    ];
    past.rejected(&cases);
    rest(&all.api);
    let ended = all.gateway.stop();
    assert!(
        ended.status.success(),
        "a gateway by itself ends well too: {ended:?}"
    );
}

/// Law: capacity is measured, not declared.
#[test]
fn a_pool_too_small_names_what_fits_and_that_is_served() {
    let model = small::model(512);
    let start = |context: u64| {
        let context = format!("--max-context={context}");
        Running::start(
            COFFERDAM,
            &serve_words(&model, &["--pool-tokens=100", &context]),
        )
    };
    let ended = start(256).end();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(ended.left.is_empty(), "{ended:?}");
    let refusal = ended
        .lines
        .iter()
        .find(|line| line.starts_with("error: "))
        .unwrap();
    assert!(
        refusal.contains("256 would need --pool-tokens 256 ("),
        "{refusal}"
    );
    assert!(
        refusal.contains("KiB)") || refusal.contains("bytes)"),
        "memory needed: {refusal}"
    );
    let behind = refusal
        .split("the largest --max-context that fits is ")
        .nth(1)
        .unwrap();
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    let fits: u64 = digits.parse().unwrap();
    assert_eq!(fits, 96, "whole pages of 100 tokens");

    let running = start(fits);
    let api = running.api();
    judged_to_the_token(
        &api,
        fits as usize - 1,
        fits as usize,
        &["prefill pool 96", "decode pool 96"],
    );
    drop(running);
    let one_more = start(fits + 1).end();
    assert_eq!(one_more.status.code(), Some(2), "{one_more:?}");
}

/// The engine in one process judges alike.
#[test]
fn in_process_has_the_same_limits() {
    let model = small::model(512);
    let (_running, api) = serve(&model, &["--in-process", "--max-context=96"]);
    let reply = |tokens| api.post(COMPLETIONS, &request(tokens, Some(1)));
    assert_eq!(reply(95).good()["usage"]["prompt_tokens"], 95);
    let over = reply(96);
    assert_eq!(
        (over.status, over.error().0.as_str()),
        (400, "context_length_exceeded")
    );
}
