//! Hyperparameters, read from the GGUF's metadata.

use crate::Error;
use crate::architecture::{
    ARCHITECTURES, Architecture, Factors, FeedForward, Projections, Windows,
};
use crate::keys::Keys;

/// The shape of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which blocks it is made of.
    pub architecture: &'static Architecture,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of a query and of a key; a multiple of 16.
    pub key_dim: usize,
    /// Values of a value; a multiple of 16.
    pub value_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub rms_epsilon: f32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Dimensions of a head that are rotated, the first ones.
    pub rope_dims: usize,
    /// Every position is divided by this (linear scaling); 1 without scaling.
    pub rope_position_divisor: f32,
    /// What the rotated dimensions are multiplied with.
    pub rope_magnitude: f32,
    /// What scores are multiplied with.
    pub score_scale: f32,
    /// Bound of the scores, 0 for none.
    pub score_cap: f32,
    /// Bound of the logits, 0 for none.
    pub logit_cap: f32,
    /// What layers with a window do otherwise.
    pub local: Option<Windowed>,
    /// Where the feed-forward part is a mixture.
    pub experts: Option<Experts>,
    /// Where keys and values are made of a latent row. The dimensions above are then those of what
    /// the cache holds: a key is the row and a rotated part, its value is the row.
    pub latent: Option<Latent>,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Of which so many are chosen for a token.
    pub used: usize,
    /// Width of each.
    pub width: usize,
    /// So many that see every token, as one of their width together.
    pub shared: usize,
    /// Layers before the first mixture.
    pub dense_layers: usize,
    /// Whether the weights of the chosen ones are made to sum to 1.
    pub normed: bool,
    /// What their weights are then multiplied with.
    pub scale: f32,
}

/// What the heads make of a latent row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Values of a query and of a key, the rotated part, which comes last, included.
    pub key_dim: usize,
    /// Values of a value.
    pub value_dim: usize,
}

/// Layers that see the last tokens only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windowed {
    /// So many, their own included.
    pub window: usize,
    /// Every so many-th layer has no window; 0: all have.
    pub every: usize,
    /// Base of their rotary embedding, if it is another; positions are then not divided.
    pub rope_base: Option<f32>,
}

/// Largest accepted value of any count: far above real models, far below overflow.
pub(crate) const COUNT_MAX: usize = 1 << 24;

/// The description of a file's architecture, as far as its name says.
///
/// # Errors
/// It is one that this crate does not compute; the text says what would be computed.
pub fn check_architecture(metadata: &gguf::Metadata) -> Result<&'static Architecture, Error> {
    let is = metadata.string("general.architecture")?;
    let found = ARCHITECTURES.iter().find(|known| known.name == is);
    found.ok_or_else(|| {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        let expected = format!(
            "one of: {}; docs/models.md says what loads",
            known.join(", ")
        );
        unsupported("general.architecture", is, expected)
    })
}

