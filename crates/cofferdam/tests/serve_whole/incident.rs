//! The incident's configuration, given to the shipped command: a prefill pool smaller than the
//! advertised context, and a prompt just over the pool (docs/incident.md).

use crate::{COFFERDAM, serve_words};
use serde_json::json;
use testkit::crowd::COMPLETIONS;
use testkit::process::Running;

/// The proportion of the incident: 681,280 of 1,048,576 tokens.
const POOL: u64 = 332;
const CONTEXT: u64 = 512;

/// Law: capacity is measured, not declared. With the context that the refusal names the prompt is
/// a 400, and the message says both numbers and where the limit comes from.
#[test]
fn it_refuses_to_start_and_with_what_it_suggests_the_prompt_is_a_400() {
    let model = testkit::weights::path();
    let start = |context: u64| {
        let words = [
            format!("--pool-tokens={POOL}"),
            format!("--max-context={context}"),
            "--page-size=4".to_owned(),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Running::start(COFFERDAM, &serve_words(&model, &words))
    };
    let ended = start(CONTEXT).end();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    let refusal = ended.lines.iter().find(|line| line.starts_with("error: "));
    let refusal = refusal.unwrap_or_else(|| panic!("it says why: {ended:?}"));
    let suggested = refusal
        .split("the largest --max-context that fits is ")
        .nth(1);
    let digits = suggested.unwrap_or_else(|| panic!("it names what fits: {refusal}"));
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let suggested: u64 = digits.parse().unwrap();
    assert_eq!(suggested, POOL, "{refusal}");

    let running = start(suggested);
    let api = running.api();
    let prompt: Vec<u32> = (0..=POOL as u32).map(|token| 1000 + token).collect();
    let reply = api.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 1}));
    assert_eq!(reply.status, 400);
    let (code, message) = reply.error();
    assert_eq!(code, "context_length_exceeded", "{message}");
    for word in ["333 tokens", "331 tokens", "prefill pool 332 tokens"] {
        assert!(message.contains(word), "{word} is not in {message}");
    }
    let short = api.post(
        COMPLETIONS,
        &json!({"prompt": prompt[..300], "max_tokens": 1}),
    );
    assert_eq!(short.good()["usage"]["prompt_tokens"], 300);
}
