//! What an engine says of itself: recorded pages with its own sizes in them.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::engine::{Dialect, Engine, Role};

const SGLANG_INFO: &str =
    include_str!("../../gate/tests/fixtures/sglang-0.5.23-prefill/server_info");
const SGLANG_LOADS: &str = include_str!("../../gate/tests/fixtures/sglang-0.5.23-prefill/v1_loads");
const SGLANG_MODEL: &str =
    include_str!("../../gate/tests/fixtures/sglang-0.5.23-prefill/model_info");
const SGLANG_METRICS: &str =
    include_str!("../../gate/tests/fixtures/sglang-0.5.23-prefill/metrics");
const VLLM_INFO: &str = include_str!("../../gate/tests/fixtures/vllm-0.32.0/server_info");
const VLLM_METRICS: &str = include_str!("../../gate/tests/fixtures/vllm-0.32.0/metrics");
const LLAMA_PROPS: &str = include_str!("../../gate/tests/fixtures/llama.cpp/props");
const LLAMA_METRICS: &str = include_str!("../../gate/tests/fixtures/llama.cpp/metrics");

/// Tokens of a vLLM block.
const BLOCK: u64 = 32;
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Pages by path: content type and bytes.
pub(crate) struct Pages(HashMap<&'static str, (&'static str, Bytes)>);

impl Pages {
    pub(crate) fn of(engine: &Engine) -> Self {
        let mut pages = Self(HashMap::new());
        match engine.dialect {
            Dialect::Sglang => pages.sglang(engine),
            Dialect::Vllm => pages.vllm(engine),
            Dialect::Llama => pages.llama(engine),
        }
        pages
    }

    pub(crate) fn get(&self, path: &str) -> Option<(&'static str, Bytes)> {
        self.0.get(path).cloned()
    }

    fn add(&mut self, path: &'static str, kind: &'static str, page: impl ToString) {
        self.0.insert(path, (kind, page.to_string().into()));
    }

    fn sglang(&mut self, engine: &Engine) {
        let mode = match engine.role {
            Role::Single => "null",
            role => role.name(),
        };
        let model = Value::from(engine.model.as_str());
        let info = sglang_info(engine, mode);
        self.add("/server_info", JSON, &info);
        self.add("/get_server_info", JSON, &info);
        let mut loads = parsed(SGLANG_LOADS);
        loads["version"] = engine.version.as_str().into();
        loads["loads"][0]["max_total_num_tokens"] = engine.pool.into();
        loads["loads"][0]["memory"]["token_capacity"] = engine.pool.into();
        loads["loads"][0]["disaggregation"]["mode"] = mode.into();
        for (n, pool) in engine.more_pools.iter().enumerate() {
            let mut rank = loads["loads"][0].clone();
            rank["dp_rank"] = (n + 1).into();
            rank["max_total_num_tokens"] = (*pool).into();
            rank["memory"]["token_capacity"] = (*pool).into();
            loads["loads"].as_array_mut().expect("a list").push(rank);
        }
        self.add("/v1/loads", JSON, loads);
        let mut about = parsed(SGLANG_MODEL);
        for name in ["model_path", "served_model_name", "tokenizer_path"] {
            about[name] = model.clone();
        }
        about["disaggregation_mode"] = mode.into();
        self.add("/model_info", JSON, &about);
        self.add("/get_model_info", JSON, about);
        self.models(engine, "sglang", "max_model_len");
        for path in ["/health", "/health_generate", "/ready"] {
            self.add(path, TEXT, "");
        }
        let unified = if mode == "null" { "unified" } else { mode };
        let metrics = SGLANG_METRICS
            .replace(
                "engine_type=\"prefill\"",
                &format!("engine_type=\"{unified}\""),
            )
            .replace("/models/tiny-llama-random", &engine.model);
        let metrics = with(&metrics, |name| match name {
            "sglang:max_total_num_tokens" | "sglang:num_pages" => Some(engine.pool),
            "sglang:kv_available_tokens" => Some(engine.pool),
            "sglang:context_len" => Some(engine.context),
            _ => None,
        });
        self.add("/metrics", TEXT, metrics);
    }

