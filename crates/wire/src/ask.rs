//! How a request is to be sampled and when it ends.

use crate::Malformed;
use crate::codec::{decode, encode};
use serde::{Deserialize, Serialize};

/// Tokens with a bias of their own, at most.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Tokens that end a choice besides the model's own, at most.
pub const STOP_TOKENS_MAX: usize = 128;
/// Alternatives that are delivered with a token, at most.
pub const TOP_MAX: u8 = 20;
/// Bytes of the form that an answer is held to, at most.
pub const FORM_BYTES_MAX: usize = 64 << 10;

/// The opaque bytes of `Spec::sampling`. Stop strings are not in it: the gateway, which has the text,
/// finds them and stops the choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// How to choose the next token.
    pub sampling: Sampling,
    /// Go on after a stop token of the model, up to the maximum.
    pub ignore_eos: bool,
    /// Tokens that end a choice as well; sorted, none twice.
    pub stop_tokens: Vec<u32>,
    /// Tokens of a choice before which no stop token is sampled.
    pub min_tokens: u32,
    /// What the whole of a choice's text must be; none: anything. Its end is allowed exactly where the
    /// form is complete.
    pub form: Option<Form>,
}

/// A form that an answer is held to, as text. What the text says is checked where it is compiled (crate
/// `grammar`), by the gateway and again by each worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    /// A JSON schema.
    Json(String),
    /// A regular expression, for the whole of it.
    Regex(String),
    /// A grammar in `llguidance`'s Lark.
    Lark(String),
}

impl Form {
    /// Its text, whichever it is.
    pub fn text(&self) -> &str {
        match self {
            Form::Json(text) | Form::Regex(text) | Form::Lark(text) => text,
        }
    }
}

/// How to choose the next token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy; at most 2.
    pub temperature: f32,
    /// Nucleus, in (0, 1]; 1 is off.
    pub top_p: f32,
    /// Keep the k most likely; 0 is off.
    pub top_k: u32,
    /// Drop what is less likely than this share of the most likely, in [0, 1]; 0 is off.
    pub min_p: f32,
    /// Seed of the request. What choice c samples at position p is a function of (seed, c, p) and
    /// the logits alone, so it does not matter which worker samples it.
    pub seed: u64,
    /// Subtracted once from the logit of every token sampled before, in [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted for every time a token was sampled before, in [-2, 2].
    pub frequency_penalty: f32,
    /// Divides (multiplies, if negative) the logits of tokens seen before, in (0, 2]; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens, each in [-100, 100]; sorted by token, no token twice.
    pub logit_bias: Vec<(u32, f32)>,
    /// `Some(k)`: deliver log-probabilities, and those of the `k` most likely tokens.
    pub logprobs: Option<u8>,
}

impl Default for Sampling {
    /// What OpenAI's API means by leaving everything out.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

/// A field whose value nobody can sample with.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{field} is {got}; expected {expected}")]
pub struct OutOfRange {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub got: String,
    /// What would be accepted.
    pub expected: &'static str,
}

impl Ask {
    /// The greedy request: the most likely token at every position.
    pub fn greedy() -> Self {
        let sampling = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        Self {
            sampling,
            ..Self::default()
        }
    }

    /// The bytes for `Spec::sampling`.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads them, and checks every range: what comes out can be sampled with.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let ask: Self = decode("request to sample", bytes)?;
        ask.check().map_err(|error| Malformed::Bytes {
            what: "request to sample",
            reason: error.to_string(),
        })?;
        Ok(ask)
    }

    /// Whether every value is in its range. The gateway asks before it encodes.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.sampling.check()?;
        let stops = &self.stop_tokens;
        limit(
            "stop_token_ids",
            stops.len(),
            STOP_TOKENS_MAX,
            "at most 128 tokens",
        )?;
        require(
            stops.is_sorted_by(|a, b| a < b),
            "stop_token_ids",
            "unsorted",
            "ascending tokens, none twice",
        )?;
        let bytes = self.form.as_ref().map_or(0, |form| form.text().len());
        limit(
            "response_format",
            bytes,
            FORM_BYTES_MAX,
            "at most 65,536 bytes",
        )
    }
}

impl Sampling {
    fn check(&self) -> Result<(), OutOfRange> {
        // Comparisons are written so that a NaN is in no range.
        let within = |field, value: f32, low: f32, high: f32, expected| {
            require(value >= low && value <= high, field, value, expected)
        };
        within("temperature", self.temperature, 0.0, 2.0, "0 to 2")?;
        let above_zero = f32::MIN_POSITIVE;
        within("top_p", self.top_p, above_zero, 1.0, "above 0, at most 1")?;
        within("min_p", self.min_p, 0.0, 1.0, "0 to 1")?;
        within(
            "presence_penalty",
            self.presence_penalty,
            -2.0,
            2.0,
            "-2 to 2",
        )?;
        within(
            "frequency_penalty",
            self.frequency_penalty,
            -2.0,
            2.0,
            "-2 to 2",
        )?;
        let repetition = self.repetition_penalty;
        within(
            "repetition_penalty",
            repetition,
            above_zero,
            2.0,
            "above 0, at most 2",
        )?;
        limit(
            "logit_bias",
            self.logit_bias.len(),
            LOGIT_BIAS_MAX,
            "at most 1,024 tokens",
        )?;
        for (_, bias) in &self.logit_bias {
            within("logit_bias", *bias, -100.0, 100.0, "-100 to 100")?;
        }
        let sorted = self.logit_bias.is_sorted_by(|a, b| a.0 < b.0);
        require(
            sorted,
            "logit_bias",
            "unsorted",
            "ascending tokens, none twice",
        )?;
        let top = self.logprobs.unwrap_or(0);
        require(top <= TOP_MAX, "logprobs", top, "at most 20")
    }
}

fn limit(
    field: &'static str,
    got: usize,
    most: usize,
    expected: &'static str,
) -> Result<(), OutOfRange> {
    require(got <= most, field, got, expected)
}

fn require(
    holds: bool,
    field: &'static str,
    got: impl ToString,
    expected: &'static str,
) -> Result<(), OutOfRange> {
    if holds {
        Ok(())
    } else {
        Err(OutOfRange {
            field,
            got: got.to_string(),
            expected,
        })
    }
}