impl Config {
    /// Reads and checks the metadata and the vocabulary's size.
    pub fn read(file: &gguf::File) -> Result<Config, Error> {
        let architecture = check_architecture(file)?;
        let keys = Keys::new(file, architecture.name);
        let hidden = keys.count("embedding_length")?;
        let heads = keys.count("attention.head_count")?;
        let key_dim = keys.u32_or("attention.key_length", hidden / heads)?;
        let value_dim = keys.u32_or("attention.value_length", key_dim)?;
        let latent = latent(&keys, architecture)?;
        let layers = keys.count("block_count")?;
        let scale_dim = match architecture.scaled_by_width {
            Some(n) if n == layers => hidden / heads,
            _ => latent.map_or(key_dim, |latent| latent.key_dim),
        };
        let cap = |key| match architecture.soft_caps {
            true => keys.f32(key),
            false => Ok(0.0),
        };
        let config = Config {
            architecture,
            layers,
            hidden,
            feed_forward: keys.count("feed_forward_length")?,
            heads,
            kv_heads: keys.u32_or("attention.head_count_kv", heads)?,
            key_dim,
            value_dim,
            vocab: vocabulary(file, &keys)?,
            context: context(file, &keys, architecture)?,
            rms_epsilon: keys.f32("attention.layer_norm_rms_epsilon")?,
            rope_base: keys.find_f32("rope.freq_base")?.unwrap_or(10_000.0),
            rope_dims: keys.u32_or("rope.dimension_count", key_dim)?,
            rope_position_divisor: position_divisor(&keys)?,
            rope_magnitude: match architecture.factors {
                Factors::ShortAndLong => keys.find_f32("rope.scaling.attn_factor")?.unwrap_or(1.0),
                _ => 1.0,
            },
            score_scale: score_scale(&keys, architecture, scale_dim)?,
            score_cap: cap("attn_logit_softcapping")?,
            logit_cap: cap("final_logit_softcapping")?,
            local: local(&keys, architecture)?,
            experts: experts(&keys, architecture)?,
            latent,
        };
        config.check(&keys)?;
        keys.nothing_left()?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<(), Error> {
        let refuse = |key: &str, found: &dyn ToString, expected| {
            Err(unsupported(keys.name(key), found.to_string(), expected))
        };
        let kv = self.kv_heads;
        if kv == 0 || !self.heads.is_multiple_of(kv) {
            return refuse("attention.head_count_kv", &kv, "a divisor of the heads");
        }
        for (key, dim) in [
            ("attention.key_length", self.key_dim),
            ("attention.value_length", self.value_dim),
        ] {
            if dim == 0 || dim > 1024 || !dim.is_multiple_of(16) {
                return refuse(key, &dim, "a multiple of 16 to 1024");
            }
        }
        let rope = self.rope_dims;
        if rope == 0 || rope > self.key_dim || !rope.is_multiple_of(2) {
            return refuse("rope.dimension_count", &rope, "even, up to a head");
        }
        for (key, value) in [
            ("attention.layer_norm_rms_epsilon", self.rms_epsilon),
            ("rope.freq_base", self.rope_base),
            ("rope.scaling.factor", self.rope_position_divisor),
            ("rope.scaling.attn_factor", self.rope_magnitude),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return refuse(key, &value, "a positive number");
            }
        }
        if let Some(experts) = &self.experts {
            if experts.used > experts.count {
                return refuse("expert_used_count", &experts.used, "at most the experts");
            }
            if !(experts.scale.is_finite() && experts.scale > 0.0) {
                return refuse("expert_weights_scale", &experts.scale, "a positive number");
            }
        }
        if let Some(latent) = &self.latent {
            if self.key_dim != self.value_dim + rope || kv != 1 {
                let expected = "the latent row and the rotated dimensions, for one KV head";
                return refuse("attention.key_length", &self.key_dim, expected);
            }
            if latent.key_dim <= rope {
                return refuse(
                    "attention.key_length_mla",
                    &latent.key_dim,
                    "more than the rotated dimensions",
                );
            }
        }
        for (key, cap) in [
            ("attn_logit_softcapping", self.score_cap),
            ("final_logit_softcapping", self.logit_cap),
        ] {
            if self.architecture.soft_caps && !(cap.is_finite() && cap > 0.0) {
                return refuse(key, &cap, "a positive number");
            }
        }
        Ok(())
    }

    /// Width of all query heads together.
    pub(crate) fn query_width(&self) -> usize {
        self.heads * self.key_dim
    }

    /// Width of all key heads together.
    pub(crate) fn key_width(&self) -> usize {
        self.kv_heads * self.key_dim
    }

    /// Width of all value heads together; 0 where values lie in their keys.
    pub(crate) fn value_width(&self) -> usize {
        self.kv_heads * self.cached_value_dim()
    }

    /// Values of a value that the cache holds beside its key.
    pub(crate) fn cached_value_dim(&self) -> usize {
        match self.latent {
            Some(_) => 0,
            None => self.value_dim,
        }
    }

    /// Width of what all query heads have attended to.
    pub(crate) fn attended_width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// What is special about `layer`, if it sees the last tokens only.
    pub(crate) fn local(&self, layer: usize) -> Option<&Windowed> {
        let everywhere =
            |local: &&Windowed| local.every == 0 || !(layer + 1).is_multiple_of(local.every);
        self.local.as_ref().filter(everywhere)
    }
}

