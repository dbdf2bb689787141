//! The steps of one attempt, as an engine's driver sees them go by.

use std::time::SystemTime;

use super::{SpanKind, Traced, What};

/// When what began. Says what was when it ends, however that is.
pub struct Steps {
    request: Traced,
    attempt: String,
    announced: Option<SystemTime>,
    sent: Option<SystemTime>,
    committed: Option<SystemTime>,
    lives: (String, String),
}

impl Steps {
    /// Of a request that has no attempt yet.
    pub fn new(request: Traced) -> Self {
        Self {
            request,
            attempt: String::new(),
            announced: None,
            sent: None,
            committed: None,
            lives: Default::default(),
        }
    }

    /// A new attempt: decode is told of it. What there was of another has failed.
    pub fn announced(&mut self, attempt: String) {
        self.end(true);
        self.attempt = attempt;
        self.announced = Some(SystemTime::now());
    }

    /// Prefill has got it.
    pub fn sent(&mut self) {
        self.sent = Some(SystemTime::now());
    }

    /// All of the prompt is at decode: an answer may begin.
    pub fn committed(&mut self, prefill: &str, decode: &str) {
        self.lives = (prefill.to_owned(), decode.to_owned());
        self.committed = Some(SystemTime::now());
    }

    /// It is over.
    pub fn end(&mut self, failed: bool) {
        let now = SystemTime::now();
        let committed = self.committed.take();
        let so_far = committed.unwrap_or(now);
        let say = |name, start: Option<SystemTime>, end, life: &str, failed| {
            let Some(start) = start else { return };
            let what = What {
                failed,
                ..What::default()
            };
            let what = what
                .word("cofferdam.attempt", &*self.attempt)
                .word("cofferdam.worker.epoch", life);
            self.request
                .below()
                .was(name, SpanKind::Internal, (start, end), what);
        };
        let (prefill, decode) = &self.lives;
        let before = failed && committed.is_none();
        say("handoff", self.announced, so_far, decode, before);
        say("prefill", self.sent, so_far, prefill, before);
        say("decode", committed, now, decode, failed);
        (self.announced, self.sent, self.lives) = Default::default();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.end(true);
    }
}
