//! Figures in other forms, in other places and of other names than those that are usual.

use super::*;

fn single(change: impl FnOnce(&mut Recording)) -> Servers {
    server(sglang("single"), change)
}

fn bare_vllm(change: impl FnOnce(&mut Recording)) -> Servers {
    server(lone_vllm().only_answers(&["/server_info"]), change)
}

fn pool(answer: Answer) -> Vec<(&'static str, Answer)> {
    vec![("pool-holds-context", answer)]
}

/// What cannot be read as a count and says another number is no figure that may be passed over.
#[test]
fn numbers_in_words_contradict_the_number_beside_them() {
    let said = |says: &'static str| single(move |it| three_say(it, says));
    let forms = [
        ("\"3k\"", Unknown),
        ("\"3K\"", Unknown),
        ("\"3_000\"", Unknown),
        ("\"3 000\"", Unknown),
        ("\"3,000 tokens\"", Unknown),
        ("\"0.003M\"", Unknown),
        ("\"3e3\"", Unknown),
        ("\"0xbb8\"", Unknown),
        ("[3000]", Unknown),
        ("{\"dp0\":8000,\"dp1\":3000}", Unknown),
        ("\"8k\"", Holds),
        ("\"8K\"", Holds),
        ("\"8_000\"", Holds),
        ("\"8 000\"", Holds),
        ("\"8e3\"", Holds),
        ("\"8,000 tokens\"", Holds),
        ("\"auto\"", Holds),
        ("\"None\"", Holds),
        ("\"\"", Holds),
        ("null", Holds),
        ("-1", Holds),
    ];
    let case = |(says, answer)| (says, said(says), pool(answer));
    compare(forms.into_iter().map(case).collect());
}

#[test]
fn a_rank_whose_gauge_is_worded_otherwise_is_not_passed_over() {
    let rank = |labels: &str, says: &str| {
        let line = format!("sglang:max_total_num_tokens{{{labels}}} {says}\n");
        single(move |it| series(it, &line))
    };
    let tp = "pp_rank=\"0\",tp_rank=\"1\"";
    compare(vec![
        ("3k", rank(tp, "3k"), pool(Unknown)),
        ("3,000", rank(tp, "3,000"), pool(Unknown)),
        ("3_000", rank(tp, "3_000"), pool(Unknown)),
        ("8_000", rank(tp, "8_000"), pool(Holds)),
        ("None", rank(tp, "None"), pool(Holds)),
        ("+Inf", rank(tp, "+Inf"), pool(Holds)),
        (
            "a data-parallel rank named None",
            rank("dp_rank=\"None\"", "3000.0"),
            pool(Violated),
        ),
        (
            "a data-parallel rank without a name",
            rank("dp_rank=\"\"", "3000.0"),
            pool(Violated),
        ),
        (
            "a data-parallel rank of another kind",
            rank("dp_rank=\"0/1\"", "3000.0"),
            pool(Violated),
        ),
    ]);
}

/// Of two values under one name parsers take the last, or the first.
#[test]
fn two_values_under_one_name_are_none() {
    let twice = |path: &'static str, old: &'static str, new: &'static str| {
        single(move |it| it.replace(path, old, new))
    };
    let pool_of = "\"max_total_num_tokens\":8000";
    compare(vec![
        (
            "a pool of 3,000 and of 8,000",
            twice(
                "/server_info",
                pool_of,
                "\"max_total_num_tokens\":3000,\"max_total_num_tokens\":8000",
            ),
            pool(Unknown),
        ),
        (
            "the same of a rank",
            twice(
                "/v1/loads",
                pool_of,
                "\"max_total_num_tokens\":3000,\"max_total_num_tokens\":8000",
            ),
            pool(Unknown),
        ),
        (
            "one pool, said twice",
            twice(
                "/server_info",
                pool_of,
                "\"max_total_num_tokens\":8000,\"max_total_num_tokens\":8000",
            ),
            pool(Holds),
        ),
        (
            "two lengths",
            twice(
                "/v1/models",
                "\"max_model_len\":4096",
                "\"max_model_len\":131072,\"max_model_len\":4096",
            ),
            vec![
                ("advertised-fits", Unknown),
                ("pool-holds-context", Unknown),
            ],
        ),
        (
            "prompts are cut, and are not",
            twice(
                "/server_info",
                "\"allow_auto_truncate\":false",
                "\"allow_auto_truncate\":true,\"allow_auto_truncate\":false",
            ),
            vec![("no-silent-truncation", Unknown)],
        ),
        (
            "two revisions on both sides",
            {
                let two = |role: &str| {
                    let mut it = sglang(role);
                    let both = "\"revision\":\"v1\",\"revision\":null";
                    it.replace("/server_info", "\"revision\":null", both);
                    it
                };
                pair(&two("prefill"), &two("decode"))
            },
            vec![("same-model", Unknown)],
        ),
    ]);
}

