//! Settings that are told and that nobody had compared: of weights, types, tokenizers and blocks.

use super::*;

fn two(make: impl Fn(&str) -> Recording, change: impl FnOnce(&mut Recording)) -> Servers {
    let mut decode = make("decode");
    change(&mut decode);
    pair(&make("prefill"), &decode)
}

fn in_sglang(field: &str, says: serde_json::Value) -> Servers {
    two(sglang, |it| put(it, &format!("/{field}"), says))
}

fn in_vllm(field: &str, says: serde_json::Value) -> Servers {
    two(
        |_| vllm(),
        |it| put(it, &format!("/vllm_config/{field}"), says),
    )
}

#[test]
fn what_makes_other_weights_is_compared() {
    let say = |answer| vec![("same-model", answer)];
    compare(vec![
        (
            "SGLang: weights restored from elsewhere",
            in_sglang("modelopt_checkpoint_restore_path", json!("/ckpt/b")),
            say(Violated),
        ),
        (
            "SGLang: a loader's own options",
            in_sglang("model_loader_extra_config", json!("{\"qlora\": \"/a\"}")),
            say(Unknown),
        ),
        (
            "SGLang: code of the repository on one side",
            in_sglang("trust_remote_code", json!(true)),
            say(Unknown),
        ),
        (
            "SGLang: another implementation of the model",
            in_sglang("model_impl", json!("transformers")),
            say(Unknown),
        ),
        (
            "SGLang: drafts' weights without drafts",
            in_sglang("speculative_draft_model_path", json!("/d")),
            say(Holds),
        ),
        (
            "SGLang: room for adapters, and none",
            in_sglang("max_lora_rank", json!(16)),
            say(Holds),
        ),
        (
            "vLLM: RoPE by its older name",
            in_vllm("model_config/rope_theta", json!(1e6)),
            say(Violated),
        ),
        (
            "vLLM: RoPE scaling, an object",
            in_vllm("model_config/rope_scaling", json!({"factor": 2.0})),
            say(Violated),
        ),
        (
            "vLLM: RoPE scaling, an empty object",
            in_vllm("model_config/rope_scaling", json!({})),
            say(Holds),
        ),
        (
            "vLLM: another class for the model",
            in_vllm(
                "model_config/model_class_overrides",
                json!({"LlamaForCausalLM": "x:Y"}),
            ),
            say(Unknown),
        ),
        (
            "vLLM: code of the repository on one side",
            in_vllm("model_config/trust_remote_code", json!(true)),
            say(Unknown),
        ),
        (
            "vLLM: another implementation of the model",
            in_vllm("model_config/model_impl", json!("transformers")),
            say(Unknown),
        ),
        (
            "vLLM: weights from another place than the configuration",
            in_vllm("model_config/model_weights", json!("s3://b/w")),
            say(Violated),
        ),
        (
            "vLLM: quantized by a configuration of its own",
            in_vllm("quant_config", json!("Fp8Config")),
            say(Unknown),
        ),
    ]);
}

#[test]
fn types_of_what_goes_with_kv_are_compared() {
    let say = |answer| vec![("same-kv-dtype", answer)];
    compare(vec![
        (
            "vLLM: an indexer in fp8 on one side",
            in_vllm("attention_config/indexer_kv_dtype", json!("fp8")),
            say(Unknown),
        ),
        (
            "vLLM: states of another type",
            in_vllm("cache_config/mamba_ssm_cache_dtype", json!("bfloat16")),
            say(Unknown),
        ),
        (
            "SGLang: an indexer in FP4 on one side",
            in_sglang("enable_deepseek_v4_fp4_indexer", json!(true)),
            say(Unknown),
        ),
        (
            "SGLang: an indexer of another type",
            in_sglang("qsa_indexer_dtype", json!("fp8")),
            say(Unknown),
        ),
        (
            "SGLang: states of another type",
            in_sglang("mamba_ssm_dtype", json!("bfloat16")),
            say(Unknown),
        ),
        (
            "SGLang: an older version without such settings, on both sides",
            {
                let old = |role: &str| {
                    let mut it = sglang(role);
                    it.edit("/server_info", |it| {
                        let it = it.as_object_mut().unwrap();
                        it.retain(|name, _| !name.contains("indexer"));
                    });
                    it
                };
                pair(&old("prefill"), &old("decode"))
            },
            say(Holds),
        ),
    ]);
}

#[test]
fn how_text_becomes_tokens_is_compared() {
    let say = |answer| vec![("same-tokenizer", answer)];
    compare(vec![
        (
            "SGLang: a slow tokenizer on one side",
            in_sglang("tokenizer_mode", json!("slow")),
            say(Violated),
        ),
        (
            "SGLang: another tokenizer's library",
            in_sglang("tokenizer_backend", json!("fastokens")),
            say(Violated),
        ),
        (
            "SGLang: another template for completions",
            in_sglang("completion_template", json!("deepseek_coder")),
            say(Violated),
        ),
        (
            "SGLang: images become other numbers of tokens",
            in_sglang(
                "mm_process_config",
                json!({"image": {"max_pixels": 1048576}}),
            ),
            say(Violated),
        ),
        (
            "vLLM: another revision of the tokenizer",
            in_vllm("model_config/tokenizer_revision", json!("2f3a1c")),
            say(Violated),
        ),
        (
            "vLLM: the default revision of the tokenizer by name",
            in_vllm("model_config/tokenizer_revision", json!("main")),
            say(Unknown),
        ),
        (
            "vLLM: another mode",
            in_vllm("model_config/tokenizer_mode", json!("mistral")),
            say(Violated),
        ),
    ]);
}

