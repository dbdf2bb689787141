//! Pairs whose settings are worded in two ways and are the same, or look the same and are not.

use super::*;

/// Both sides are changed, each in its own way.
fn both<T>(
    make: impl Fn(&str) -> Recording,
    set: impl Fn(&mut Recording, T),
    prefill: T,
    decode: T,
) -> Vec<(Stated, Vec<Node>)> {
    let (mut p, mut d) = (make("prefill"), make("decode"));
    set(&mut p, prefill);
    set(&mut d, decode);
    pair(&p, &d)
}

fn in_sglang(field: &str, prefill: serde_json::Value, decode: serde_json::Value) -> Servers {
    both(sglang, |it, says| put(it, field, says), prefill, decode)
}

fn in_vllm(field: &str, prefill: serde_json::Value, decode: serde_json::Value) -> Servers {
    let field = format!("/vllm_config{field}");
    both(
        |_| vllm(),
        |it, says| put(it, &field, says),
        prefill,
        decode,
    )
}

/// In metrics and settings.
fn cache_dtype(prefill: &str, decode: &str) -> Servers {
    let set = |it: &mut Recording, says: &str| {
        label(it, "cache_dtype", says);
        put(it, "/vllm_config/cache_config/cache_dtype", json!(says));
    };
    both(|_| vllm(), set, prefill, decode)
}

#[test]
fn types_of_kv_are_compared_by_what_they_mean() {
    let say = |answer| vec![("same-kv-dtype", answer)];
    let mut skips = vllm();
    label(&mut skips, "cache_dtype", "fp8");
    put(
        &mut skips,
        "/vllm_config/cache_config/cache_dtype",
        json!("fp8"),
    );
    let mut others = skips.clone();
    label(&mut others, "kv_cache_dtype_skip_layers", "['0', '1']");
    put(
        &mut others,
        "/vllm_config/cache_config/kv_cache_dtype_skip_layers",
        json!(["0", "1"]),
    );
    let resolved = |prefill: &str, decode: &str| {
        in_sglang(
            "/internal_states/0/kv_cache_dtype",
            json!(prefill),
            json!(decode),
        )
    };
    compare(vec![
        (
            "vLLM: fp8 is fp8_e4m3",
            cache_dtype("fp8", "fp8_e4m3"),
            say(Holds),
        ),
        (
            "vLLM: fp8 is not fp8_e5m2",
            cache_dtype("fp8", "fp8_e5m2"),
            say(Violated),
        ),
        (
            "vLLM: half and float16",
            cache_dtype("half", "float16"),
            say(Holds),
        ),
        (
            "vLLM: bf16 and auto of bfloat16",
            cache_dtype("bf16", "auto"),
            say(Holds),
        ),
        (
            "vLLM: fp8 and auto of bfloat16",
            cache_dtype("fp8", "auto"),
            say(Violated),
        ),
        (
            "vLLM: nvfp4 and fp8",
            cache_dtype("nvfp4", "fp8"),
            say(Violated),
        ),
        (
            "vLLM: some layers are left out on one side",
            pair(&skips, &others),
            say(Violated),
        ),
        (
            "vLLM: some layers are left out on both",
            pair(&others, &others),
            say(Holds),
        ),
        (
            "SGLang: fp8_e4m3 and fp8_e5m2",
            in_sglang("/kv_cache_dtype", json!("fp8_e4m3"), json!("fp8_e5m2")),
            say(Violated),
        ),
        (
            "SGLang: bf16 and bfloat16",
            in_sglang("/kv_cache_dtype", json!("bf16"), json!("bfloat16")),
            say(Holds),
        ),
        (
            "SGLang: auto, and one rank resolved it to fp8",
            resolved("auto", "fp8_e4m3"),
            say(Unknown),
        ),
        (
            "SGLang: auto, resolved to two types",
            resolved("fp8_e4m3", "bfloat16"),
            say(Violated),
        ),
        (
            "SGLang: auto, resolved to one type",
            resolved("fp8_e4m3", "fp8_e4m3"),
            say(Holds),
        ),
        (
            "SGLang: computed in half and float16",
            in_sglang("/dtype", json!("half"), json!("float16")),
            say(Holds),
        ),
        (
            "vLLM: scales are computed on one side",
            in_vllm(
                "/cache_config/calculate_kv_scales",
                json!(true),
                json!(false),
            ),
            vec![("same-model", Violated)],
        ),
    ]);
}