#[test]
fn an_answer_that_was_cut_or_is_of_somebody_else_proves_nothing() {
    let cut = |it: &mut Recording, at: &str, keep: usize| {
        let all = text(it, "/metrics");
        let end = all.rfind(at).unwrap() + keep;
        it.answers
            .insert("/metrics".into(), all.as_bytes()[..end].to_vec());
    };
    let body = |path: &'static str, body: &'static str| {
        single(move |it| {
            it.answers.insert(path.into(), body.as_bytes().to_vec());
        })
    };
    let open = |answer| vec![("introspection-closed", answer)];
    compare(vec![
        (
            "metrics end within a number",
            single(|it| cut(it, "} 8000.0", 4)),
            pool(Holds),
        ),
        (
            "vLLM: metrics end within the blocks",
            bare_vllm(|it| {
                let at = "vllm:cache_config_info{";
                cut(it, at, at.len() + 90);
            }),
            vec![("pool-holds-context", Unknown), ("all-kv-judged", Unknown)],
        ),
        (
            "vLLM: metrics end within a line behind the blocks",
            bare_vllm(|it| {
                let metrics = text(it, "/metrics");
                let row = metrics.find("\nvllm:cache_config_info{").unwrap() + 1;
                let end = row + metrics[row..].find('\n').unwrap();
                let kept = format!("{}\nvllm:spec_dec", &metrics[..end]);
                it.answers.insert("/metrics".into(), kept.into_bytes());
            }),
            vec![("all-kv-judged", Unknown)],
        ),
        (
            "a byte order mark",
            body("/server_info", "\u{feff}{}"),
            vec![("no-silent-truncation", Unknown)],
        ),
        (
            "a page to sign in is no introspection",
            body("/server_info", "<!DOCTYPE html><title>Sign in</title>"),
            open(Unknown),
        ),
        (
            "nor is an error as 200",
            body("/server_info", r#"{"error":{"message":"Unauthorized"}}"#),
            open(Unknown),
        ),
        ("introspection", single(|_| ()), open(Violated)),
    ]);
}

#[test]
fn a_declared_context_that_cannot_be_read_may_be_longer() {
    let declared = |says: serde_json::Value| single(move |it| put(it, "/context_length", says));
    compare(vec![
        ("131,072", declared(json!(131_072)), pool(Violated)),
        ("131,072 as text", declared(json!("131072")), pool(Unknown)),
        ("128K", declared(json!("128K")), pool(Unknown)),
        (
            "131,072 as a float",
            declared(json!(131_072.0)),
            pool(Unknown),
        ),
        ("4,096 as text", declared(json!("4096")), pool(Holds)),
        ("4K", declared(json!("4K")), pool(Holds)),
        ("auto", declared(json!("auto")), pool(Holds)),
        ("none", declared(json!(null)), pool(Holds)),
        ("-1", declared(json!(-1)), pool(Holds)),
        (
            "prompts up to 8,192, as text",
            single(|it| put(it, "/max_req_input_len", json!("8192"))),
            pool(Unknown),
        ),
    ]);
}

/// Pools beside the pool, wherever they are told.
#[test]
fn further_pools_are_seen_under_other_names() {
    let at =
        |pointer: &'static str, says: serde_json::Value| single(move |it| put(it, pointer, says));
    let loads = |name: &'static str, says: serde_json::Value| {
        single(move |it| it.edit("/v1/loads", |it| it["loads"][0]["memory"][name] = says))
    };
    let gauge = |line: &'static str| single(move |it| series(it, line));
    let log = |line: &'static str| {
        server(sglang_log("single"), move |it| {
            let log = it.answers.get_mut("server.log").unwrap();
            log.extend(b"\n");
            log.extend(line.as_bytes());
        })
    };
    let beside = || vec![("all-kv-judged", Unknown)];
    const MEMORY: &str = "/internal_states/0/memory_usage";
    let _ = MEMORY;
    compare(vec![
        (
            "a window's pool, at /v1/loads",
            loads("token_capacity_swa", json!(1000)),
            pool(Unknown),
        ),
        (
            "a window's pool that holds the context, at /v1/loads",
            loads("token_capacity_swa", json!(6400)),
            vec![("pool-holds-context", Holds), ("all-kv-judged", Holds)],
        ),
        (
            "a window's pool, under its name in the engine",
            at("/internal_states/0/swa_max_total_num_tokens", json!(1000)),
            pool(Unknown),
        ),
        (
            "the same at the top",
            at("/swa_max_total_num_tokens", json!(1000)),
            pool(Unknown),
        ),
        (
            "states",
            at(
                "/internal_states/0/memory_usage/token_capacity_mamba",
                json!(64),
            ),
            beside(),
        ),
        (
            "compressed attention",
            at(
                "/internal_states/0/memory_usage/token_capacity_c4",
                json!(2000),
            ),
            beside(),
        ),
        (
            "states of compressors",
            at("/internal_states/0/c4_state_pool_size", json!(256)),
            beside(),
        ),
        (
            "a pool of text",
            at(
                "/internal_states/0/memory_usage/token_capacity_c128",
                json!("lots"),
            ),
            beside(),
        ),
        (
            "none of them",
            at(
                "/internal_states/0/memory_usage/token_capacity_mamba",
                json!(0),
            ),
            vec![("all-kv-judged", Holds), ("pool-holds-context", Holds)],
        ),
        (
            "states of linear attention, by metrics",
            gauge("sglang:linear_available_tokens{tp_rank=\"0\"} 64.0\n"),
            beside(),
        ),
        (
            "compressed attention, by metrics",
            gauge("sglang:c4_evictable_tokens{tp_rank=\"0\"} 64.0\n"),
            beside(),
        ),
        (
            "one memory for pools of several kinds",
            at("/enable_unified_memory", json!(true)),
            beside(),
        ),
        (
            "switched off in words",
            at("/enable_hierarchical_cache", json!("False")),
            vec![("all-kv-judged", Holds)],
        ),
        (
            "nothing but windows, by the log",
            log("[t] Use sliding window memory pool (all SWA). swa_layer_tokens=1000"),
            pool(Unknown),
        ),
        (
            "compressed attention, by the log",
            log("[t] DSV4 pool sizes: full=8000, swa=1000, c4=2000, c128=62, c4_state=256"),
            beside(),
        ),
        (
            "the same, as another version words it",
            log(
                "[t] Initialize DeepSeekV4TokenToKVPool with max_num_reqs=16 swa_size=1000 c4_size=2000",
            ),
            beside(),
        ),
        (
            "states that were asked for, by the log",
            server(sglang_log("single"), |it| {
                let old = "'max_mamba_cache_size': None";
                it.replace("server.log", old, "'max_mamba_cache_size': 22");
            }),
            beside(),
        ),
    ]);
}

