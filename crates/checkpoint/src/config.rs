//! `config.json` in the keys of a GGUF. A key that is not known is refused: it may change what is computed.

use gguf::{Metadata, Value};
use serde_json::Value as Json;

use crate::Error;

/// How one kind of models differs from the others, as far as its files go.
#[derive(Debug)]
pub(crate) struct Family {
    /// `model_type` in `config.json`.
    model_type: &'static str,
    /// `general.architecture` of its GGUF.
    architecture: &'static str,
    /// Rows of queries and keys are stored in halves, and a GGUF has them in pairs.
    pub(crate) pairs: bool,
    /// Whether the head is the embedding, where the file does not say.
    tied: bool,
    window: Window,
}

/// What `sliding_window` means.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Window {
    /// Layers have one if it is a number.
    Own,
    /// Nothing unless `use_sliding_window`, and then it is not known.
    Unused,
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "llama",
    pairs: true,
    tied: false,
    window: Window::Unused,
};
const FAMILIES: [Family; 4] = [
    LLAMA,
    Family {
        model_type: "mistral",
        window: Window::Own,
        ..LLAMA
    },
    Family {
        model_type: "qwen2",
        architecture: "qwen2",
        pairs: false,
        ..LLAMA
    },
    Family {
        model_type: "qwen3",
        architecture: "qwen3",
        pairs: false,
        ..LLAMA
    },
];

/// Counts, and what a GGUF calls them behind the architecture's name.
const COUNTS: [(&str, &str); 9] = [
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("vocab_size", "vocab_size"),
    (
        "original_max_position_embeddings",
        "rope.scaling.original_context_length",
    ),
    ("head_dim", "attention.key_length"),
];
const NUMBERS: [(&str, &str); 2] = [
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
];

/// Keys that are looked at by themselves below.
const LOOKED_AT: [&str; 8] = [
    "model_type",
    "hidden_act",
    "tie_word_embeddings",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
];

/// Keys that say nothing about what is computed of a prompt.
const OF_NO_MATTER: [&str; 30] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "rope_interleaved",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "use_cache",
];

/// Keys that must be as they are computed, if they are there.
const FIXED: [(&str, bool); 5] = [
    ("attention_bias", false),
    ("mlp_bias", false),
    ("is_encoder_decoder", false),
    ("add_cross_attention", false),
    ("use_bidirectional_attention", false),
];

/// What a folder says of its model.
pub(crate) struct Config {
    pub(crate) family: &'static Family,
    pub(crate) metadata: Metadata,
    pub(crate) tied: bool,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// What each pair's frequency is divided by (`rope_freqs.weight`), if that is not 1.
    pub(crate) frequencies: Option<Vec<f32>>,
}

impl Config {
    pub(crate) fn read(json: &Json) -> Result<Config, Error> {
        let family = family(json)?;
        only_what_is_known(json)?;
        let mut read = Read {
            json,
            architecture: family.architecture,
            keys: vec![string("general.architecture", family.architecture)],
        };
        let (heads, hidden) = (
            read.count("num_attention_heads")?,
            read.count("hidden_size")?,
        );
        let kv_heads = read.find("num_key_value_heads")?.unwrap_or(heads);
        let head_dim = read.find("head_dim")?.unwrap_or(hidden / heads);
        for key in [
            "num_hidden_layers",
            "max_position_embeddings",
            "intermediate_size",
            "vocab_size",
        ] {
            read.count(key)?;
        }
        for (theirs, ours) in COUNTS {
            if let Some(n) = read.find(theirs)? {
                read.put(ours, Value::U32(n as u32));
            }
        }
        for (theirs, ours) in NUMBERS {
            if let Some(x) = read.number(theirs)? {
                read.put(ours, Value::F32(x as f32));
            }
        }
        read.put("attention.head_count_kv", Value::U32(kv_heads as u32));
        read.put("attention.key_length", Value::U32(head_dim as u32));
        read.put("attention.value_length", Value::U32(head_dim as u32));
        read.put("rope.dimension_count", Value::U32(head_dim as u32));
        read.activation()?;
        read.window(family)?;
        let frequencies = read.rope(head_dim)?;
        Ok(Config {
            family,
            tied: json["tie_word_embeddings"].as_bool().unwrap_or(family.tied),
            metadata: Metadata::assembled(read.keys),
            heads,
            kv_heads,
            frequencies,
        })
    }
}

fn family(json: &Json) -> Result<&'static Family, Error> {
    let is = json["model_type"].as_str().unwrap_or_default();
    FAMILIES
        .iter()
        .find(|family| family.model_type == is)
        .ok_or_else(|| {
            let known = FAMILIES.map(|family| family.model_type).join(", ");
            refused(
                "model_type",
                &json["model_type"],
                format!("one of: {known}"),
            )
        })
}

fn only_what_is_known(json: &Json) -> Result<(), Error> {
    let known = |key: &str| {
        let counts = COUNTS
            .iter()
            .chain(&NUMBERS)
            .any(|(known, _)| *known == key);
        counts || LOOKED_AT.contains(&key) || OF_NO_MATTER.contains(&key)
    };
    for (key, value) in json.as_object().into_iter().flatten() {
        if let Some((_, fixed)) = FIXED.iter().find(|(name, _)| name == key) {
            if !value.is_null() && *value != *fixed {
                return Err(refused(key, value, fixed));
            }
        } else if key == "partial_rotary_factor" {
            if value.as_f64() != Some(1.0) {
                return Err(refused(key, value, "1"));
            }
        } else if !value.is_null() && !known(key) {
            return Err(refused(
                key,
                value,
                "no key that is not known to be computed or to mean nothing",
            ));
        }
    }
    Ok(())
}