/// Pages of one name that hold other tokens.
#[test]
fn sizes_of_blocks_are_compared_by_what_they_hold() {
    let say = |answer| vec![("same-page-size", answer)];
    let blocks = |unit: &'static str| {
        two(
            |_| {
                let mut it = plain_vllm();
                label(&mut it, "effective_attention_block_size", "1600");
                it
            },
            move |it| label(it, "effective_attention_block_size", unit),
        )
    };
    compare(vec![
        (
            "vLLM: blocks of 1,600 and of 800 tokens",
            blocks("800"),
            say(Violated),
        ),
        ("vLLM: blocks of 1,600 tokens", blocks("1600"), say(Holds)),
        ("vLLM: one side does not tell", blocks("None"), say(Unknown)),
        (
            "SGLang: compressed pages of another size",
            in_sglang("c128_page_size", json!(32)),
            say(Unknown),
        ),
        (
            "SGLang: windows have a pool of their own on one side",
            in_sglang("disable_hybrid_swa_memory", json!(true)),
            vec![("same-layout", Unknown)],
        ),
        (
            "SGLang: one memory for pools of several kinds on one side",
            in_sglang("enable_unified_memory", json!(true)),
            vec![("all-kv-judged", Unknown)],
        ),
    ]);
}

/// The same settings, as start-up logs print them.
#[test]
fn logs_tell_the_same_settings() {
    let sglang = |old: &'static str, new: &'static str| {
        two(
            |_| sglang_log("single"),
            |it| it.replace("server.log", old, new),
        )
    };
    let vllm = |old: &'static str, new: &'static str| {
        let log = |_: &str| fixture("vllm-0.32.0").only_log();
        two(log, |it| it.replace("server.log", old, new))
    };
    let model = |answer| vec![("same-model", answer)];
    let tokenizer = |answer| vec![("same-tokenizer", answer)];
    compare(vec![
        (
            "SGLang: nothing differs",
            sglang("'stream_interval': 1", "'stream_interval': 2"),
            vec![
                ("same-tokenizer", Holds),
                ("same-model", Holds),
                ("same-kv-dtype", Holds),
            ],
        ),
        (
            "SGLang: another named template",
            sglang(
                "'hf_chat_template_name': None",
                "'hf_chat_template_name': 'tool_use'",
            ),
            tokenizer(Violated),
        ),
        (
            "SGLang: another template's arguments",
            sglang(
                "'default_chat_template_kwargs': None",
                "'default_chat_template_kwargs': {'enable_thinking': False}",
            ),
            tokenizer(Violated),
        ),
        (
            "SGLang: weights restored from elsewhere",
            sglang(
                "'modelopt_checkpoint_restore_path': None",
                "'modelopt_checkpoint_restore_path': '/ckpt/b'",
            ),
            model(Violated),
        ),
        (
            "SGLang: code of the repository on one side",
            sglang("'trust_remote_code': False", "'trust_remote_code': True"),
            model(Unknown),
        ),
        (
            "SGLang: states of another type",
            sglang("'mamba_ssm_dtype': None", "'mamba_ssm_dtype': 'bfloat16'"),
            vec![("same-kv-dtype", Unknown)],
        ),
        (
            "vLLM: a configuration of its own",
            vllm(
                "'block_size': 32",
                "'block_size': 32, 'hf_config_path': '/conf/yarn'",
            ),
            model(Violated),
        ),
        (
            "vLLM: RoPE scaling",
            vllm(
                "'block_size': 32",
                "'block_size': 32, 'rope_scaling': {'rope_type': 'yarn', 'factor': 2.0}",
            ),
            model(Violated),
        ),
        (
            "vLLM: code of another revision",
            vllm(
                "'block_size': 32",
                "'block_size': 32, 'code_revision': '2f3a1c'",
            ),
            model(Violated),
        ),
        (
            "vLLM: code of the repository on one side",
            vllm("trust_remote_code=False", "trust_remote_code=True"),
            model(Unknown),
        ),
        (
            "vLLM: another revision of the tokenizer",
            vllm("tokenizer_revision=None", "tokenizer_revision=2f3a1c"),
            tokenizer(Violated),
        ),
        (
            "vLLM: some layers are left out",
            {
                let log = |_: &str| {
                    let mut it = fixture("vllm-0.32.0").only_log();
                    it.replace("server.log", "kv_cache_dtype=auto", "kv_cache_dtype=fp8");
                    it
                };
                let new = "'block_size': 32, 'kv_cache_dtype_skip_layers': ['0', '1']";
                two(log, |it| it.replace("server.log", "'block_size': 32", new))
            },
            vec![("same-kv-dtype", Violated)],
        ),
    ]);
}
