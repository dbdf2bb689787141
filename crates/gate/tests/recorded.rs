//! Every recording gives the figures that its server had, field by field.

use gate::facts::recording::{Change, Recording};
use gate::facts::{Engine, Fact, Figure, FigureSource, Measured, Node, Role, Unknown};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::path::Path;

fn recording(name: &str) -> Recording {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Recording::load(&fixtures.join(name))
}

fn answers(name: &str) -> Recording {
    recording(name).only_answers(&[])
}

fn node(recording: &Recording) -> Node {
    let mut nodes = recording.nodes();
    assert_eq!(nodes.len(), 1);
    nodes.remove(0)
}

fn value<T: Clone + Debug>(fact: &Fact<Figure<T>>) -> T {
    fact.as_ref()
        .unwrap_or_else(|why| panic!("{why}"))
        .value
        .clone()
}

fn size(fact: &Fact<Measured<u64>>) -> u64 {
    fact.as_ref().unwrap_or_else(|why| panic!("{why}")).value
}

fn pools(node: &Node) -> Vec<Option<u64>> {
    let ranks = node.ranks.as_ref().unwrap_or_else(|why| panic!("{why}"));
    let pool = |it: &gate::facts::Rank| it.pool.as_ref().ok().map(|it| it.value);
    ranks.iter().map(pool).collect()
}

fn source<T: Clone + Debug>(fact: &Fact<Figure<T>>) -> String {
    fact.as_ref().unwrap().source.to_string()
}

#[test]
fn sglang_says_its_sizes_and_the_flag_is_only_declared() {
    let roles = [
        ("prefill", Role::Prefill),
        ("decode", Role::Decode),
        ("single", Role::Whole),
    ];
    let all = ["0.5.19", "0.5.23"]
        .into_iter()
        .flat_map(|it| roles.map(|role| (it, role)));
    for (version, (name, role)) in all.filter(|it| *it != ("0.5.19", roles[2])) {
        let node = node(&answers(&format!("sglang-{version}-{name}")));
        assert_eq!(value(&node.engine), Engine::Sglang);
        assert_eq!(value(&node.version).text(), version);
        assert_eq!(value(&node.role), role);
        assert_eq!(pools(&node), [Some(2000)], "{version} {name}");
        assert_eq!(node.declared_pool.as_ref().unwrap().value, 2000);
        assert_eq!(value(&node.page_size), 1);
        assert_eq!(size(&node.context), 4096);
        assert_eq!(size(&node.advertised), 4096);
        assert!(node.declared_context.is_none(), "context_length is null");
        assert_eq!(
            size(&node.max_prompt),
            1993,
            "1993 was accepted and 1994 refused"
        );
        assert!(!value(&node.truncates));
        assert_eq!(value(&node.backend), "mooncake");
        assert!(!value(&node.checksum));
        assert_eq!(value(&node.kv_dtype), "auto");
        assert_eq!(value(&node.layout), "layer-major");
        assert_eq!(value(&node.parallelism.tensor), 1);
        assert_eq!(value(&node.parallelism.data), 1);
        assert_eq!(value(&node.model), "/models/tiny-llama-random");
        assert_eq!(value(&node.tokenizer), "/models/tiny-llama-random");
        assert!(value(&node.open_introspection));
        assert!(node.deferred_release.is_err() && node.batch_bound.is_err());
        assert_eq!(node.warnings, []);
    }
}

#[test]
fn every_figure_says_where_it_was_read() {
    let node = node(&answers("sglang-0.5.23-prefill"));
    assert_eq!(source(&node.version), "http://recorded/server_info version");
    assert_eq!(
        node.smallest_pool().unwrap().source.to_string(),
        "http://recorded/v1/loads loads[0].max_total_num_tokens"
    );
    assert_eq!(
        node.max_prompt.unwrap().source.to_string(),
        "max_req_input_len - 1 of http://recorded/server_info max_req_input_len"
    );
    let node = self::node(&recording("sglang-0.5.23-single").only_log());
    assert_eq!(
        node.smallest_pool().unwrap().source.to_string(),
        "server.log:51 #tokens: "
    );
}

/// Law: capacity is measured, not declared.
#[test]
fn a_declared_pool_is_never_a_pool() {
    let mut recording = answers("sglang-0.5.23-prefill").only_answers(&["/v1/loads", "/metrics"]);
    recording.edit("/server_info", |info| {
        let info = info.as_object_mut().unwrap();
        info.remove("max_total_num_tokens");
        info.remove("internal_states");
        info["max_total_tokens"] = json!(8_000_000);
    });
    let node = node(&recording);
    assert_eq!(node.declared_pool.as_ref().unwrap().value, 8_000_000);
    assert_eq!(pools(&node), [None]);
}

