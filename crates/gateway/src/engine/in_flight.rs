//! What is under way, for a person who looks now and then: nobody pays for it while nobody looks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use handoff::{RequestId, UnderWay};

/// Attempts that are listed; a machine's limit of requests is not far from it.
pub(crate) const LISTED_MAX: usize = 1000;

/// One attempt that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The gateway's own id of the request.
    pub request: String,
    /// How far it is, in a word.
    pub stage: &'static str,
    /// Who computes the prompt, as the facts name it; empty where decode does both.
    pub prefill: String,
    /// Who computes the answer.
    pub decode: String,
    /// When its request came; none if that one has ended already.
    pub since: Option<Instant>,
}

impl InFlight {
    /// What a machine has under way, by the names of whom it is with.
    pub(crate) fn of<At: Copy>(
        it: &UnderWay<At>,
        name: impl Fn(At) -> String,
        since: impl Fn(RequestId) -> Option<Instant>,
    ) -> Self {
        Self {
            request: it.request.to_string(),
            stage: it.progress.as_str(),
            prefill: it.prefill.map_or(String::new(), &name),
            decode: name(it.decode),
            since: since(it.request),
        }
    }
}

/// The list as it was when its owner was asked last.
#[derive(Default)]
pub(crate) struct Lookout {
    seen: Mutex<Arc<[InFlight]>>,
    asked: AtomicBool,
}

impl Lookout {
    /// The list; `ask` is to bring a newer one here for the next look.
    pub(crate) fn look(&self, ask: impl FnOnce()) -> Arc<[InFlight]> {
        if !self.asked.swap(true, Ordering::Relaxed) {
            ask();
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    /// This is what is under way now.
    pub(crate) fn show(&self, now: impl Iterator<Item = InFlight>) {
        let now: Arc<[InFlight]> = now.take(LISTED_MAX).collect();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        self.asked.store(false, Ordering::Relaxed);
    }
}
