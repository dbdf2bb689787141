//! Hyperparameters, read from the GGUF's metadata.

use crate::Error;

/// The shape of a Llama-architecture model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
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
    /// Values in a head; a multiple of 16.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub rms_epsilon: f32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Dimensions of a head that are rotated, in neighbouring pairs.
    pub rope_dims: usize,
    /// Every position is divided by this (linear scaling); 1 without scaling.
    pub rope_position_divisor: f32,
}

/// Largest accepted value of any count: far above real models, far below overflow.
const COUNT_MAX: usize = 1 << 24;

/// What this crate computes, as `general.architecture` names it.
pub const ARCHITECTURES: [&str; 1] = ["llama"];

/// Whether it is a model that this crate computes, as far as its name says.
///
/// # Errors
/// It is another one; the text says what would be computed.
pub fn check_architecture(metadata: &gguf::Metadata) -> Result<(), Error> {
    let is = metadata.string("general.architecture")?;
    match ARCHITECTURES.contains(&is) {
        true => Ok(()),
        false => Err(unsupported(
            "general.architecture",
            is,
            "llama, as Llama 3 and SmolLM2 are: docs/models.md says what loads",
        )),
    }
}

impl Config {
    /// Reads and checks the metadata and the vocabulary's size.
    pub(crate) fn read(file: &gguf::File) -> Result<Config, Error> {
        check_architecture(file)?;
        refuse_what_is_not_computed(file)?;
        let hidden = count(file, "llama.embedding_length")?;
        let heads = count(file, "llama.attention.head_count")?;
        let head_dim = match file.find_u32("llama.attention.key_length")? {
            Some(n) => n as usize,
            None => hidden / heads,
        };
        let optional = |key, default: usize| -> Result<usize, Error> {
            Ok(file.find_u32(key)?.map_or(default, |n| n as usize))
        };
        let config = Config {
            layers: count(file, "llama.block_count")?,
            hidden,
            feed_forward: count(file, "llama.feed_forward_length")?,
            heads,
            kv_heads: optional("llama.attention.head_count_kv", heads)?,
            head_dim,
            vocab: file.tensor("token_embd.weight")?.rows(),
            context: count(file, "llama.context_length")?,
            rms_epsilon: file.f32("llama.attention.layer_norm_rms_epsilon")?,
            rope_base: file.find_f32("llama.rope.freq_base")?.unwrap_or(10_000.0),
            rope_dims: optional("llama.rope.dimension_count", head_dim)?,
            rope_position_divisor: position_divisor(file)?,
        };
        let value_dim = optional("llama.attention.value_length", head_dim)?;
        config.check(value_dim)?;
        Ok(config)
    }

    fn check(&self, value_dim: usize) -> Result<(), Error> {
        let kv = self.kv_heads;
        if kv == 0 || !self.heads.is_multiple_of(kv) {
            return Err(unsupported(
                "llama.attention.head_count_kv",
                kv,
                "a divisor of the heads",
            ));
        }
        let dim = self.head_dim;
        if dim == 0 || dim > 512 || !dim.is_multiple_of(16) {
            return Err(unsupported(
                "llama.attention.key_length",
                dim,
                "a multiple of 16 to 512",
            ));
        }
        if value_dim != dim {
            return Err(unsupported(
                "llama.attention.value_length",
                value_dim,
                "the key length",
            ));
        }
        let rope = self.rope_dims;
        if rope == 0 || rope > dim || !rope.is_multiple_of(2) {
            return Err(unsupported(
                "llama.rope.dimension_count",
                rope,
                "even, up to a head",
            ));
        }
        for (key, value) in [
            ("llama.attention.layer_norm_rms_epsilon", self.rms_epsilon),
            ("llama.rope.freq_base", self.rope_base),
            ("llama.rope.scaling.factor", self.rope_position_divisor),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(unsupported(key, value, "a positive number"));
            }
        }
        Ok(())
    }

    /// Width of all query heads together.
    pub(crate) fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together (and of all value heads).
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// Keys of the same family that change what is computed, or are of a type that they cannot have: a
/// model that answers almost as it should is worse than one that is refused.
fn refuse_what_is_not_computed(file: &gguf::File) -> Result<(), Error> {
    const COUNTS: [&str; 2] = ["llama.expert_count", "llama.attention.sliding_window"];
    const NUMBERS: [&str; 8] = [
        "llama.attention.scale",
        "llama.attention.clamp_kqv",
        "llama.attention.max_alibi_bias",
        "llama.attn_logit_softcapping",
        "llama.final_logit_softcapping",
        "llama.embedding_scale",
        "llama.residual_scale",
        "llama.logit_scale",
    ];
    for key in COUNTS {
        if let Some(n) = file.find_u32(key)?.filter(|n| *n != 0) {
            return Err(unsupported(key, n, "0 or absent"));
        }
    }
    for key in NUMBERS {
        if let Some(x) = file.find_f32(key)?.filter(|x| *x != 0.0) {
            return Err(unsupported(key, x, "0 or absent"));
        }
    }
    for (key, wanted, expected) in [
        ("llama.attention.causal", true, "true or absent"),
        ("llama.use_parallel_residual", false, "false or absent"),
    ] {
        if let Some(is) = file.find_bool(key)?.filter(|is| *is != wanted) {
            return Err(unsupported(key, is, expected));
        }
    }
    // Said for people, and read by nobody; of another type the file is not what it seems.
    file.find_u32("llama.rope.scaling.original_context_length")?;
    file.find_bool("llama.rope.scaling.finetuned")?;
    Ok(())
}

/// A factor without a type is linear scaling, as it was before there were types.
fn position_divisor(file: &gguf::File) -> Result<f32, Error> {
    const FACTOR: &str = "llama.rope.scaling.factor";
    let factor = match file.find_f32(FACTOR)? {
        Some(factor) => Some(factor),
        None => file.find_f32("llama.rope.scale_linear")?,
    };
    let kind = file.find_string("llama.rope.scaling.type")?;
    match kind.unwrap_or("linear") {
        "none" => match factor.filter(|factor| *factor != 1.0) {
            Some(factor) => Err(unsupported(FACTOR, factor, "1 or absent without scaling")),
            None => Ok(1.0),
        },
        "linear" if kind.is_some() => Ok(factor.map_or_else(|| file.f32(FACTOR), Ok)?),
        "linear" => Ok(factor.unwrap_or(1.0)),
        other => Err(unsupported(
            "llama.rope.scaling.type",
            other,
            "none or linear",
        )),
    }
}

fn count(file: &gguf::File, key: &str) -> Result<usize, Error> {
    let n = file.u32(key)? as usize;
    if n == 0 || n > COUNT_MAX {
        return Err(unsupported(key, n, "a count from 1 to 16777216"));
    }
    Ok(n)
}

pub(crate) fn unsupported(
    what: impl Into<String>,
    found: impl ToString,
    expected: &'static str,
) -> Error {
    Error::Unsupported {
        what: what.into(),
        found: found.to_string(),
        expected,
    }
}