#[test]
fn the_incidents_own_configuration() {
    let mut recording = answers("sglang-0.5.19-prefill");
    let text = |old: &str, new: &str, recording: &mut Recording| {
        for path in ["/server_info", "/v1/loads", "/v1/models", "/metrics"] {
            let body = recording.answers.get_mut(path).unwrap();
            *body = String::from_utf8_lossy(body).replace(old, new).into_bytes();
        }
    };
    text("tokens\":2000", "tokens\":681280", &mut recording);
    text("capacity\":2000", "capacity\":681280", &mut recording);
    text("} 2000.0", "} 681280.0", &mut recording);
    text("input_len\":1994", "input_len\":681274", &mut recording);
    text("model_len\":4096", "model_len\":1048576", &mut recording);
    text("} 4096.0", "} 1048576.0", &mut recording);
    let node = node(&recording);
    assert_eq!(pools(&node), [Some(681_280)]);
    assert_eq!(size(&node.context), 1_048_576);
    assert_eq!(size(&node.max_prompt), 681_273);
    assert_eq!(node.warnings, []);
}

/// The incident on two real servers: a decode pool above the prefill pool, and prompts between
/// their limits (recorded on 0.5.19).
#[test]
fn a_pair_whose_limits_differ() {
    let prefill = node(&answers("sglang-0.5.19-asym-prefill"));
    let decode = node(&answers("sglang-0.5.19-asym-decode"));
    assert_eq!(
        (pools(&prefill), pools(&decode)),
        (vec![Some(2000)], vec![Some(8000)])
    );
    assert_eq!(
        (size(&prefill.context), size(&decode.context)),
        (4096, 4096)
    );
    assert_eq!(
        (size(&prefill.max_prompt), size(&decode.max_prompt)),
        (1993, 4089)
    );
    assert_eq!((prefill.warnings, decode.warnings), (vec![], vec![]));
    let prefill = node(&recording("sglang-0.5.19-asym-prefill").only_log());
    let decode = node(&recording("sglang-0.5.19-asym-decode").only_log());
    assert_eq!(
        (value(&prefill.role), value(&decode.role)),
        (Role::Prefill, Role::Decode)
    );
    assert_eq!(
        (size(&prefill.max_prompt), size(&decode.max_prompt)),
        (1993, 4089)
    );
}

/// A server with two ranks whose pools differ; rank 0 has the larger.
fn two_ranks() -> Recording {
    let mut recording = answers("sglang-0.5.23-decode").only_answers(&["/metrics"]);
    recording.edit("/server_info", |info| {
        info["dp_size"] = json!(2);
        let mut second = info["internal_states"][0].clone();
        second["memory_usage"]["token_capacity"] = json!(1500);
        // In the order in which ranks answered: rank 1 first.
        info["internal_states"]
            .as_array_mut()
            .unwrap()
            .insert(0, second);
    });
    recording.edit("/v1/loads", |loads| {
        let mut second = loads["loads"][0].clone();
        second["dp_rank"] = json!(1);
        second["max_total_num_tokens"] = json!(1500);
        second["memory"]["token_capacity"] = json!(1500);
        loads["loads"].as_array_mut().unwrap().insert(0, second);
    });
    recording
}

#[test]
fn the_smallest_rank_counts_and_rank_0_is_not_all() {
    let recording = two_ranks();
    let node = node(&recording);
    assert_eq!(pools(&node), [Some(2000), Some(1500)]);
    assert_eq!(node.smallest_pool().unwrap().value, 1500);
    assert_eq!(size(&node.max_prompt), 1493, "what every rank accepts");
    assert_eq!(value(&node.parallelism.data), 2);
}

