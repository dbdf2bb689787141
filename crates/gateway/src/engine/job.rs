use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use wire::Sampling;

use crate::spans::Traced;

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
    /// What the client calls the conversation that this belongs to: a hint where its beginning may be
    /// cached, within its own isolation domain.
    pub session: Option<String>,
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
    /// What each answer is held to; compiled once already.
    pub form: Option<wire::Form>,
    /// When the client's patience ends; the engine fails the request by then (H-15).
    pub deadline: Instant,
    /// Whether an operator asks, for whom engines under suspicion are there too.
    pub operator: bool,
    /// Names of engines, of which all that it goes to must be; none: any.
    pub only: Vec<String>,
    /// What only the engine itself can carry out; none: its tokens are all that is wanted.
    pub carried: Option<Arc<Carried>>,
    /// The span of the request, if a collector wants them.
    pub trace: Option<Traced>,
}

/// What tokens cannot carry (tools, a form that answers are held to, log-probabilities): fields that
/// the engine reads itself, and whose answer it writes itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Carried {
    /// Whether it is a conversation; a bare prompt otherwise.
    pub chat: bool,
    /// Whether its answer is wanted as it is written.
    pub stream: bool,
    /// The fields, each read and let through by name.
    pub fields: Map<String, Value>,
}
