//! What a request may ask of sampling.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most entries of `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Most alternatives that are reported with a token.
pub const TOP_LOGPROBS_MAX: u32 = 20;

/// Sampling parameters of one request. The defaults are OpenAI's: plain sampling at temperature 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy (the likeliest token, the lowest id among equals). 0 to 2.
    pub temperature: f32,
    /// Keeps the likeliest tokens whose probabilities reach this sum. Above 0, to 1.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Drops tokens with less than this share of the likeliest one's probability. 0 to 1.
    pub min_p: f32,
    /// With choice and position, determines every draw. Minted by the gateway where the client
    /// gave none.
    pub seed: u64,
    /// Subtracted once from the logit of every token generated before. -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as it was generated before. -2 to 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output. Above 0,
    /// to 2; 1 does nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens. -100 to 100, at most [`LOGIT_BIAS_MAX`] entries.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Tokens that are not sampled at all; fewer than the vocabulary has.
    pub banned: Vec<u32>,
    /// How many alternatives to report with a token: 0 to [`TOP_LOGPROBS_MAX`].
    pub top_logprobs: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            banned: Vec::new(),
            top_logprobs: 0,
        }
    }
}

/// The client asked for a value outside a parameter's range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {expected}, got {got}")]
pub struct InvalidParameter {
    /// The parameter, as the client names it.
    pub field: &'static str,
    /// Its range.
    pub expected: String,
    /// What was asked for.
    pub got: String,
}

impl SamplingParams {
    /// Checks every range, for a vocabulary of `vocab` tokens. NaN is in no range.
    pub fn validate(&self, vocab: usize) -> Result<(), InvalidParameter> {
        between("temperature", self.temperature, 0.0, 2.0)?;
        above_zero("top_p", self.top_p, 1.0)?;
        between("min_p", self.min_p, 0.0, 1.0)?;
        between("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        above_zero("repetition_penalty", self.repetition_penalty, 2.0)?;
        if self.top_logprobs > TOP_LOGPROBS_MAX {
            let expected = format!("between 0 and {TOP_LOGPROBS_MAX}");
            return invalid("top_logprobs", expected, self.top_logprobs);
        }
        if self.logit_bias.len() > LOGIT_BIAS_MAX {
            let expected = format!("at most {LOGIT_BIAS_MAX} entries");
            return invalid("logit_bias", expected, self.logit_bias.len());
        }
        for (token, bias) in &self.logit_bias {
            if *token as usize >= vocab {
                return invalid("logit_bias", format!("of tokens below {vocab}"), token);
            }
            between("logit_bias", *bias, -100.0, 100.0)?;
        }
        if self.banned.len() >= vocab {
            return invalid("banned", format!("fewer than {vocab}"), self.banned.len());
        }
        Ok(())
    }
}

fn between(field: &'static str, value: f32, low: f32, high: f32) -> Result<(), InvalidParameter> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    invalid(field, format!("between {low} and {high}"), value)
}

fn above_zero(field: &'static str, value: f32, high: f32) -> Result<(), InvalidParameter> {
    if value > 0.0 && value <= high {
        return Ok(());
    }
    invalid(field, format!("above 0 and at most {high}"), value)
}

fn invalid(
    field: &'static str,
    expected: String,
    got: impl ToString,
) -> Result<(), InvalidParameter> {
    Err(InvalidParameter {
        field,
        expected,
        got: got.to_string(),
    })
}
