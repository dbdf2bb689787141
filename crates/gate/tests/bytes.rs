//! Whatever bytes a server or a log holds: no panic, and no figure beyond its bounds.

use gate::facts::recording::Recording;
use gate::facts::{Node, TOKENS_MAX, answers, read_log};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

/// Every size that is known is a possible one, and no figure lacks its source.
fn check(nodes: &[Node]) {
    for node in nodes {
        for rank in node.ranks.iter().flatten() {
            if let Ok(pool) = &rank.pool {
                assert!((1..=TOKENS_MAX).contains(&pool.value), "{pool:?}");
                assert!(!pool.source.to_string().is_empty());
            }
        }
        assert!(node.ranks.as_ref().map_or(1, Vec::len) >= 1);
        for size in [&node.context, &node.advertised, &node.max_prompt]
            .into_iter()
            .flatten()
        {
            assert!((1..=TOKENS_MAX).contains(&size.value), "{size:?}");
        }
        if let (Ok(context), Ok(prompt)) = (&node.context, &node.max_prompt) {
            assert!(prompt.value < context.value, "{prompt:?} {context:?}");
        }
    }
}

fn load(name: &str) -> Recording {
    Recording::load(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name),
    )
}

fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "sglang-0.5.19-prefill",
        "sglang-0.5.23-decode",
        "vllm-0.32.0",
        "llama.cpp",
    ])
}

/// Numbers and other things that should not stand where a size stands.
fn absurd() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(|it| json!(it)),
        any::<u64>().prop_map(|it| json!(it)),
        any::<f64>().prop_map(|it| json!(it)),
        "[0-9.eE+,-]{0,20}".prop_map(|it| json!(it)),
        Just(Value::Null),
        Just(json!(9_223_372_036_854_775_808_u64)),
        Just(json!([1, 2])),
        Just(json!({"value": 2000})),
        Just(json!(true)),
    ]
}

/// Replaces the `n`th value of a kind that sizes have.
fn replace(value: &mut Value, n: &mut usize, with: &Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|it| replace(it, n, with)),
        Value::Object(map) => map.values_mut().for_each(|it| replace(it, n, with)),
        Value::Number(_) | Value::String(_) | Value::Bool(_) => {
            if *n == 0 {
                *value = with.clone();
            }
            *n = n.wrapping_sub(1);
        }
        Value::Null => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(body in prop::collection::vec(any::<u8>(), 0..400), path in 0..8_usize) {
        let paths = ["/v1/models", "/metrics", "/server_info", "/version", "/v1/loads", "/props", "/slots", "/info"];
        let mut answers = answers::ServerAnswers::new("http://a", false);
        for path in &paths[..=path] {
            answers.insert(path, Ok(body.clone()));
        }
        check(&answers::read("a", &answers));
        check(&[read_log("l", body.as_slice())]);
    }

    #[test]
    fn any_bytes_in_a_recording(name in names(), at in any::<prop::sample::Index>(), junk in prop::collection::vec(any::<u8>(), 0..9), which in any::<prop::sample::Index>()) {
        let mut recording = load(name).only_answers(&[]);
        let count = recording.answers.len();
        let body = recording.answers.values_mut().nth(which.index(count)).unwrap();
        let at = at.index(body.len());
        body.splice(at..(at + junk.len()).min(body.len()), junk);
        check(&recording.nodes());
    }

    #[test]
    fn any_value_anywhere_in_a_recording(name in names(), n in 0..700_usize, with in absurd()) {
        let mut recording = load(name).only_answers(&[]);
        for (path, body) in &mut recording.answers {
            if path != "/metrics" {
                let mut value = serde_json::from_slice(body).unwrap();
                replace(&mut value, &mut n.clone(), &with);
                *body = serde_json::to_vec(&value).unwrap();
            }
        }
        check(&recording.nodes());
    }

    #[test]
    fn any_text_in_the_lines_of_a_log(words in prop::collection::vec("[ -~]{0,12}", 4), cut in 0..200_usize) {
        let lines = [
            "[t DP0 TP0] max_total_num_tokens={}, chunked_prefill_size={}, context_len={}, max_running_requests={}",
            "[t] server_args={'dp_size': {}, 'port': {}, 'disaggregation_mode': '{}', 'page_size': {}}",
            "[t] KV Cache is allocated. dtype: {}, #tokens: {}, K size: {}{}",
            "(EngineCore_{} pid=1) GPU KV cache size: {} tokens, Maximum concurrency for {} tokens {}",
            "(E) Initializing a V1 LLM engine (v{}) with config: model='{}', data_parallel_size={}, max_seq_len={}",
            "{\"log\":\"{}\",\"msg\":{},\"x\":{}}{}",
        ];
        let mut log = String::new();
        for line in lines {
            let mut line = line.to_owned();
            for word in &words {
                line = line.replacen("{}", word, 1);
            }
            let end = line.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(line.len());
            log.push_str(&line[..end]);
            log.push('\n');
            check(&[read_log("l", format!("{line}\n").as_bytes())]);
        }
        check(&[read_log("l", log.as_bytes())]);
    }
}
