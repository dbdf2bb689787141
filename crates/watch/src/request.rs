//! What one line of an access log says about one request, in one form for every source.

use serde::{Deserialize, Serialize};

/// One request that asked for a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// When it ended (or began: one log is consistent), in seconds since 1970.
    pub time: f64,
    /// The log's name for it; empty where it has none.
    pub id: String,
    /// Who asked; empty where the log does not say.
    pub tenant: String,
    /// Which model; empty where the log does not say.
    pub model: String,
    /// Who computed the prompt (a prefill worker); empty where the log does not say.
    pub worker: String,
    /// HTTP status; 0 where none was sent.
    pub status: u16,
    /// Tokens of the prompt, as the answer counts them.
    pub prompt_tokens: u64,
    /// Of these, how many came from a prefix cache; `None` where the log does not say, which is
    /// not the same as 0.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: Option<u64>,
    /// Seconds of prefill where the log has them, else seconds to the first token.
    pub seconds: Option<f64>,
    /// Tokens of the prompt as the sender (gateway, tokenizer at the edge) counted them.
    pub sent_tokens: Option<u64>,
    /// Tokens of the prompt as prefill counted them.
    pub prefill_tokens: Option<u64>,
    /// Tokens of the prompt as decode counted them.
    pub decode_tokens: Option<u64>,
    /// Mean tokens that speculative decoding had accepted a step.
    pub accept_length: Option<f64>,
    /// Share of drafted tokens that speculative decoding accepted, 0 to 1.
    pub accept_rate: Option<f64>,
    /// Of a pair's log: which request of which side.
    #[serde(default)]
    pub leg: Option<OfPair>,
}

/// A line that prefill or decode wrote about a request that both had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfPair {
    /// What both sides call it.
    pub pair: String,
    /// Whether prefill wrote it.
    pub is_prefill: bool,
}

impl Request {
    /// Tokens that prefill had to compute, as far as the log tells: at least one.
    pub fn uncached(&self) -> u64 {
        let cached = self.cached_tokens.unwrap_or(0);
        self.prompt_tokens.saturating_sub(cached).max(1)
    }

    /// Whether its time says something about a prefill: it was answered, and somebody took the
    /// time.
    pub fn is_measured(&self) -> bool {
        self.status == 200 && self.seconds.is_some() && self.prompt_tokens > 0
    }
}
