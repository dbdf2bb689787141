//! What convicts a request, and what else an operator is told.

use crate::bucket::Bucket;
use crate::floor::{Basis, Floor};
use serde_json::{Value, json};
use std::fmt;

/// Something about one request that cannot be right.
#[derive(Clone, Debug, PartialEq)]
pub enum Anomaly {
    /// It was answered sooner than its prompt can have been computed.
    TooFast {
        /// Tokens that prefill had to compute.
        tokens: u64,
        /// Seconds that it took.
        seconds: f64,
        /// The least that it takes.
        floor: Floor,
    },
    /// It was answered although its prompt is over the limit.
    OverLimit {
        /// Tokens of the prompt.
        tokens: u64,
        /// Most that are allowed.
        limit: u64,
    },
    /// Sender, prefill and decode do not agree on how long the prompt was.
    TokensDiffer {
        /// Who said what: `sent`, `prefill`, `decode`, `answer`.
        said: Vec<(&'static str, u64)>,
    },
    /// Speculative decoding accepted more, or less, than working caches allow.
    Acceptance {
        /// In words, with the figures.
        says: String,
    },
}

impl Anomaly {
    /// Names of all kinds, as they stand in metrics and events.
    pub const KINDS: [&str; 4] = ["too_fast", "over_limit", "tokens_differ", "acceptance"];

    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TooFast { .. } => Self::KINDS[0],
            Self::OverLimit { .. } => Self::KINDS[1],
            Self::TokensDiffer { .. } => Self::KINDS[2],
            Self::Acceptance { .. } => Self::KINDS[3],
        }
    }

    /// For an event.
    pub fn json(&self) -> Value {
        let mut value = match self {
            Self::TooFast {
                tokens,
                seconds,
                floor,
            } => json!({
                "uncached_tokens": tokens, "seconds": seconds, "floor_seconds": floor.seconds,
                "floor_from": basis(floor),
            }),
            Self::OverLimit { tokens, limit } => json!({"prompt_tokens": tokens, "limit": limit}),
            Self::TokensDiffer { said } => {
                let said = said.iter().map(|(who, n)| ((*who).to_owned(), json!(n)));
                json!({"said": Value::Object(said.collect())})
            }
            Self::Acceptance { .. } => json!({}),
        };
        value["signal"] = json!(self.kind());
        value["says"] = json!(self.to_string());
        value
    }
}

fn basis(floor: &Floor) -> String {
    match floor.basis {
        Basis::Own(n) => format!("{n} requests of this length"),
        Basis::Slope { from, to } => format!(
            "the slope between prompts of about {:.0} and {:.0} tokens",
            from.low(),
            to.low()
        ),
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFast {
                tokens,
                seconds,
                floor,
            } => write!(
                f,
                "{tokens} tokens to compute in {}; a prefill of that length takes at least {} ({})",
                duration(*seconds),
                duration(floor.seconds),
                basis(floor)
            ),
            Self::OverLimit { tokens, limit } => {
                write!(
                    f,
                    "answered a prompt of {tokens} tokens; the limit is {limit}"
                )
            }
            Self::TokensDiffer { said } => {
                let said: Vec<_> = said.iter().map(|(who, n)| format!("{who} {n}")).collect();
                write!(f, "length of the prompt: {}", said.join(", "))
            }
            Self::Acceptance { says } => f.write_str(says),
        }
    }
}

/// `850 ms`, `12.3 s`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

/// Something about a series, not about one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Its machine or software has changed: it learns anew, and cannot alarm until it has.
    Relearning {
        /// New times as a share of the old floor.
        share: f64,
    },
    /// Two machines, or two models, are in it: the faster one's times are taken for the floor.
    Mixture {
        /// The share of the old floor that the faster one takes.
        share: f64,
    },
    /// What is too fast took longer the longer it was: it was computed, by a machine, a model or under
    /// a load that is too rare to be learned. It convicts nobody while that is so.
    Growing,
    /// Prompts of one length slowly take another time than they did.
    Drift {
        /// The lengths.
        bucket: Bucket,
        /// New times as a share of the old.
        factor: f64,
    },
    /// There are more series than may be kept: this one is not judged.
    TooManySeries {
        /// How many are kept.
        kept: usize,
    },
}

impl Notice {
    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Relearning { .. } => "relearning",
            Self::Mixture { .. } => "mixture",
            Self::Growing => "growing",
            Self::Drift { .. } => "drift",
            Self::TooManySeries { .. } => "too_many_series",
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relearning { share } => write!(
                f,
                "long prompts take {share:.2} times their old floor, in proportion to their \
                 length: another machine or other software? Learning anew; no alarms about time \
                 until that is done"
            ),
            Self::Mixture { share } => write!(
                f,
                "two floors: among the others are requests that take down to {share:.2} times the \
                 floor, in proportion to their length: a faster replica or another model that the \
                 mapping does not tell apart (worker, model)? Earlier alarms about them were none; \
                 from here on only what is too fast for the faster ones is"
            ),
            Self::Growing => f.write_str(
                "what was too fast took longer the longer it was, which a skipped prefill does not: \
                 another machine, model or load that the mapping does not tell apart (worker, model)? \
                 Earlier alarms about these were none; such ones are suspected from here on",
            ),
            Self::Drift { bucket, factor } => write!(
                f,
                "prompts of {:.0} to {:.0} tokens take {factor:.2} times as long as before",
                bucket.low(),
                bucket.high()
            ),
            Self::TooManySeries { kept } => write!(
                f,
                "{kept} series are kept; this one is not judged (raise series_max)"
            ),
        }
    }
}
