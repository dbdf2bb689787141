//! Folders as Hugging Face ships them. What a folder means is compared with transformers' logits in
//! `model/tests/folders.rs`; here it is what is read, and what is refused before anything is served.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use gguf::DType;
use serde_json::{Value as Json, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A copy that may be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

fn change(file: &Path, change: impl FnOnce(&mut Json)) {
    let mut json: Json = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut json);
    fs::write(file, json.to_string()).unwrap();
}

fn refusal(dir: &Path) -> String {
    let error = checkpoint::metadata(dir).expect_err("refused before anything is read");
    let opened = checkpoint::open(dir)
        .expect_err("refused as well")
        .to_string();
    assert_eq!(error.to_string(), opened);
    opened
}

/// What is done to a folder.
type Damage = Box<dyn Fn(&Path)>;
/// What is done to its header.
type Change = fn(&mut Json);

#[test]
fn a_folder_is_the_gguf_that_it_would_be() {
    let file = checkpoint::open(&fixture("llama")).unwrap();
    assert_eq!(file.string("general.architecture").unwrap(), "llama");
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 256),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("rope.dimension_count", 16),
        ("rope.scaling.original_context_length", 32),
        ("vocab_size", 48),
    ] {
        assert_eq!(file.u32(&format!("llama.{key}")).unwrap(), value, "{key}");
    }
    assert_eq!(file.f32("llama.rope.freq_base").unwrap(), 1000.0);
    let names: Vec<&str> = file.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names.len(), 2 * 9 + 4, "{names:?}");
    for (name, dims) in [
        ("token_embd.weight", &[32, 48][..]),
        ("output.weight", &[32, 48]),
        ("blk.1.attn_q.weight", &[32, 64]),
        ("blk.1.attn_k.weight", &[32, 32]),
        ("blk.1.attn_output.weight", &[64, 32]),
        ("blk.1.ffn_norm.weight", &[32]),
    ] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(
            (tensor.dims(), tensor.dtype()),
            (dims, DType::BF16),
            "{name}"
        );
    }
    // What Llama 3.1's paper says of these numbers, by another way: transformers' own.
    let frequencies = file
        .tensor("rope_freqs.weight")
        .unwrap()
        .dequantize()
        .unwrap();
    assert_eq!(frequencies[0], 1.0);
    assert_eq!(frequencies[7], 8.0);
    let metadata = checkpoint::metadata(&fixture("llama")).unwrap();
    assert!(
        metadata.iter().eq(file.iter()),
        "known before a weight is read"
    );
}

/// Hub caches are links to files of other names.
#[cfg(unix)]
#[test]
fn links_are_files() {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture("qwen2")).unwrap() {
        let path = entry.unwrap().path();
        std::os::unix::fs::symlink(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let linked = checkpoint::open(dir.path()).unwrap();
    let bias = linked.tensor("blk.0.attn_q.bias").unwrap();
    assert_eq!(bias.dims(), [64]);
    assert!(
        linked.tensor("output.weight").is_err(),
        "the head is the embedding"
    );
}

#[test]
fn keys_that_are_not_known_to_be_computed_are_refused_by_name() {
    let cases = [
        (
            "model_type",
            json!("mamba"),
            "`model_type` is \"mamba\"; expected one of: llama, mistral",
        ),
        (
            "hidden_act",
            json!("relu"),
            "`hidden_act` is \"relu\"; expected silu",
        ),
        (
            "attention_bias",
            json!(true),
            "`attention_bias` is true; expected false",
        ),
        (
            "mlp_bias",
            json!(true),
            "`mlp_bias` is true; expected false",
        ),
        (
            "quantization_config",
            json!({"bits": 4}),
            "`quantization_config`",
        ),
        (
            "residual_multiplier",
            json!(0.22),
            "`residual_multiplier` is 0.22",
        ),
        ("num_experts", json!(8), "`num_experts` is 8"),
        (
            "partial_rotary_factor",
            json!(0.5),
            "`partial_rotary_factor` is 0.5; expected 1",
        ),
        (
            "use_sliding_window",
            json!(true),
            "`use_sliding_window` is true; expected false",
        ),
        ("num_hidden_layers", json!(0), "`num_hidden_layers` is 0"),
        ("hidden_size", Json::Null, "`hidden_size` is missing"),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4.0}),
            "`rope_scaling` is yarn",
        ),
        (
            "rope_scaling",
            json!({"factor": 4.0}),
            "a rope_type beside the factor",
        ),
        (
            "rope_scaling",
            json!({"type": "linear"}),
            "`rope_scaling.factor` is null",
        ),
        (
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            "`layer_types`",
        ),
    ];
    for (key, value, says) in cases {
        let dir = copy("llama");
        change(&dir.path().join("config.json"), |config| {
            config[key] = value.clone()
        });
        let error = refusal(dir.path());
        assert!(error.contains(says), "{key}: {error}");
    }
}