/// The file, and the keys that were made of it.
struct Read<'j> {
    json: &'j Json,
    architecture: &'static str,
    keys: Vec<(String, Value)>,
}

impl Read<'_> {
    fn put(&mut self, key: &str, value: Value) {
        self.keys
            .push((format!("{}.{key}", self.architecture), value));
    }

    fn find(&self, key: &str) -> Result<Option<usize>, Error> {
        let value = &self.json[key];
        if value.is_null() {
            return Ok(None);
        }
        let count = value.as_u64().filter(|n| (1..=1 << 24).contains(n));
        let count = count.ok_or_else(|| refused(key, value, "a count from 1 to 16777216"))?;
        Ok(Some(count as usize))
    }

    fn count(&self, key: &str) -> Result<usize, Error> {
        let missing = || refused(key, "missing", "a count from 1 to 16777216");
        self.find(key)?.ok_or_else(missing)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        let value = &self.json[key];
        if value.is_null() {
            return Ok(None);
        }
        let number = value.as_f64();
        number
            .map(Some)
            .ok_or_else(|| refused(key, value, "a number"))
    }

    fn activation(&self) -> Result<(), Error> {
        let value = &self.json["hidden_act"];
        match value.is_null() || *value == "silu" {
            true => Ok(()),
            false => Err(refused("hidden_act", value, "silu")),
        }
    }

    fn window(&mut self, family: &Family) -> Result<(), Error> {
        match family.window {
            Window::Unused if self.json["use_sliding_window"] == true => {
                return Err(refused("use_sliding_window", true, false));
            }
            Window::Unused => {}
            Window::Own => {
                if let Some(window) = self.find("sliding_window")? {
                    self.put("attention.sliding_window", Value::U32(window as u32));
                }
            }
        }
        match &self.json["layer_types"] {
            Json::Null => Ok(()),
            // Layers of Mistral are called so whether there is a window or not.
            Json::Array(_) if family.window == Window::Own => Ok(()),
            Json::Array(kinds) if kinds.iter().all(|kind| kind == "full_attention") => Ok(()),
            stated => Err(refused("layer_types", stated, "full_attention in each")),
        }
    }

    /// Keys about positions, and what Llama 3.1 divides frequencies by.
    fn rope(&mut self, head_dim: usize) -> Result<Option<Vec<f32>>, Error> {
        let json = self.json;
        let (name, rope) = match &json["rope_parameters"] {
            Json::Null => ("rope_scaling", &json["rope_scaling"]),
            stated => ("rope_parameters", stated),
        };
        if let Some(base) = rope["rope_theta"].as_f64() {
            self.put("rope.freq_base", Value::F32(base as f32));
        }
        let base = rope["rope_theta"].as_f64().or(json["rope_theta"].as_f64());
        let base = base.unwrap_or(10_000.0);
        let kind = [&rope["rope_type"], &rope["type"]];
        let kind = kind.into_iter().find_map(Json::as_str);
        if kind.is_none() && rope.as_object().is_some_and(|it| it.contains_key("factor")) {
            return Err(refused(name, rope, "a rope_type beside the factor"));
        }
        let number = |key: &str| {
            let missing = || refused(&format!("{name}.{key}"), &rope[key], "a positive number");
            rope[key]
                .as_f64()
                .filter(|it| *it > 0.0)
                .ok_or_else(missing)
        };
        match kind.unwrap_or("default") {
            "default" => Ok(None),
            "linear" => {
                let factor = number("factor")?;
                let key = format!("{}.rope.scaling.type", self.architecture);
                self.keys.push(string(&key, "linear"));
                self.put("rope.scaling.factor", Value::F32(factor as f32));
                Ok(None)
            }
            "llama3" => {
                let context = number("original_max_position_embeddings")?;
                self.put(
                    "rope.scaling.original_context_length",
                    Value::U32(context as u32),
                );
                let divisors = Llama3 {
                    factor: number("factor")?,
                    low: number("low_freq_factor")?,
                    high: number("high_freq_factor")?,
                    context,
                };
                let pairs = (0..head_dim / 2).map(|pair| {
                    let frequency = base.powf(-(2.0 * pair as f64) / head_dim as f64);
                    divisors.of(frequency) as f32
                });
                Ok(Some(pairs.collect()))
            }
            other => Err(refused(name, other, "default, linear or llama3")),
        }
    }
}

/// Slow pairs are made slower by the factor, fast ones are left, those between go over smoothly.
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    context: f64,
}

impl Llama3 {
    fn of(&self, frequency: f64) -> f64 {
        let turns = self.context * frequency / std::f64::consts::TAU;
        if turns > self.high {
            return 1.0;
        }
        if turns < self.low {
            return self.factor;
        }
        let smooth = (turns - self.low) / (self.high - self.low);
        1.0 / ((1.0 - smooth) / self.factor + smooth)
    }
}

fn string(key: &str, value: &str) -> (String, Value) {
    (key.to_owned(), Value::String(value.to_owned()))
}

fn refused(key: &str, found: impl ToString, expected: impl ToString) -> Error {
    let mut found = found.to_string();
    found.truncate(found.floor_char_boundary(200));
    Error::Key {
        key: key.to_owned(),
        found,
        expected: expected.to_string(),
    }
}