/// What scores are multiplied with. Only Gemma has a setting for it, which a GGUF leaves unsaid.
fn score_scale(keys: &Keys<'_>, architecture: &Architecture, dim: usize) -> Result<f32, Error> {
    const SCALE: &str = "attention.scale";
    let stated = match architecture.scaled_by_width {
        None => None,
        Some(_) => keys.find_f32(SCALE)?.filter(|scale| *scale != 0.0),
    };
    match stated {
        None => Ok(1.0 / (dim as f32).sqrt()),
        Some(scale) if scale.is_finite() && scale > 0.0 => Ok(scale),
        Some(scale) => Err(unsupported(keys.name(SCALE), scale, "a positive number")),
    }
}

/// Where the context ends.
fn context(
    file: &gguf::File,
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<usize, Error> {
    let context = keys.count("context_length")?;
    let long = || file.tensor(crate::rope::LONG_FACTORS).is_ok();
    if architecture.factors == Factors::ShortAndLong && long() {
        let original = keys.count("rope.scaling.original_context_length")?;
        return Ok(context.min(original));
    }
    Ok(context)
}

fn experts(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<Experts>, Error> {
    const GATING: &str = "expert_gating_func";
    const SOFTMAX: usize = 1;
    let FeedForward::Experts { normed } = architecture.feed_forward else {
        return Ok(None);
    };
    let gating = keys.u32_or(GATING, SOFTMAX)?;
    if gating != SOFTMAX {
        return Err(unsupported(
            keys.name(GATING),
            gating,
            "1 (softmax) or absent",
        ));
    }
    Ok(Some(Experts {
        count: keys.count("expert_count")?,
        used: keys.count("expert_used_count")?,
        width: keys.count("expert_feed_forward_length")?,
        shared: keys.u32_or("expert_shared_count", 0)?,
        dense_layers: keys.u32_or("leading_dense_block_count", 0)?,
        normed: keys.find_bool("expert_weights_norm")?.unwrap_or(normed),
        scale: keys.find_f32("expert_weights_scale")?.unwrap_or(1.0),
    }))
}

fn latent(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<Latent>, Error> {
    if architecture.projections != Projections::Latent {
        return Ok(None);
    }
    let (rank, row) = (
        keys.count("attention.kv_lora_rank")?,
        keys.count("attention.value_length")?,
    );
    if rank != row {
        let expected = "the latent row (attention.value_length)";
        return Err(unsupported(
            keys.name("attention.kv_lora_rank"),
            rank,
            expected,
        ));
    }
    Ok(Some(Latent {
        key_dim: keys.count("attention.key_length_mla")?,
        value_dim: keys.count("attention.value_length_mla")?,
    }))
}

/// The window's layers, as the architecture has them and the file says.
fn local(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<Windowed>, Error> {
    const WINDOW: &str = "attention.sliding_window";
    let (window, every) = match architecture.windows {
        Windows::Never => return Ok(None),
        Windows::All => match keys.u32_or(WINDOW, 0)? {
            0 => return Ok(None),
            window => (window, 0),
        },
        Windows::AllBut(every) => (keys.count(WINDOW)?, every),
    };
    let rope_base = match architecture.local_rope_base {
        None => None,
        Some(base) => Some(keys.find_f32("rope.freq_base_swa")?.unwrap_or(base as f32)),
    };
    if let Some(base) = rope_base.filter(|base| !(base.is_finite() && *base > 0.0)) {
        let key = keys.name("rope.freq_base_swa");
        return Err(unsupported(key, base, "a positive number"));
    }
    Ok(Some(Windowed {
        window,
        every,
        rope_base,
    }))
}

/// A factor without a type is linear scaling, as it was before there were types.
fn position_divisor(keys: &Keys<'_>) -> Result<f32, Error> {
    const FACTOR: &str = "rope.scaling.factor";
    let factor = match keys.find_f32(FACTOR)? {
        Some(factor) => Some(factor),
        None => keys.find_f32("rope.scale_linear")?,
    };
    let kind = keys.find_string("rope.scaling.type")?;
    match kind.unwrap_or("linear") {
        "none" => match factor.filter(|factor| *factor != 1.0) {
            Some(factor) => {
                let expected = "1 or absent without scaling";
                Err(unsupported(keys.name(FACTOR), factor, expected))
            }
            None => Ok(1.0),
        },
        "linear" if kind.is_some() => factor.map_or_else(|| keys.f32(FACTOR), Ok),
        "linear" => Ok(factor.unwrap_or(1.0)),
        other => {
            let key = keys.name("rope.scaling.type");
            Err(unsupported(key, other, "none or linear"))
        }
    }
}

/// Rows of the embedding: a token each, no fewer and no more. A tokenizer of another size is another
/// model's: its numbers would be read as other words.
fn vocabulary(file: &gguf::File, keys: &Keys<'_>) -> Result<usize, Error> {
    const EMBEDDING: &str = "token_embd.weight";
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let rows = file.tensor(EMBEDDING)?.rows();
    let tokens = file.find_strings(TOKENS)?.map(<[_]>::len);
    let stated = keys.name("vocab_size");
    let size = file.find_u32(&stated)?.map(|n| n as usize);
    for (n, of) in [(tokens, TOKENS), (size, &stated)] {
        if let Some(n) = n.filter(|n| *n != rows) {
            let expected = format!("{n}, as many as `{of}`");
            return Err(unsupported(format!("rows of {EMBEDDING}"), rows, expected));
        }
    }
    Ok(rows)
}

pub(crate) fn unsupported(
    what: impl Into<String>,
    found: impl ToString,
    expected: impl Into<String>,
) -> Error {
    Error::Unsupported {
        what: what.into(),
        found: found.to_string(),
        expected: expected.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::Value::{F32, String as Text, U32};

    /// Which models scale by another width is said by no key, only by how many layers they have.
    #[test]
    fn the_largest_gemmas_scale_scores_by_the_width_of_the_model() {
        let scale = |name: &str, layers| {
            let mut writer = testkit::Writer::new();
            writer.key("general.architecture", Text(name.into()));
            let mut key = |key: &str, value| writer.key(&format!("{name}.{key}"), value);
            key("block_count", U32(layers));
            for (name, n) in [
                ("embedding_length", 96),
                ("attention.head_count", 2),
                ("attention.key_length", 16),
                ("attention.sliding_window", 8),
                ("feed_forward_length", 32),
                ("context_length", 64),
            ] {
                key(name, U32(n));
            }
            key("attention.layer_norm_rms_epsilon", F32(1e-6));
            if name == "gemma2" {
                key("attn_logit_softcapping", F32(50.0));
                key("final_logit_softcapping", F32(30.0));
            }
            writer.tensor("token_embd.weight", &[96, 2], gguf::DType::F32, &[0.0; 192]);
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("scaled.gguf");
            writer.write(&path).unwrap();
            let config = Config::read(&gguf::File::open(&path).unwrap()).unwrap();
            1.0 / config.score_scale.powi(2)
        };
        for (name, largest, others) in [("gemma2", 46, 42), ("gemma3", 62, 48)] {
            assert!((scale(name, largest) - 48.0).abs() < 1e-3, "{name}");
            assert!((scale(name, others) - 16.0).abs() < 1e-3, "{name}");
        }
    }

    #[test]
    fn an_embedding_has_a_row_for_each_token_of_the_tokenizer() {
        let read = |tokens: usize| {
            let mut writer = testkit::Writer::new();
            writer.key("general.architecture", Text("llama".into()));
            for (key, n) in [
                ("block_count", 1),
                ("embedding_length", 32),
                ("attention.head_count", 2),
                ("feed_forward_length", 32),
                ("context_length", 64),
            ] {
                writer.key(&format!("llama.{key}"), U32(n));
            }
            writer.key("llama.attention.layer_norm_rms_epsilon", F32(1e-6));
            let texts = (0..tokens).map(|id| id.to_string()).collect();
            let texts = gguf::Value::Array(gguf::Array::String(texts));
            writer.key("tokenizer.ggml.tokens", texts);
            writer.tensor("token_embd.weight", &[32, 3], gguf::DType::F32, &[0.0; 96]);
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("rows.gguf");
            writer.write(&path).unwrap();
            let config = Config::read(&gguf::File::open(&path).unwrap());
            config.map(|it| it.vocab).map_err(|error| error.to_string())
        };
        assert_eq!(read(3), Ok(3));
        for tokens in [2, 4] {
            let error = read(tokens).unwrap_err();
            let said = format!("expected {tokens}, as many as `tokenizer.ggml.tokens`");
            assert!(error.contains("rows of token_embd.weight"), "{error}");
            assert!(error.contains('3') && error.contains(&said), "{error}");
        }
    }
}
