//! Start-up logs: the recorded ones, and what collectors, restarts and ranks make of them.

use gate::facts::{Engine, Node, Role, Unknown, read_log};

fn fixture(name: &str) -> String {
    let path = format!(
        "{}/tests/fixtures/{name}/server.log",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(path).unwrap()
}

fn read(text: &str) -> Node {
    read_log("prefill.log", text.as_bytes())
}

fn pools(node: &Node) -> Vec<Option<u64>> {
    let ranks = node.ranks.as_ref().unwrap_or_else(|why| panic!("{why}"));
    ranks
        .iter()
        .map(|it| it.pool.as_ref().ok().map(|it| it.value))
        .collect()
}

const FINAL: &str = "max_total_num_tokens=2000, chunked_prefill_size=4096, max_prefill_tokens=16384, \
                     max_running_requests=16, context_len=4096, available_gpu_mem=1.00 GB";
const BOUND: &str =
    "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 9000, K size: 1.00 GB";
const SIZED: &str = "Post-capture KV sizing: KV cache allocated. dtype: torch.float8_e4m3fn, \
                     #tokens: 7000, KV size: 1.00 GB, avail mem=1.00 GB";

#[test]
fn a_single_server_as_recorded() {
    let node = read(&fixture("sglang-0.5.23-single"));
    assert_eq!(node.engine.as_ref().unwrap().value, Engine::Sglang);
    assert_eq!(node.role.as_ref().unwrap().value, Role::Whole);
    assert_eq!(pools(&node), [Some(2000)]);
    assert_eq!(node.context.as_ref().unwrap().value, 4096);
    assert_eq!(node.max_prompt.as_ref().unwrap().value, 1993);
    assert_eq!(node.kv_dtype.as_ref().unwrap().value, "bfloat16");
    assert_eq!(node.page_size.as_ref().unwrap().value, 1);
    assert!(!node.truncates.as_ref().unwrap().value);
    assert!(!node.checksum.as_ref().unwrap().value);
    assert_eq!(
        node.model.as_ref().unwrap().value,
        "/models/tiny-llama-random"
    );
    assert_eq!(node.parallelism.data.as_ref().unwrap().value, 1);
    assert_eq!(node.max_running.as_ref().unwrap().value, 1000);
    assert!(node.version.is_err(), "no line tells it");
    assert_eq!(node.warnings.len(), 1);
    assert_eq!(
        node.warnings[0].source.to_string(),
        "prefill.log:54 KV pool holds "
    );
}

#[test]
fn logs_that_begin_after_the_settings() {
    for name in ["sglang-0.5.19-prefill", "sglang-0.5.23-prefill"] {
        let node = read(&fixture(name));
        assert_eq!(pools(&node), [Some(2000)], "{name}");
        assert_eq!(node.context.as_ref().unwrap().value, 4096);
        assert!(node.role.is_err() && node.page_size.is_err());
    }
}

/// An upper bound that is announced before the real allocation is not the pool.
#[test]
fn an_upper_bound_is_no_pool() {
    let node = read(&format!("[t] {BOUND}\n"));
    assert_eq!(node.engine.as_ref().unwrap().value, Engine::Sglang);
    assert_eq!(pools(&node), [None]);
    let why = node.smallest_pool().unwrap_err().to_string();
    assert!(why.contains("upper bound at prefill.log:1"), "{why}");
    let node = read(&format!("[t] {BOUND}\n[t] {SIZED}\n"));
    assert_eq!(pools(&node), [Some(7000)]);
    assert_eq!(node.kv_dtype.unwrap().value, "float8_e4m3fn");
    let node = read(&format!("[t] {BOUND}\n[t] {FINAL}\n"));
    assert_eq!(pools(&node), [Some(2000)]);
}

#[test]
fn ranks_interleaved_wrapped_and_coloured() {
    let line = |rank: u32, tokens: u32| {
        let colour = format!("\u{1b}[36m[2026-11-29 12:00:00 DP{rank} TP0]\u{1b}[0m ");
        let text = format!("{colour}{}", FINAL.replace("2000", &tokens.to_string()));
        format!(
            "{}\n",
            serde_json::json!({"stream": "stderr", "log": text + "\n"})
        )
    };
    let args = "{\"message\":\"[t] server_args={'dp_size': 3, 'disaggregation_mode': 'decode', \
                'context_length': None, 'max_total_tokens': 99}\"}\n";
    let log = format!("{args}{}{}", line(1, 1500), line(0, 2000));
    let node = read(&log);
    assert_eq!(
        pools(&node),
        [Some(2000), Some(1500), None],
        "the third has not said"
    );
    assert_eq!(node.declared_pool.as_ref().unwrap().value, 99);
    assert!(node.declared_context.is_none());
    assert_eq!(node.role.as_ref().unwrap().value, Role::Decode);
    let node = read(&format!("{log}{}", line(2, 1800)));
    assert_eq!(node.smallest_pool().unwrap().value, 1500);
    assert_eq!(node.max_prompt.unwrap().value, 1493);
    // Numbered ranks, and nothing that says how many.
    let node = read(&line(0, 2000));
    assert_eq!(pools(&node), [Some(2000), None]);
}

/// With data-parallel attention only tensor rank 0 prints the last line; the others allocate.
#[test]
fn a_rank_that_only_allocates() {
    let log = format!(
        "[t] server_args={{'dp_size': 2}}\n[t DP1 TP1] KV Cache is allocated. #tokens: 1200, K size: 0.1 GB\n\
         [t DP1 TP1] draft KV Cache is allocated. #tokens: 7, K size: 0.1 GB\n[t DP0 TP0] {FINAL}\n"
    );
    assert_eq!(pools(&read(&log)), [Some(2000), Some(1200)]);
}

#[test]
fn a_later_start_replaces_an_earlier_one() {
    let start = |tokens: &str, port: u32| {
        let last = FINAL.replace("2000", tokens);
        format!("[t] server_args={{'port': {port}, 'node_rank': 0, 'dp_size': 1}}\n[t] {last}\n")
    };
    let node = read(&format!("{}{}", start("500", 1), start("2000", 1)));
    assert_eq!(pools(&node), [Some(2000)]);
    assert_eq!(
        node.smallest_pool().unwrap().source.to_string(),
        "prefill.log:4 max_total_num_tokens="
    );
    // Two servers in one log: whose figures are whose?
    let node = read(&format!("{}{}", start("500", 1), start("2000", 2)));
    assert!(
        matches!(node.ranks, Err(Unknown::Contradiction(_))),
        "{:?}",
        node.ranks
    );
}

#[test]
fn settings_as_older_versions_print_them() {
    let args = "[t] server_args=ServerArgs(model_path='m', tokenizer_path='m', context_length=None, \
                page_size=64, tp_size=8, dp_size=1, disaggregation_mode='prefill', port=1)\n";
    let line = "[t TP0] KV Cache is allocated. #tokens: 681280, K size: 1.0 GB, V size: 1.0 GB\n";
    let node = read(&format!("{args}{line}"));
    assert_eq!(pools(&node), [Some(681_280)]);
    assert_eq!(node.page_size.unwrap().value, 64);
    assert_eq!(node.role.unwrap().value, Role::Prefill);
    assert!(node.context.is_err() && node.truncates.is_err());
}

#[test]
fn vllm_as_recorded_and_with_several_engines() {
    let text = fixture("vllm-0.32.0");
    let node = read(&text);
    assert_eq!(node.engine.as_ref().unwrap().value, Engine::Vllm);
    assert_eq!(node.version.as_ref().unwrap().value.text(), "0.32.0");
    assert_eq!(pools(&node), [Some(9568)]);
    assert_eq!(node.context.as_ref().unwrap().value, 8192);
    assert_eq!(node.page_size.as_ref().unwrap().value, 32);
    assert_eq!(node.role.as_ref().unwrap().value, Role::Either);
    assert_eq!(node.backend.as_ref().unwrap().value, "NixlConnector");
    assert_eq!(node.layout.as_ref().unwrap().value, "LBHNC");
    assert_eq!(node.declared_pool.as_ref().unwrap().value, 300);
    let two = text.replace("data_parallel_size=1", "data_parallel_size=2");
    assert_eq!(pools(&read(&two)), [Some(9568), None]);
    let line = "(EngineCore_DP1 pid=8) INFO [k.py:1] GPU KV cache size: 8,000 tokens, Maximum \
                concurrency for 8,192 tokens per request: 0.98x\n";
    assert_eq!(
        pools(&read(&format!("{two}\n{line}"))),
        [Some(9568), Some(7968)]
    );
    // One block is never used, and without its size the pool is not known.
    let lost = text.replace("'block_size': 32", "'other': 32");
    assert_eq!(pools(&read(&lost)), [None]);
}

#[test]
fn absurd_figures_in_logs_are_unknown() {
    for absurd in [
        "-5",
        "NaN",
        "9223372036854775808",
        "0",
        "2000.5",
        "'2000'",
        "2,00",
    ] {
        let node = read(&format!("[t] {}\n", FINAL.replace("2000", absurd)));
        let why = node.smallest_pool().unwrap_err();
        assert!(matches!(why, Unknown::Absurd(_)), "{absurd}: {why}");
    }
}

#[test]
fn other_logs_and_no_log() {
    for text in ["", "hello\n", "{\"msg\":\"listening\"}\n", "\u{0}\u{ff}"] {
        assert!(
            matches!(read(text).engine, Err(Unknown::NotReported { .. })),
            "{text:?}"
        );
    }
    let both = format!("[t] {FINAL}\n(EngineCore) GPU KV cache size: 8,000 tokens\n");
    assert!(matches!(read(&both).engine, Err(Unknown::Contradiction(_))));
    // A line without an end is cut, and the next one is still found, with its number.
    let long = format!("{}\n[t] {FINAL}\n", "x".repeat(3 << 20));
    let node = read(&long);
    assert_eq!(
        node.smallest_pool().unwrap().source.to_string(),
        "prefill.log:2 max_total_num_tokens="
    );
}