#[test]
fn ranks_that_nothing_reports_are_unknown() {
    let node_of = |recording: Recording| node(&recording);
    // Only the figures of rank 0, on a server with two.
    let mut lost = two_ranks().only_answers(&["/v1/loads"]);
    lost.edit("/server_info", |info| {
        info.as_object_mut().unwrap().remove("internal_states");
    });
    let node = node_of(lost);
    assert_eq!(pools(&node), [Some(2000), None]);
    assert!(node.smallest_pool().is_err() && node.max_prompt.is_err());
    // Nothing says how many there are.
    let mut lost = two_ranks().only_answers(&["/v1/loads"]);
    lost.edit("/server_info", |info| {
        let info = info.as_object_mut().unwrap();
        info.remove("internal_states");
        info.remove("dp_size");
    });
    assert_eq!(pools(&node_of(lost)), [Some(2000), None]);
    // The list of loads alone says how many there are, and which has what.
    let mut listed = two_ranks();
    listed.edit("/server_info", |info| {
        let info = info.as_object_mut().unwrap();
        info.remove("internal_states");
        info.remove("dp_size");
    });
    assert_eq!(pools(&node_of(listed)), [Some(2000), Some(1500)]);
    // Internal states alone say which pools there are, not whose.
    let unnamed = two_ranks().only_answers(&["/v1/loads"]);
    let node = node_of(unnamed);
    assert_eq!(node.smallest_pool().unwrap().value, 1500);
    assert_eq!(pools(&node).len(), 2);
}

#[test]
fn ranks_in_metrics_count_too() {
    let mut recording = answers("sglang-0.5.23-decode").only_answers(&["/v1/loads"]);
    recording.edit("/server_info", |info| info["dp_size"] = json!(2));
    let line = "sglang:max_total_num_tokens{dp_rank=\"1\",engine_type=\"decode\"} 1200.0\n";
    recording
        .answers
        .get_mut("/metrics")
        .unwrap()
        .extend(line.as_bytes());
    assert_eq!(pools(&node(&recording)), [Some(2000), Some(1200)]);
}

#[test]
fn old_sglang_without_the_newer_endpoints() {
    // 0.4.10: /get_server_info alone, no /v1/loads, no sizes in /metrics.
    let mut old =
        answers("sglang-0.5.19-decode").only_answers(&["/v1/loads", "/model_info", "/metrics"]);
    let info = old.answers.remove("/server_info").unwrap();
    old.answers.insert("/get_server_info".into(), info);
    old.edit("/get_server_info", |info| info["version"] = json!("0.4.10"));
    let node = node(&old);
    assert_eq!(value(&node.version).text(), "0.4.10");
    assert_eq!(pools(&node), [Some(2000)]);
    assert_eq!(size(&node.max_prompt), 1993);
    assert!(!value(&node.checksum), "no version before 0.5.21 has one");
    assert!(
        !value(&node.deferred_release),
        "no version before 0.5.19 has it"
    );
    // 0.4.6: internal states are merged into the top.
    old.edit("/get_server_info", |info| {
        let info = info.as_object_mut().unwrap();
        let states = info.remove("internal_states").unwrap();
        info.insert("memory_usage".into(), states[0]["memory_usage"].clone());
        info.remove("max_total_num_tokens");
    });
    let node = self::node(&old);
    assert_eq!(pools(&node), [Some(2000)]);
}

#[test]
fn settings_of_the_environment_are_read_where_they_are_told() {
    let mut told = answers("sglang-0.5.23-decode");
    let name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE";
    told.edit("/server_info", |info| {
        info["internal_states"][0]["env_vars"] = json!({ name: "false" });
    });
    let node = node(&told);
    assert!(!value(&node.deferred_release));
    assert_eq!(value(&node.release_timeout_ms), 30_000, "the default");
    assert_eq!(value(&node.batch_bound), 0, "off by default");
    told.edit("/server_info", |info| {
        info["internal_states"][0]["env_vars"] = json!({});
    });
    assert!(
        value(&self::node(&told).deferred_release),
        "on by default since 0.5.21"
    );
}

#[test]
fn a_server_that_tells_its_own_key_is_warned_about_and_the_key_is_not_kept() {
    let mut told = answers("sglang-0.5.23-single");
    told.edit("/server_info", |info| {
        info["api_key"] = json!("sk-very-secret")
    });
    let node = node(&told);
    assert_eq!(
        node.warnings[0].text,
        "introspection tells the server's own api_key"
    );
    assert!(
        !serde_json::to_string(&node)
            .unwrap()
            .contains("very-secret")
    );
}

