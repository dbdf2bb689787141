//! `config.json` in the keys of a GGUF. A key that is not known is refused: it may change what is computed.

use gguf::{Metadata, Value};
use serde_json::Value as Json;

use crate::Error;
use crate::family::{FAMILIES, Family, Window};

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
const NUMBERS: [(&str, &str); 5] = [
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    // Of those that have such keys.
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];
/// Some of them, which are no keys of every kind.
const ONLY_OF_SOME: [&str; 3] = [
    "rope_local_base_freq",
    "attn_logit_softcapping",
    "final_logit_softcapping",
];

/// Up to where a model was trained before its positions were scaled.
const ORIGINAL: &str = "original_max_position_embeddings";

/// Keys that are looked at by themselves below.
const LOOKED_AT: [&str; 9] = [
    "model_type",
    "partial_rotary_factor",
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
const FIXED: [(&str, bool); 6] = [
    ("lm_head_bias", false),
    ("attention_bias", false),
    ("mlp_bias", false),
    ("is_encoder_decoder", false),
    ("add_cross_attention", false),
    ("use_bidirectional_attention", false),
];

/// The same of keys that must be 1.
const OF_ONE: [&str; 2] = ["full_attn_mod", "interpolate_factor"];

/// What a folder says of its model.
pub(crate) struct Config {
    pub(crate) family: &'static Family,
    pub(crate) metadata: Metadata,
    pub(crate) tied: bool,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Tensors that a GGUF has for what is said here.
    pub(crate) tensors: Vec<(&'static str, Vec<f32>)>,
}

impl Config {
    pub(crate) fn read(json: &Json) -> Result<Config, Error> {
        let family = family(json)?;
        only_what_is_known(json, family)?;
        let mut read = Read {
            json,
            family,
            tensors: Vec::new(),
            keys: vec![string("general.architecture", family.architecture)],
        };
        let (heads, hidden) = (
            read.count("num_attention_heads")?,
            read.count("hidden_size")?,
        );
        let kv_heads = read.find("num_key_value_heads")?.unwrap_or(heads);
        let head_dim = read.find("head_dim")?.unwrap_or(hidden / heads);
        let always = [
            "num_hidden_layers",
            "max_position_embeddings",
            "intermediate_size",
            "vocab_size",
        ];
        for key in always.iter().chain(family.needed) {
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
        read.activation()?;
        read.window()?;
        read.score_scale()?;
        read.rope(head_dim)?;
        Ok(Config {
            family,
            tied: json["tie_word_embeddings"].as_bool().unwrap_or(family.tied),
            metadata: Metadata::assembled(read.keys),
            heads,
            kv_heads,
            tensors: read.tensors,
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

fn only_what_is_known(json: &Json, family: &Family) -> Result<(), Error> {
    let known = |key: &str| {
        let counts = COUNTS
            .iter()
            .chain(&NUMBERS)
            .any(|(known, _)| *known == key);
        let of_all = counts && !ONLY_OF_SOME.contains(&key) || LOOKED_AT.contains(&key);
        of_all || family.own_keys.contains(&key) || OF_NO_MATTER.contains(&key)
    };
    for (key, value) in json.as_object().into_iter().flatten() {
        if let Some((_, fixed)) = FIXED.iter().find(|(name, _)| name == key) {
            if !value.is_null() && *value != *fixed {
                return Err(refused(key, value, fixed));
            }
        } else if OF_ONE.contains(&key.as_str()) {
            if !value.is_null() && value.as_f64() != Some(1.0) {
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
    family: &'static Family,
    keys: Vec<(String, Value)>,
    tensors: Vec<(&'static str, Vec<f32>)>,
}

impl Read<'_> {
    fn put(&mut self, key: &str, value: Value) {
        self.keys
            .push((format!("{}.{key}", self.family.architecture), value));
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
        for key in ["hidden_act", "hidden_activation"] {
            let (value, expected) = (&self.json[key], self.family.activation);
            if !value.is_null() && *value != expected {
                return Err(refused(key, value, expected));
            }
        }
        Ok(())
    }

    fn window(&mut self) -> Result<(), Error> {
        let (json, window) = (self.json, self.family.window);
        if window == Window::Unused {
            if json["use_sliding_window"] == true {
                return Err(refused("use_sliding_window", true, false));
            }
        } else if let Some(window) = self.find("sliding_window")? {
            self.put("attention.sliding_window", Value::U32(window as u32));
        }
        let kinds = &json["layer_types"];
        let full = |is: &Json| *is == "full_attention";
        let (fits, expected) = match (window, kinds.as_array()) {
            (_, None) => (kinds.is_null(), "a list".to_owned()),
            // Layers of Mistral are called so whether there is a window or not.
            (Window::Own, _) => (true, String::new()),
            (Window::Unused, Some(kinds)) => {
                (kinds.iter().all(full), "full_attention in each".to_owned())
            }
            (Window::AllBut(n), Some(kinds)) => {
                let mut kinds = kinds.iter().zip(1..);
                let fits = |(kind, at): (&Json, u64)| match at % n {
                    0 => full(kind),
                    _ => *kind == "sliding_attention",
                };
                let expected = format!("sliding_attention in each but every {n}. layer");
                (kinds.all(fits), expected)
            }
        };
        if !fits {
            return Err(refused("layer_types", kinds, expected));
        }
        for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
            let stated = &json[key];
            if !stated.is_null() && window != stated.as_u64().map_or(Window::Own, Window::AllBut) {
                return Err(refused(key, stated, "what all models of this kind have"));
            }
        }
        Ok(())
    }

    fn score_scale(&mut self) -> Result<(), Error> {
        let key = "query_pre_attn_scalar";
        if let Some(width) = self.number(key)? {
            if width <= 0.0 {
                return Err(refused(key, width, "a positive number"));
            }
            self.put("attention.scale", Value::F32(width.sqrt().recip() as f32));
        }
        Ok(())
    }

    /// Keys about positions, and what Llama 3.1 and Phi-3 divide frequencies by.
    fn rope(&mut self, head_dim: usize) -> Result<(), Error> {
        let json = self.json;
        let (name, rope) = match (&json["rope_parameters"], self.family.window) {
            (Json::Null, _) => ("rope_scaling", &json["rope_scaling"]),
            // Transformers 5: of layers with a window by themselves.
            (stated, Window::AllBut(_)) if stated["full_attention"].is_object() => {
                self.local_rope(&stated["sliding_attention"])?;
                ("rope_parameters.full_attention", &stated["full_attention"])
            }
            (stated, _) => ("rope_parameters", stated),
        };
        let partial = "partial_rotary_factor";
        let rotated = rope[partial].as_f64().or(json[partial].as_f64());
        let rotated = rotated.unwrap_or(1.0);
        let most = if self.family.long_rope { 0.0 } else { 1.0 };
        if !(rotated > 0.0 && (most..=1.0).contains(&rotated)) {
            let expected = if most == 0.0 { "up to 1" } else { "1" };
            return Err(refused(partial, rotated, expected));
        }
        let dims = (head_dim as f64 * rotated) as u32;
        self.put("rope.dimension_count", Value::U32(dims));
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
            "default" => Ok(()),
            "linear" => {
                let factor = number("factor")?;
                let key = format!("{}.rope.scaling.type", self.family.architecture);
                self.keys.push(string(&key, "linear"));
                self.put("rope.scaling.factor", Value::F32(factor as f32));
                Ok(())
            }
            "longrope" | "su" if self.family.long_rope => self.long_rope(name, rope),
            "llama3" => {
                let context = number(ORIGINAL)?;
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
                self.tensors.push(("rope_freqs.weight", pairs.collect()));
                Ok(())
            }
            other => Err(refused(name, other, "default, linear or llama3")),
        }
    }

    fn local_rope(&mut self, rope: &Json) -> Result<(), Error> {
        let base = rope["rope_theta"].as_f64();
        match base.filter(|_| rope["rope_type"] == "default") {
            None => {
                let name = "rope_parameters.sliding_attention";
                Err(refused(name, rope, "rope_type default and a rope_theta"))
            }
            Some(base) => {
                self.put("rope.freq_base_swa", Value::F32(base as f32));
                Ok(())
            }
        }
    }

    /// Phi-3's two lists of factors, and what cosines and sines are multiplied with.
    fn long_rope(&mut self, name: &str, rope: &Json) -> Result<(), Error> {
        const KNOWN: [&str; 8] = [
            "type",
            "rope_type",
            "rope_theta",
            "partial_rotary_factor",
            "short_factor",
            "long_factor",
            "attention_factor",
            ORIGINAL,
        ];
        let keys = rope.as_object().into_iter().flatten();
        if let Some((key, value)) = keys
            .filter(|(_, value)| !value.is_null())
            .find(|(key, _)| !KNOWN.contains(&key.as_str()))
        {
            return Err(refused(&format!("{name}.{key}"), value, "nothing"));
        }
        for (theirs, ours) in [
            ("short_factor", "rope_factors_short.weight"),
            ("long_factor", "rope_factors_long.weight"),
        ] {
            let numbers = rope[theirs].as_array().into_iter().flatten();
            let numbers: Option<Vec<f32>> = numbers.map(|it| Some(it.as_f64()? as f32)).collect();
            let factors = numbers.filter(|factors| !factors.is_empty());
            let wrong = || refused(&format!("{name}.{theirs}"), &rope[theirs], "numbers");
            self.tensors.push((ours, factors.ok_or_else(wrong)?));
        }
        let original = rope[ORIGINAL].as_u64().or(self.json[ORIGINAL].as_u64());
        let missing = || {
            refused(
                ORIGINAL,
                "missing",
                "a count above 1 beside two lists of factors",
            )
        };
        let original = original
            .filter(|n| (2..=1 << 24).contains(n))
            .ok_or_else(missing)?;
        self.put(
            "rope.scaling.original_context_length",
            Value::U32(original as u32),
        );
        let longer = self.count("max_position_embeddings")? as f64 / original as f64;
        let computed = (1.0 + longer.max(1.0).ln() / (original as f64).ln()).sqrt();
        let factor = rope["attention_factor"].as_f64().unwrap_or(computed);
        self.put("rope.scaling.attn_factor", Value::F32(factor as f32));
        Ok(())
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
