use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Who asks. One API key names one tenant, and one tenant is one isolation domain (H-13): cached
/// pages are shared inside it, or inside the parts that it asks for, and never across. It comes from the key file alone; nothing that a
/// client sends can choose it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// The tenant of a gateway that was started without API keys.
    pub const ANONYMOUS: &'static str = "anonymous";

    /// A tenant of this name. The caller has checked the name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The only tenant of a gateway without API keys.
    pub fn anonymous() -> Self {
        Self::new(Self::ANONYMOUS)
    }

    /// The name, as in the key file.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One request, ready to compute: tokenized, validated, and inside the limit that
/// [`super::EngineFacts`] showed a moment ago.
#[derive(Clone, Debug)]
pub struct Job {
    /// The gateway's own id of the HTTP request; for logs only.
    pub label: String,
    /// Whose request it is.
    pub tenant: TenantId,
    /// The part of the tenant's isolation domain that it asked for; none: the whole. It can make the
    /// domain narrower only: it means nothing outside this tenant.
    pub cache_salt: Option<String>,
    /// Which of the served models.
    pub model: String,
    /// Token ids of the prompt; not empty, each below the vocabulary's size.
    pub prompt: Vec<u32>,
    /// Largest number of tokens to sample for each choice; at least 1. `prompt.len() + max_new` is
    /// at most `max_model_len`.
    pub max_new: u32,
    /// How many independent answers to sample; at least 1.
    pub choices: u16,
    /// How to sample.
    pub sampling: Sampling,
    /// Go on after a stop token of the model, up to `max_new`.
    pub ignore_eos: bool,
    /// Tokens that end an answer as well; sorted, none twice, each below the vocabulary's size.
    pub stop_tokens: Vec<u32>,
    /// Tokens of an answer before which no stop token is sampled; at most `max_new`.
    pub min_new: u32,
    /// When the client's patience ends; the engine fails the request by then (H-15).
    pub deadline: Instant,
}

/// How to choose the next token. Every value is in range when it arrives here.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sampling {
    /// 0 is greedy; at most 2.
    pub temperature: f32,
    /// Nucleus, in (0, 1]; 1 is off.
    pub top_p: f32,
    /// Keep the k most likely; 0 is off.
    pub top_k: u32,
    /// Drop what is less likely than this share of the most likely, in [0, 1]; 0 is off.
    pub min_p: f32,
    /// Seed of the request; choice i derives its own from it. Minted by the gateway where the
    /// client gave none, so that every attempt of a request samples alike.
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
