//! Who is told how each generation ended, beside the access log: identifiers and figures, no text.

use std::time::Duration;

use crate::engine::{Code, Provenance};

/// One that is told.
pub trait Observer: Send + Sync {
    /// A generation has ended. Called by whoever answers: must not wait for anything.
    fn ended(&self, ended: Ended<'_>);
}

/// How a generation ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The gateway's own id of the request.
    pub request: &'a str,
    /// Whose it was.
    pub tenant: &'a str,
    /// `ok`, `client_left`, …, or the fault's code.
    pub outcome: &'a str,
    /// The fault, if it was one.
    pub code: Option<Code>,
    /// Length of its prompt; 0 if it was never counted.
    pub prompt_tokens: u32,
    /// Tokens of its answer.
    pub completion_tokens: u32,
    /// Of the prompt's not computed again.
    pub cached_tokens: u32,
    /// Time to the first token; none where there was none, or several prompts.
    pub first_token: Option<Duration>,
    /// Who computed it, or may be to blame, as far as that is known.
    pub by: Option<&'a Provenance>,
}
