//! The small random models of `reference/`: one or more of every architecture, in every format.

use std::collections::BTreeMap;

use gguf::{DType, Value};
use serde::Deserialize;
use testkit::{Writer, draw};

/// A model, and of which positions of its tokens the logits are recorded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub architecture: String,
    #[serde(rename = "reference")]
    _reference: String,
    pub keys: BTreeMap<String, serde_json::Value>,
    /// Name, dimensions, mean, deviation, and whether it takes the format or is F32 always.
    tensors: Vec<(String, Vec<usize>, f64, f64, String)>,
    pub tokens: Vec<u32>,
    pub positions: Vec<usize>,
    pub formats: Vec<String>,
}

/// Name, description, recorded logits.
pub type Recorded = (&'static str, &'static str, &'static [u8]);

macro_rules! recorded {
    ($($case:literal),* $(,)?) => {[$((
        $case,
        include_str!(concat!("../reference/", $case, ".json")),
        include_bytes!(concat!("../reference/", $case, ".logits")),
    )),*]};
}

pub const RECORDED: [Recorded; 11] = recorded![
    "llama",
    "mistral",
    "qwen2",
    "qwen2-tied",
    "qwen3",
    "phi3",
    "phi3-long",
    "gemma2",
    "gemma3",
    "qwen3moe",
    "deepseek2",
];

impl Case {
    pub fn of(name: &str) -> (Case, &'static [u8]) {
        let mut all = RECORDED.into_iter();
        let found = all.find(|(known, ..)| *known == name);
        let (_, description, logits) = found.expect("a recorded case");
        let case = serde_json::from_str(description).expect("what make.py writes");
        (case, logits)
    }

    /// The file that `make.py` writes, drawn here.
    pub fn file(&self, format: DType) -> gguf::File {
        self.file_with(format, |_| ())
    }

    /// That file with something more in it.
    pub fn file_with(&self, format: DType, add: impl FnOnce(&mut Writer)) -> gguf::File {
        let mut writer = Writer::new();
        let name = Value::String(self.architecture.clone());
        writer.key("general.architecture", name);
        for (key, value) in &self.keys {
            writer.key(key, metadata(value));
        }
        for (name, dims, mean, deviation, kind) in &self.tensors {
            let dtype = if kind == "matrix" { format } else { DType::F32 };
            let count = dims.iter().product();
            let stored = draw(name, count, *mean as f32, *deviation as f32, dtype);
            writer.stored(name, dims, dtype, stored);
        }
        add(&mut writer);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("drawn.gguf");
        writer.write(&path).expect("space for a small model");
        gguf::File::open(&path).expect("what was just written")
    }
}

fn metadata(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::String(text) => Value::String(text.clone()),
        serde_json::Value::Number(n) => match n.as_u64() {
            Some(n) => Value::U32(n as u32),
            None => Value::F32(n.as_f64().expect("a number") as f32),
        },
        other => panic!("{other} in a recorded case"),
    }
}
