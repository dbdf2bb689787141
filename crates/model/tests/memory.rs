//! Loading needs little more memory than the file has bytes: seen from a process that loads and does nothing else.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gguf::{DType, Value};
use model::{LoadOptions, Model};
use serde_json::{Map, json};
use testkit::Writer;

const HIDDEN: usize = 1024;
const VOCAB: usize = 32_000;
const WIDTH: usize = 4096;
const LAYERS: usize = 6;
/// What a process of tests has without a model, and the mebibytes that a tensor is read by.
const ELSE: u64 = 24 << 20;
const NAMED: &str = "COFFERDAM_TEST_LOAD";

/// Names in a GGUF and in a folder, rows and columns (0 for a vector) of each tensor.
fn tensors() -> Vec<(String, String, usize, usize)> {
    let whole = [
        ("token_embd", "model.embed_tokens", VOCAB, HIDDEN),
        ("output_norm", "model.norm", HIDDEN, 0),
        ("output", "lm_head", VOCAB, HIDDEN),
    ];
    let layer = [
        ("attn_norm", "input_layernorm", HIDDEN, 0),
        ("attn_q", "self_attn.q_proj", HIDDEN, HIDDEN),
        ("attn_k", "self_attn.k_proj", HIDDEN, HIDDEN),
        ("attn_v", "self_attn.v_proj", HIDDEN, HIDDEN),
        ("attn_output", "self_attn.o_proj", HIDDEN, HIDDEN),
        ("ffn_norm", "post_attention_layernorm", HIDDEN, 0),
        ("ffn_gate", "mlp.gate_proj", WIDTH, HIDDEN),
        ("ffn_up", "mlp.up_proj", WIDTH, HIDDEN),
        ("ffn_down", "mlp.down_proj", HIDDEN, WIDTH),
    ];
    let whole = whole.map(|(ours, theirs, rows, cols)| (ours.into(), theirs.into(), rows, cols));
    let layers = (0..LAYERS).flat_map(|i| {
        layer.map(|(ours, theirs, rows, cols)| {
            let (ours, theirs) = (
                format!("blk.{i}.{ours}"),
                format!("model.layers.{i}.{theirs}"),
            );
            (ours, theirs, rows, cols)
        })
    });
    let all = whole.into_iter().chain(layers);
    all.map(|(ours, theirs, rows, cols)| {
        (
            format!("{ours}.weight"),
            format!("{theirs}.weight"),
            rows,
            cols,
        )
    })
    .collect()
}

fn gguf(dir: &Path) -> PathBuf {
    let mut writer = Writer::new();
    writer.key("general.architecture", Value::String("llama".into()));
    for (key, n) in [
        ("block_count", LAYERS),
        ("context_length", 512),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", WIDTH),
        ("attention.head_count", 16),
        ("vocab_size", VOCAB),
    ] {
        writer.key(&format!("llama.{key}"), Value::U32(n as u32));
    }
    writer.key("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    for (name, _, rows, cols) in tensors() {
        match cols {
            0 => writer.tensor(&name, &[rows], DType::F32, &vec![1.0; rows]),
            _ => writer.stored(
                &name,
                &[cols, rows],
                DType::Q8_0,
                vec![0; rows * cols / 32 * 34],
            ),
        }
    }
    let path = dir.join("large.gguf");
    writer.write(&path).unwrap();
    path
}

fn folder(dir: &Path) -> PathBuf {
    let dir = dir.join("folder");
    fs::create_dir(&dir).unwrap();
    let config = json!({
        "model_type": "llama", "num_hidden_layers": LAYERS, "max_position_embeddings": 512,
        "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_attention_heads": 16,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let (mut header, mut end) = (Map::new(), 0);
    for (_, name, rows, cols) in tensors() {
        let shape = if cols == 0 {
            vec![rows]
        } else {
            vec![rows, cols]
        };
        let begin = end;
        end += 2 * rows * cols.max(1);
        let about = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name, about);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.resize(bytes.len() + end, 0);
    fs::write(dir.join("model.safetensors"), bytes).unwrap();
    dir
}

/// `loads` below, in a process of its own: the most memory that it had, and what it had in the end.
fn loading(path: &Path) -> (u64, u64) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["loads", "--exact", "--nocapture"]);
    let output = command.env(NAMED, path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text
        .split_once("memory:")
        .unwrap_or_else(|| panic!("{output:?}"))
        .1;
    let mut numbers = said.split_whitespace().map(|it| it.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Run by the others with a model of theirs, and nothing by itself.
#[test]
fn loads() {
    let Some(path) = std::env::var_os(NAMED) else {
        return;
    };
    let path = PathBuf::from(path);
    let file = checkpoint::open(&path).unwrap();
    let model = Model::load(&file, LoadOptions::default()).unwrap();
    file.fingerprint().unwrap();
    drop(file);
    let resident = testkit::memory::resident(std::process::id()).unwrap();
    println!("memory: {} {resident} ", testkit::memory::peak());
    drop(model);
}

#[test]
fn loading_a_file_needs_a_quarter_more_than_the_file_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = gguf(dir.path());
    let bytes = fs::metadata(&path).unwrap().len();
    let (peak, after) = loading(&path);
    println!("{bytes} bytes: at most {peak}, afterwards {after}");
    assert!(peak < bytes + bytes / 4 + ELSE, "{peak} for {bytes}");
    assert!(after <= peak && after > bytes, "{after} for {bytes}");
}

/// 16 bits a weight become 8.5.
#[test]
fn loading_a_folder_needs_less_than_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = folder(dir.path());
    let bytes = fs::metadata(path.join("model.safetensors")).unwrap().len();
    let (peak, after) = loading(&path);
    println!("{bytes} bytes: at most {peak}, afterwards {after}");
    assert!(peak < bytes * 2 / 3 + ELSE, "{peak} for {bytes}");
    assert!(after <= peak && after > bytes / 2, "{after} for {bytes}");
}