#[test]
fn contradictions_are_unknown_and_of_pools_the_smaller_counts() {
    let mut recording = answers("sglang-0.5.23-single");
    recording.edit("/v1/loads", |loads| {
        loads["loads"][0]["max_total_num_tokens"] = json!(9000)
    });
    let node = node(&recording);
    assert_eq!(pools(&node), [Some(2000)]);
    assert!(
        node.warnings[0].text.contains("9000"),
        "{:?}",
        node.warnings
    );
    recording.replace("/metrics", "sglang:page_size{engine_type=\"unified\",model_name=\"/models/tiny-llama-random\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} 1.0", "sglang:page_size{} 16.0");
    recording.edit("/v1/loads", |loads| loads["version"] = json!("0.5.19"));
    let node = self::node(&recording);
    assert!(
        matches!(node.page_size, Err(Unknown::Contradiction(_))),
        "{:?}",
        node.page_size
    );
    assert!(matches!(node.version, Err(Unknown::Contradiction(_))));
    // A limit on prompts above the context cannot be.
    let mut halved = answers("sglang-0.5.23-single").only_answers(&["/metrics"]);
    halved.edit("/v1/models", |models| {
        models["data"][0]["max_model_len"] = json!(1000)
    });
    assert!(matches!(
        self::node(&halved).context,
        Err(Unknown::Contradiction(_))
    ));
}

#[test]
fn vllm_pool_is_blocks_times_size_without_the_null_block() {
    let node = node(&answers("vllm-0.32.0"));
    assert_eq!(value(&node.engine), Engine::Vllm);
    assert_eq!(value(&node.version).text(), "0.32.0");
    assert_eq!(pools(&node), [Some(299 * 32)]);
    assert_eq!(value(&node.page_size), 32);
    assert_eq!(size(&node.context), 8192);
    assert_eq!(size(&node.max_prompt), 8191);
    assert_eq!(value(&node.role), Role::Either);
    assert_eq!(value(&node.backend), "NixlConnector");
    assert!(!value(&node.truncates) && !value(&node.checksum));
    assert_eq!(value(&node.model), "/models/smollm2-hf");
    assert_eq!(value(&node.tokenizer), "/models/smollm2-hf");
    assert_eq!(
        node.declared_pool.as_ref().unwrap().value,
        300,
        "blocks from a flag"
    );
    assert!(
        node.kv_bytes.is_err(),
        "the override does not change what it says"
    );
    assert!(value(&node.open_introspection));
    assert_eq!(node.warnings, []);
}

#[test]
fn vllm_without_development_mode_and_with_old_labels() {
    let plain = answers("vllm-0.32.0").only_answers(&["/server_info"]);
    let node = node(&plain);
    assert_eq!(pools(&node), [Some(9568)]);
    assert!(node.role.is_err() && node.tokenizer.is_err());
    // Before kv_cache_size_tokens, and before the label engine.
    let old = "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_cpu_blocks=\"2048\",\
               num_gpu_blocks=\"27000\",num_gpu_blocks_override=\"None\"} 1.0\n";
    let mut recording = plain.clone();
    recording.answers.insert("/metrics".into(), old.into());
    assert_eq!(pools(&self::node(&recording)), [Some(26_999 * 16)]);
    // Some V1 versions reported None.
    recording.replace("/metrics", "27000", "None");
    assert_eq!(pools(&self::node(&recording)), [None]);
}

#[test]
fn vllm_sums_over_engines_and_the_sum_is_no_pool() {
    let mut recording = answers("vllm-0.32.0").only_answers(&["/server_info"]);
    let text = String::from_utf8_lossy(&recording.answers["/metrics"]).into_owned();
    let line = text
        .lines()
        .find(|it| it.starts_with("vllm:cache_config_info{"))
        .unwrap();
    let second = format!("{}\n", line.replace("engine=\"0\"", "engine=\"1\""));
    recording
        .answers
        .get_mut("/metrics")
        .unwrap()
        .extend(second.as_bytes());
    let node = node(&recording);
    assert_eq!(pools(&node), [None, None]);
    assert!(
        node.smallest_pool()
            .unwrap_err()
            .to_string()
            .contains("sums blocks")
    );
}

#[test]
fn llama_cpp_lengths_are_those_of_a_slot() {
    let node = node(&answers("llama.cpp"));
    assert_eq!(value(&node.engine), Engine::LlamaCpp);
    assert_eq!(pools(&node), [Some(1024), Some(1024)]);
    assert_eq!(size(&node.context), 1024);
    assert_eq!(size(&node.advertised), 1024);
    assert_eq!(size(&node.max_prompt), 1023);
    assert!(!value(&node.truncates));
    assert!(node.version.is_err(), "b0-unknown is no build number");
    let node = self::node(&answers("llama.cpp").only_answers(&["/slots"]));
    assert_eq!(pools(&node), [Some(1024), Some(1024)], "from /props");
}