/// vLLM's stores and tiers, where only a series or a setting tells of them.
#[test]
fn what_vllm_keeps_elsewhere_is_seen_in_settings_and_in_metrics() {
    let dev = |pointer: &'static str, says: serde_json::Value| {
        server(lone_vllm(), move |it| put(it, pointer, says))
    };
    let counted = |name: &'static str, source: &'static str| {
        bare_vllm(move |it| {
            let old = format!("source=\"{source}\"}} 0.0");
            let all = text(it, "/metrics");
            let start = all.find(&format!("\n{name}{{")).unwrap();
            let at = start + all[start..].find(&old).unwrap() + old.len() - 3;
            let changed = format!("{}64.0{}", &all[..at], &all[at + 3..]);
            it.answers.insert("/metrics".into(), changed.into_bytes());
        })
    };
    let cached = "vllm:prompt_tokens_cached_by_source_total";
    let beside = || vec![("all-kv-judged", Unknown)];
    let given = |old: &'static str, new: &'static str| {
        server(fixture("vllm-0.32.0").only_log(), move |it| {
            it.replace("server.log", old, new);
        })
    };
    compare(vec![
        (
            "embeddings of images from elsewhere",
            dev(
                "/vllm_config/ec_transfer_config",
                json!({"ec_connector": "ECExampleConnector", "ec_role": "ec_consumer"}),
            ),
            beside(),
        ),
        (
            "a sparse tier",
            dev(
                "/vllm_config/attention_config/hisparse_config",
                json!({"host_gb": 64}),
            ),
            beside(),
        ),
        (
            "offloading, where metrics are off",
            server(lone_vllm(), |it| {
                it.answers.remove("/metrics");
                put(
                    it,
                    "/vllm_config/cache_config/kv_offloading_size",
                    json!(64.0),
                );
            }),
            beside(),
        ),
        (
            "prefixes came from the host",
            counted(cached, "host"),
            beside(),
        ),
        (
            "prefixes came from a disk",
            counted(cached, "disk"),
            beside(),
        ),
        (
            "prefixes came from another vLLM",
            counted(cached, "p2p"),
            vec![("role-as-stated", Violated)],
        ),
        (
            "prefixes came from nobody knows where",
            counted(cached, "external_unspecified"),
            beside(),
        ),
        (
            "a connector was asked, and gave nothing",
            bare_vllm(|it| {
                let name =
                    "vllm:external_prefix_cache_queries_total{engine=\"0\",model_name=\"smollm2\"}";
                it.replace("/metrics", &format!("{name} 0.0"), &format!("{name} 64.0"));
            }),
            beside(),
        ),
        (
            "offloading, by the log",
            given(
                "'block_size': 32",
                "'block_size': 32, 'kv_offloading_size': 64.0",
            ),
            beside(),
        ),
        (
            "embeddings of images from elsewhere, by the log",
            given(
                "'block_size': 32",
                "'block_size': 32, 'ec_transfer_config': ECTransferConfig(ec_connector='ECExampleConnector')",
            ),
            beside(),
        ),
    ]);
}