#[test]
fn keys_of_one_kind_are_refused_where_they_mean_something_else() {
    let pattern = "`sliding_window_pattern` is 4";
    for (folder, key, value, says) in [
        (
            "gemma2",
            "hidden_activation",
            json!("gelu"),
            "`hidden_activation` is \"gelu\"",
        ),
        (
            "gemma2",
            "query_pre_attn_scalar",
            Json::Null,
            "`query_pre_attn_scalar` is missing",
        ),
        ("gemma2", "head_dim", Json::Null, "`head_dim` is missing"),
        (
            "gemma2",
            "sliding_window",
            Json::Null,
            "`sliding_window` is missing",
        ),
        (
            "gemma2",
            "layer_types",
            json!(["full_attention"]),
            "each but every 2. layer",
        ),
        (
            "gemma2",
            "rope_local_base_freq",
            json!(1e4),
            "`rope_local_base_freq`",
        ),
        ("gemma3", "sliding_window_pattern", json!(4), pattern),
        (
            "gemma3",
            "use_bidirectional_attention",
            json!(true),
            "`use_bidirectional_attention`",
        ),
        (
            "phi3",
            "partial_rotary_factor",
            json!(1.5),
            "expected up to 1",
        ),
        (
            "phi3",
            "hidden_activation",
            json!("silu"),
            "`hidden_activation`",
        ),
        ("phi3", "full_attn_mod", json!(2), "`full_attn_mod` is 2"),
        (
            "phi3-long",
            "original_max_position_embeddings",
            Json::Null,
            "`original_max_position_embeddings`",
        ),
        (
            "phi3-long",
            "rope_scaling",
            json!({"type": "longrope", "short_factor": [1.0]}),
            "long_factor",
        ),
        (
            "qwen3",
            "final_logit_softcapping",
            json!(30.0),
            "`final_logit_softcapping` is 30",
        ),
        (
            "qwen3",
            "rope_scaling",
            json!({"type": "longrope"}),
            "`rope_scaling` is longrope",
        ),
    ] {
        let dir = copy(folder);
        change(&dir.path().join("config.json"), |config| {
            config[key] = value.clone()
        });
        let error = refusal(dir.path());
        assert!(error.contains(says), "{folder}, {key}: {error}");
    }
    let dir = copy("phi3-long");
    change(&dir.path().join("config.json"), |config| {
        config["rope_scaling"]["short_mscale"] = json!(1.2)
    });
    assert!(refusal(dir.path()).contains("`rope_scaling.short_mscale` is 1.2"));
}

/// Layers with a window rotate by a base of their own.
#[test]
fn positions_of_gemma_3_are_read_as_either_transformers_writes_them() {
    let dir = copy("gemma3");
    let read = |path: &Path| {
        let file = checkpoint::metadata(path).unwrap();
        [
            "rope.freq_base",
            "rope.freq_base_swa",
            "rope.scaling.factor",
        ]
        .map(|key| file.f32(&format!("gemma3.{key}")).unwrap())
    };
    let before = read(dir.path());
    assert_eq!(before, [1e6, 1000.0, 8.0]);
    change(&dir.path().join("config.json"), |config| {
        for key in ["rope_theta", "rope_local_base_freq", "rope_scaling"] {
            config[key] = Json::Null;
        }
        config["rope_parameters"] = json!({
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        });
    });
    assert_eq!(read(dir.path()), before);
    change(&dir.path().join("config.json"), |config| {
        config["rope_parameters"]["sliding_attention"]["rope_type"] = json!("linear")
    });
    assert!(refusal(dir.path()).contains("`rope_parameters.sliding_attention`"));
}

#[test]
fn positions_that_are_scaled_are_said() {
    let dir = copy("llama");
    let linear = json!({"type": "linear", "factor": 4.0});
    change(&dir.path().join("config.json"), |config| {
        config["rope_scaling"] = linear
    });
    let file = checkpoint::open(dir.path()).unwrap();
    assert_eq!(file.string("llama.rope.scaling.type").unwrap(), "linear");
    assert_eq!(file.f32("llama.rope.scaling.factor").unwrap(), 4.0);
    assert!(file.tensor("rope_freqs.weight").is_err());
    // As transformers 5 writes it.
    change(&dir.path().join("config.json"), |config| {
        config["rope_theta"] = Json::Null;
        config["rope_scaling"] = Json::Null;
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 5000.0});
    });
    let file = checkpoint::open(dir.path()).unwrap();
    assert_eq!(file.f32("llama.rope.freq_base").unwrap(), 5000.0);
}