#[test]
fn engines_that_are_not_supported_are_said_to_be() {
    let cases: [(&str, Value, Engine); 3] = [
        (
            "/v1/models",
            json!({"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}),
            Engine::TensorrtLlm,
        ),
        (
            "/v1/models",
            json!({"data": [{"id": "m", "owned_by": "nvidia"}]}),
            Engine::Dynamo,
        ),
        (
            "/info",
            json!({"model_id": "m", "max_input_tokens": 7, "router": "r"}),
            Engine::Tgi,
        ),
    ];
    for (path, body, engine) in cases {
        let mut recording = Recording::default();
        recording
            .answers
            .insert(path.into(), body.to_string().into_bytes());
        let node = node(&recording);
        assert_eq!(value(&node.engine), engine);
        let why = node.ranks.unwrap_err();
        assert!(matches!(why, Unknown::NotSupported { .. }), "{why}");
    }
    // Dynamo runs vLLM inside, whose metrics are there as well.
    let mut inside = answers("vllm-0.32.0");
    inside
        .answers
        .get_mut("/metrics")
        .unwrap()
        .extend(b"dynamo_component_uptime 1\n");
    assert_eq!(value(&node(&inside).engine), Engine::Dynamo);
    // SGLang's router answers in the name of its workers.
    let mut router = answers("sglang-0.5.23-prefill").only_answers(&["/server_info"]);
    router.answers.insert(
        "/get_server_info".into(),
        br#"{"router_manager":true}"#.to_vec(),
    );
    assert!(
        node(&router)
            .engine
            .unwrap_err()
            .to_string()
            .contains("router")
    );
}

/// Whatever is done to one field, a pool never grows, and every figure that is left is one that
/// the untouched recording has, or a smaller pool.
#[test]
fn no_change_to_a_field_makes_a_figure_up() {
    let names = [
        "sglang-0.5.19-prefill",
        "sglang-0.5.19-decode",
        "sglang-0.5.23-prefill",
        "sglang-0.5.23-decode",
        "sglang-0.5.23-single",
        "vllm-0.32.0",
        "llama.cpp",
    ];
    let all = names.map(|it| (it, answers(it))).into_iter();
    let logs = [
        "sglang-0.5.23-single",
        "sglang-0.5.23-prefill",
        "vllm-0.32.0",
    ];
    let logs = logs.map(|it| (it, recording(it).only_log())).into_iter();
    for (name, recording) in all.chain(logs) {
        let whole = node(&recording);
        let pool = whole.smallest_pool().unwrap().value;
        let mutations = recording.mutations();
        assert!(mutations.len() > 12, "{name}: {}", mutations.len());
        for it in mutations {
            let changed = node(&it.recording);
            let what = format!("{name}: {:?} of {}", it.change, it.field);
            if let Ok(least) = changed.smallest_pool() {
                // A log of vLLM names one size of a block, which is taken off once: halved, the pool
                // grows by half a block, and nothing else in the log would show it.
                assert!(least.value <= pool + 16, "{what}: {least:?}");
            }
            if it.change != Change::Halve {
                let same = |one: &Fact<Measured<u64>>, other: &Fact<Measured<u64>>| {
                    one.is_err() || one.as_ref().unwrap().value == size(other)
                };
                assert!(same(&changed.context, &whole.context), "{what}");
                assert!(same(&changed.max_prompt, &whole.max_prompt), "{what}");
            }
        }
    }
}

/// With every other place gone, a field that is gone, renamed or of another type is unknown.
#[test]
fn the_last_place_of_a_pool_cannot_be_lost_unnoticed() {
    let mut recording = answers("sglang-0.5.23-decode").only_answers(&["/v1/loads", "/metrics"]);
    recording.edit("/server_info", |info| {
        info.as_object_mut().unwrap().remove("internal_states");
    });
    let field = FigureSource::Field {
        url: "http://recorded/server_info".into(),
        field: "max_total_num_tokens".into(),
    };
    for change in [Change::Delete, Change::Rename, Change::OtherType] {
        let mut changed = recording.clone();
        assert!(changed.change(&field, change));
        assert_eq!(pools(&node(&changed)), [None], "{change:?}");
    }
    assert!(recording.change(&field, Change::Halve));
    assert_eq!(pools(&node(&recording)), [Some(1000)]);
}