#[test]
fn weights_are_compared_by_what_they_are() {
    let say = |answer| vec![("same-model", answer)];
    let rope = |factor: &str| {
        let text = format!(
            r#"{{"rope_scaling": {{"rope_type": "yarn", "factor": {factor}, "original_max_position_embeddings": 32768}}}}"#
        );
        json!(text)
    };
    let adapter = |id: &str, path: &str| json!([{"lora_id": id, "lora_name": "sql", "lora_path": path, "pinned": false}]);
    let path = |says: &str| {
        let says = says.to_owned();
        both(
            sglang,
            |it, says: String| {
                put(it, "/model_path", json!(says));
                it.edit("/model_info", |it| it["model_path"] = json!(says));
            },
            "/models/tiny-llama-random".to_owned(),
            says,
        )
    };
    let listed =
        |make: fn(&str) -> Recording, prefill: &[(&str, &str)], decode: &[(&str, &str)]| {
            let set = |it: &mut Recording, all: &[(&str, &str)]| {
                it.edit("/v1/models", |it| {
                    let base = it["data"][0].clone();
                    for (id, root) in all {
                        let mut entry = base.clone();
                        entry["id"] = json!(id);
                        entry["root"] = json!(root);
                        entry["parent"] = base["id"].clone();
                        it["data"].as_array_mut().unwrap().push(entry);
                    }
                });
            };
            both(make, set, prefill, decode)
        };
    let any_vllm = |_: &str| vllm();
    compare(vec![
        (
            "SGLang: the default revision by name",
            in_sglang("/revision", json!("main"), json!(null)),
            say(Holds),
        ),
        (
            "vLLM: the default revision by name",
            in_vllm("/model_config/revision", json!("main"), json!(null)),
            say(Holds),
        ),
        (
            "vLLM: another revision",
            in_vllm("/model_config/revision", json!("main"), json!("2f3a1c")),
            say(Violated),
        ),
        (
            "vLLM: one quantization, two kernels",
            in_vllm(
                "/model_config/quantization",
                json!("awq"),
                json!("awq_marlin"),
            ),
            say(Holds),
        ),
        (
            "vLLM: GPTQ, two kernels",
            in_vllm(
                "/model_config/quantization",
                json!("gptq_marlin"),
                json!("gptq"),
            ),
            say(Holds),
        ),
        (
            "vLLM: AWQ and GPTQ",
            in_vllm(
                "/model_config/quantization",
                json!("awq_marlin"),
                json!("gptq_marlin"),
            ),
            say(Violated),
        ),
        (
            "SGLang: w8a8_int8 and fp8",
            in_sglang("/quantization", json!("w8a8_int8"), json!("fp8")),
            say(Violated),
        ),
        (
            "RoPE: a factor of 4 and of 4.0",
            in_sglang("/json_model_override_args", rope("4"), rope("4.0")),
            say(Holds),
        ),
        (
            "RoPE: a factor of 4 and of 2",
            in_sglang("/json_model_override_args", rope("4.0"), rope("2.0")),
            say(Violated),
        ),
        (
            "no overrides: null and {}",
            in_sglang("/json_model_override_args", json!("{}"), json!(null)),
            say(Holds),
        ),
        (
            "vLLM: RoPE as text and as an object",
            in_vllm(
                "/model_config/hf_overrides",
                json!(r#"{"rope_theta": 1000000}"#),
                json!({"rope_theta": 1e6}),
            ),
            say(Holds),
        ),
        (
            "a path with a closing slash",
            path("/models/tiny-llama-random/"),
            say(Holds),
        ),
        (
            "another model",
            path("/models/tiny-llama-random-v2"),
            say(Violated),
        ),
        (
            "one adapter, with an id of each process",
            in_sglang(
                "/lora_paths",
                adapter("4be1", "/a/sql"),
                adapter("97aa", "/a/sql"),
            ),
            say(Holds),
        ),
        (
            "two adapters of one name",
            in_sglang(
                "/lora_paths",
                adapter("4be1", "/a/sql"),
                adapter("4be1", "/a/sql-2"),
            ),
            say(Violated),
        ),
        (
            "SGLang: an adapter was loaded on one side at run time",
            listed(sglang, &[("sql", "/a/sql")], &[]),
            say(Violated),
        ),
        (
            "vLLM: an adapter was loaded on one side at run time",
            listed(any_vllm, &[("sql", "/a/sql")], &[]),
            say(Violated),
        ),
        (
            "vLLM: one adapter's name for two",
            listed(any_vllm, &[("sql", "/a/sql")], &[("sql", "/a/sql-2")]),
            say(Violated),
        ),
        (
            "vLLM: the same adapters in another order",
            listed(
                any_vllm,
                &[("a", "/a/a"), ("b", "/a/b")],
                &[("b", "/a/b"), ("a", "/a/a")],
            ),
            say(Holds),
        ),
        (
            "vLLM: random weights on one side",
            in_vllm("/load_config/load_format", json!("dummy"), json!("auto")),
            say(Violated),
        ),
        (
            "vLLM: the same weights, streamed",
            in_vllm(
                "/load_config/load_format",
                json!("runai_streamer"),
                json!("auto"),
            ),
            say(Holds),
        ),
        (
            "SGLang: decode loads from a running instance",
            in_sglang("/load_format", json!("auto"), json!("remote_instance")),
            say(Holds),
        ),
        (
            "vLLM: windows are off on one side",
            in_vllm(
                "/model_config/disable_sliding_window",
                json!(true),
                json!(false),
            ),
            say(Violated),
        ),
        (
            "vLLM: code of another revision",
            in_vllm("/model_config/code_revision", json!("2f3a1c"), json!(null)),
            say(Violated),
        ),
        (
            "vLLM: a configuration of its own",
            in_vllm(
                "/model_config/hf_config_path",
                json!("/conf/yarn"),
                json!(null),
            ),
            say(Violated),
        ),
        (
            "another chat template's arguments",
            in_sglang(
                "/default_chat_template_kwargs",
                json!({"enable_thinking": false}),
                json!(null),
            ),
            vec![("same-tokenizer", Violated)],
        ),
        (
            "a tokenizer's path with a closing slash",
            in_sglang(
                "/tokenizer_path",
                json!("/models/tiny-llama-random/"),
                json!("/models/tiny-llama-random"),
            ),
            vec![("same-tokenizer", Holds)],
        ),
    ]);
}

#[test]
fn who_holds_which_part_of_the_kv_is_compared() {
    let attention = |size: u64, dp: bool, of: u64| {
        move |it: &mut Recording| {
            put(it, "/tp_size", json!(size));
            put(it, "/enable_dp_attention", json!(dp));
            put(it, "/attn_dp_size", json!(of));
        }
    };
    let two = |prefill: &dyn Fn(&mut Recording), decode: &dyn Fn(&mut Recording)| {
        let (mut p, mut d) = (sglang("prefill"), sglang("decode"));
        prefill(&mut p);
        decode(&mut d);
        pair(&p, &d)
    };
    let layouts = |answer| vec![("checksum-layouts-equal", answer)];
    compare(vec![
        (
            "TP 8, of which one side splits attention over requests",
            two(&attention(8, true, 8), &attention(8, false, 1)),
            layouts(Violated),
        ),
        (
            "TP 8, both split over requests",
            two(&attention(8, true, 8), &attention(8, true, 8)),
            layouts(Holds),
        ),
        (
            "decode splits the context",
            in_sglang("/dcp_size", json!(1), json!(2)),
            layouts(Violated),
        ),
        (
            "pages-major on one side",
            in_sglang("/enable_page_major_kv_layout", json!(true), json!(false)),
            vec![("same-layout", Violated)],
        ),
        (
            "KV is sharded on one side",
            in_sglang("/enable_kv_cache_sharding", json!(true), json!(false)),
            vec![("same-layout", Violated)],
        ),
        (
            "layers are split on one side",
            in_sglang("/enable_dsa_cache_layer_split", json!(false), json!(true)),
            vec![("same-layout", Violated)],
        ),
        (
            "pages of 64 and of 1",
            two(
                &|it| {
                    put(it, "/page_size", json!(64));
                    it.replace("/metrics", "sglang:page_size{engine_type=\"prefill\",model_name=\"/models/tiny-llama-random\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} 1.0", "sglang:page_size 64.0");
                },
                &|_| (),
            ),
            vec![("same-page-size", Violated)],
        ),
        (
            "vLLM: blocks of 32 and of 16",
            {
                let mut small = vllm();
                label(&mut small, "block_size", "16");
                put(
                    &mut small,
                    "/vllm_config/cache_config/block_size",
                    json!(16),
                );
                pair(&vllm(), &small)
            },
            vec![("same-page-size", Violated)],
        ),
        (
            "SGLang's KV for a vLLM",
            pair(&sglang("prefill"), &vllm()),
            vec![("same-layout", Unknown), ("same-tokenizer", Violated)],
        ),
    ]);
}

/// The same settings, as a start-up log prints them.
#[test]
fn logs_are_compared_as_answers_are() {
    let changed = |old: &str, new: &str| {
        let as_it_was = sglang_log("single");
        let mut changed = as_it_was.clone();
        changed.replace("server.log", old, new);
        pair(&as_it_was, &changed)
    };
    compare(vec![
        (
            "the default revision by name",
            changed("'revision': None", "'revision': 'main'"),
            vec![("same-model", Holds)],
        ),
        (
            "random weights",
            changed("'load_format': 'auto'", "'load_format': 'dummy'"),
            vec![("same-model", Violated)],
        ),
        (
            "adapters, with an id of each process",
            changed(
                "'lora_paths': None",
                "'lora_paths': [LoRARef(lora_id='4be1', lora_name='sql', lora_path='/a/sql')]",
            ),
            vec![("same-model", Unknown)],
        ),
        (
            "decode splits the context",
            changed("'dcp_size': 1", "'dcp_size': 2"),
            vec![("checksum-layouts-equal", Violated)],
        ),
        (
            "drafts of another process",
            changed(
                "'decoupled_spec_role': 'null'",
                "'decoupled_spec_role': 'verifier'",
            ),
            vec![("all-kv-judged", Unknown)],
        ),
        (
            "fp8 for KV on one side",
            changed("dtype: torch.bfloat16", "dtype: torch.float8_e4m3fn"),
            vec![("same-kv-dtype", Violated)],
        ),
    ]);
}
