//! How much a run may ask of a server.

use crate::finding::Kind;
use std::time::Duration;

/// Limits of a run. When one is reached, what is left is not done, and the report says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Requests.
    pub requests: u64,
    /// Prompt and completion tokens together, as answers count them.
    pub tokens: u64,
    /// All of it.
    pub time: Duration,
    /// Requests a second, at most; 0 is no limit.
    pub rate: f64,
    /// Requests at the same time.
    pub at_once: usize,
    /// One request; longer is a hang.
    pub request_time: Duration,
    /// The first finding that is at least as bad ends it.
    pub until: Option<Kind>,
}

impl Default for Budget {
    /// 500 requests, 2 million tokens, 10 minutes, 5 a second, 8 at once, 120 s for each.
    fn default() -> Self {
        Self {
            requests: 500,
            tokens: 2_000_000,
            time: Duration::from_secs(600),
            rate: 5.0,
            at_once: 8,
            request_time: Duration::from_secs(120),
            until: None,
        }
    }
}