    fn vllm(&mut self, engine: &Engine) {
        let blocks = engine.pool.div_ceil(BLOCK);
        let mut info = parsed(VLLM_INFO);
        let config = &mut info["vllm_config"];
        config["model_config"]["max_model_len"] = engine.context.into();
        config["model_config"]["model"] = engine.model.as_str().into();
        config["model_config"]["tokenizer"] = engine.model.as_str().into();
        let cache = &mut config["cache_config"];
        cache["num_gpu_blocks"] = blocks.into();
        cache["num_gpu_blocks_override"] = blocks.into();
        cache["kv_cache_size_tokens"] = (blocks * BLOCK).into();
        self.add("/server_info", JSON, info);
        self.add("/version", JSON, r#"{"version":"0.32.0"}"#);
        self.models(engine, "vllm", "max_model_len");
        self.add("/health", TEXT, "");
        self.add("/ping", TEXT, "");
        self.add("/load", JSON, r#"{"server_load":0}"#);
        let metrics = VLLM_METRICS
            .replace(
                "num_gpu_blocks=\"300\"",
                &format!("num_gpu_blocks=\"{blocks}\""),
            )
            .replace("override=\"300\"", &format!("override=\"{blocks}\""))
            .replace(
                "kv_cache_size_tokens=\"9600\"",
                &format!("kv_cache_size_tokens=\"{}\"", blocks * BLOCK),
            )
            .replace(
                "model_name=\"smollm2\"",
                &format!("model_name=\"{}\"", engine.model),
            );
        self.add("/metrics", TEXT, metrics);
    }

    fn llama(&mut self, engine: &Engine) {
        let mut props = parsed(LLAMA_PROPS);
        props["default_generation_settings"]["n_ctx"] = engine.context.into();
        props["total_slots"] = 1.into();
        props["model_path"] = engine.model.as_str().into();
        props["model_alias"] = engine.model.as_str().into();
        self.add("/props", JSON, props);
        let slots = json!([{"id": 0, "n_ctx": engine.context, "speculative": false, "is_processing": false}]);
        self.add("/slots", JSON, slots);
        self.add("/health", JSON, r#"{"status":"ok"}"#);
        let models = json!({"object": "list", "data": [{
            "id": engine.model, "object": "model", "owned_by": "llamacpp",
            "meta": {"n_ctx": engine.context, "n_ctx_train": engine.context, "n_vocab": crate::tokens::VOCABULARY},
        }]});
        self.add("/v1/models", JSON, models);
        self.add("/metrics", TEXT, LLAMA_METRICS);
    }

    fn models(&mut self, engine: &Engine, owner: &str, length: &str) {
        let model = &engine.model;
        let models = json!({"object": "list", "data": [{
            "id": model, "object": "model", "created": 1795956272, "owned_by": owner, "root": model,
            "parent": null, (length): engine.context,
        }]});
        self.add("/v1/models", JSON, models);
    }
}

fn sglang_info(engine: &Engine, mode: &str) -> Value {
    let mut info = parsed(SGLANG_INFO);
    let model = Value::from(engine.model.as_str());
    for name in ["model_path", "served_model_name", "tokenizer_path"] {
        info[name] = model.clone();
    }
    info["version"] = engine.version.as_str().into();
    info["disaggregation_mode"] = mode.into();
    info["disaggregation_bootstrap_port"] = engine.bootstrap_port.into();
    info["max_total_tokens"] = engine.pool.into();
    info["max_total_num_tokens"] = engine.pool.into();
    info["max_req_input_len"] = engine.max_req_input_len().into();
    info["incremental_streaming_output"] = engine.incremental.into();
    info["random_seed"] = engine.random_seed.into();
    info["dp_size"] = (1 + engine.more_pools.len()).into();
    info["port"] = engine.port.into();
    let state = &mut info["internal_states"][0];
    state["memory_usage"]["token_capacity"] = engine.pool.into();
    state["disaggregation_mode"] = mode.into();
    info
}

fn parsed(page: &str) -> Value {
    serde_json::from_str(page).expect("a recording")
}

/// Metrics with other values where `value` has one.
fn with(metrics: &str, value: impl Fn(&str) -> Option<u64>) -> String {
    let line = |line: &str| {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        match (value(&line[..end]), line.rfind(' ')) {
            (Some(value), Some(at)) => format!("{} {value}.0\n", &line[..at]),
            _ => format!("{line}\n"),
        }
    };
    metrics.lines().map(line).collect()
}
