use crate::times::Ms;

/// One request that an engine took on: who asked, how much, and which lives answered. No text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The gateway's own id.
    pub request: String,
    /// When it ended.
    pub at: Ms,
    /// Whose it was.
    pub tenant: String,
    /// Length of its prompt.
    pub prompt_tokens: u64,
    /// The engines, by name and life; the same twice where one does both.
    pub prefill: (String, String),
    /// The one that answered.
    pub decode: (String, String),
    /// `ok`, or how it ended otherwise; with [`AFTER_TEXT`] if a part of the answer may have gone out before.
    pub outcome: String,
}

/// How an outcome ends that came after a part of the answer.
pub const AFTER_TEXT: &str = "_after_text";

/// Canaries of one minute at one pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Canaried {
    /// Minutes since 1970.
    pub minute: u64,
    /// The engines, as they are named; empty where they are not known.
    pub pair: String,
    /// Their lives.
    pub life: String,
    /// Requests.
    pub sent: u64,
    /// Those that had an answer which could have shown a canary.
    pub telling: u64,
    /// Those that showed their own.
    pub seen: u64,
    /// Those that showed another's.
    pub foreign: u64,
    /// Tokens of prompts and answers.
    pub tokens: u64,
}