#[test]
fn shards_that_do_not_belong_together_are_refused_by_name() {
    let first = "model-00001-of-00002.safetensors";
    let index = "model.safetensors.index.json";
    let cases: [(&str, Damage, &str); 7] = [
        (
            "missing",
            Box::new(move |dir| fs::remove_file(dir.join(first)).unwrap()),
            first,
        ),
        (
            "cut",
            Box::new(move |dir| {
                let bytes = fs::read(dir.join(first)).unwrap();
                fs::write(dir.join(first), &bytes[..bytes.len() - 1]).unwrap();
            }),
            "fetch it again",
        ),
        (
            "with a header longer than the file",
            Box::new(move |dir| fs::write(dir.join(first), u64::MAX.to_le_bytes()).unwrap()),
            "its header says that it has 18446744073709551615 bytes",
        ),
        (
            "in a tensor that the index has elsewhere",
            Box::new(move |dir| {
                change(&dir.join(index), |json| {
                    json["weight_map"]["model.embed_tokens.weight"] =
                        "model-00002-of-00002.safetensors".into();
                });
            }),
            "\"model.embed_tokens.weight\", which lies in model-00002-of-00002.safetensors by the index",
        ),
        (
            "in a tensor that the index does not have",
            Box::new(move |dir| {
                change(&dir.join(index), |json| {
                    json["weight_map"]
                        .as_object_mut()
                        .unwrap()
                        .remove("model.embed_tokens.weight");
                });
            }),
            "which is not in the index",
        ),
        (
            "in a tensor that is not there",
            Box::new(move |dir| {
                change(&dir.join(index), |json| {
                    json["weight_map"]["model.more.weight"] = first.into()
                });
            }),
            "has no tensor \"model.more.weight\"",
        ),
        (
            "outside of the folder",
            Box::new(move |dir| {
                change(&dir.join(index), |json| {
                    json["weight_map"]["model.norm.weight"] = "../x.safetensors".into();
                });
            }),
            "\"../x.safetensors\", which is no file's name",
        ),
    ];
    for (what, damage, says) in cases {
        let dir = copy("llama");
        damage(dir.path());
        let error = refusal(dir.path());
        assert!(error.contains(says), "{what}: {error}");
    }
    let none = copy("qwen2");
    fs::remove_file(none.path().join("model.safetensors")).unwrap();
    let error = refusal(none.path());
    assert!(
        error.contains("has neither model.safetensors nor model.safetensors.index.json"),
        "{error}"
    );
}

/// The header of a file with one file's tensors, changed.
fn with_header(dir: &Path, header: impl FnOnce(&mut Json)) {
    let path = dir.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut json: Json = serde_json::from_slice(&bytes[8..][..length]).unwrap();
    header(&mut json);
    let changed = json.to_string();
    let mut out = (changed.len() as u64).to_le_bytes().to_vec();
    out.extend(changed.as_bytes());
    out.extend(&bytes[8 + length..]);
    fs::write(path, out).unwrap();
}

#[test]
fn headers_that_do_not_agree_with_themselves_are_refused() {
    let norm = "model.norm.weight";
    let cases: [(&str, Change, &str); 6] = [
        (
            "overlap",
            |json| json["model.norm.weight"]["data_offsets"] = json!([0, 64]),
            "nvalid",
        ),
        (
            "shape",
            |json| json["model.norm.weight"]["shape"] = json!([33]),
            "nvalid",
        ),
        (
            "type",
            |json| json["model.norm.weight"]["dtype"] = json!("F32"),
            "nvalid",
        ),
        (
            "kind",
            |json| json["model.norm.weight"]["dtype"] = json!("I16"),
            "is I16; F32, F16 and BF16",
        ),
        (
            "name",
            |json| {
                let norm = json["model.norm.weight"].take();
                json.as_object_mut().unwrap().remove("model.norm.weight");
                json["model.router.weight"] = norm;
            },
            "tensor `model.router.weight`: is not known",
        ),
        (
            "bounds",
            |json| json["model.norm.weight"]["data_offsets"] = json!([u64::MAX - 63, u64::MAX]),
            "nvalid",
        ),
    ];
    for (what, header, says) in cases {
        let dir = copy("qwen2");
        with_header(dir.path(), header);
        let error = refusal(dir.path());
        assert!(error.contains(says), "{what} of {norm}: {error}");
    }
}

#[test]
fn a_head_of_its_own_must_be_there() {
    let dir = copy("qwen2");
    change(&dir.path().join("config.json"), |config| {
        config["tie_word_embeddings"] = false.into()
    });
    assert!(refusal(dir.path()).contains("tensor `lm_head.weight`: is missing"));
}
