//! The seam between HTTP and whatever computes answers.
//!
//! The HTTP half hands over a [`Job`] whose prompt is already token ids and whose length was
//! already judged; the engine hands back a stream of [`Event`]s in this order, and in no other:
//!
//! ```text
//! Committed+ (Tokens | Said | Finished{choice})* Done      every choice is Finished exactly once
//! any prefix of the above, then Failed              nothing follows
//! ```
//!
//! * `Committed` comes when decode has verified and sealed the prompt. It may come again (a retry
//!   under new ids) as long as no `Tokens` was sent; the last one counts. The HTTP half sends no
//!   byte of a 200 before it saw `Committed` **and** the first token (handoff.md, H-6).
//! * A choice that ends at a stop token delivers that token as the last of its `Tokens`: it was
//!   sampled, so it is counted. Its text is never shown.
//! * The HTTP half always reads events at once and never waits for its client while doing so, so a
//!   full channel means a broken gateway, not a slow client.
//! * A channel that closes without `Done` or `Failed` is answered as an internal fault.

mod facts;
mod fault;
mod in_flight;
mod job;

pub(crate) use facts::counters;
pub use facts::{
    Count, EngineFacts, LengthLimit, ModelFacts, PageCounts, Quarantine, Readiness, TextPath,
    WorkerFacts, WorkerRole,
};
pub use fault::{Code, Fault};
pub use handoff::Finish;
pub use in_flight::InFlight;
pub(crate) use in_flight::Lookout;
pub use job::{Carried, Job, TenantId};
pub use wire::{Sampling, TokenOut};

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc::{self, error::TrySendError};

/// What the HTTP half needs of the machine behind it.
pub trait Engine: Send + Sync + 'static {
    /// A snapshot of what is served and how it is doing. Called for every request: must be cheap
    /// (hand out a shared snapshot, do not ask workers).
    fn facts(&self) -> Arc<EngineFacts>;

    /// Takes a job or refuses it at once; never blocks. A refusal has held nothing and touched no
    /// worker. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// A [`Fault`] whose code says why (queue full, no worker, draining, over a limit).
    fn submit(&self, job: Job) -> Result<Answer, Fault>;

    /// What is under way, as it was when this was asked last; oldest first, and not all of very many.
    /// Must be cheap: a page asks every second.
    fn in_flight(&self) -> Arc<[InFlight]> {
        Arc::default()
    }

    /// The tokens that the engine makes of a conversation, where it will write the prompt itself; none
    /// if it takes ours.
    ///
    /// # Errors
    /// It refuses the conversation, or does not say.
    fn tokens_of<'a>(&'a self, carried: &'a Carried) -> Told<'a> {
        let _ = carried;
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// What an engine says when it is asked for the tokens of a conversation.
pub type Told<'a> = Pin<Box<dyn Future<Output = Result<Option<Vec<u32>>, Fault>> + Send + 'a>>;

/// A running request. Dropping it cancels the request: the engine sees its sender closed and the
/// [`Steering`] dropped, whichever it prefers to watch.
pub struct Answer {
    /// The engine's own id of the request, for logs.
    pub request: String,
    /// What happens, in the order given at the top of this module. Bounded by the engine.
    pub events: mpsc::Receiver<Event>,
    /// The way back.
    pub steering: Box<dyn Steering>,
}

/// The way back from the reader of an [`Answer`] to its engine.
pub trait Steering: Send + Sync {
    /// No more tokens of this choice are wanted (its text ran into a stop string). Called at most
    /// once for a choice, never blocks. Events of that choice already under way are ignored.
    fn stop_choice(&self, choice: u16);
}

/// One thing that happened to a running request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Decode verified the prompt: an answer may begin.
    Committed(Provenance),
    /// Some choice grew.
    Tokens {
        /// Index of the choice, from 0.
        choice: u16,
        /// The new tokens in order; not empty.
        tokens: Vec<TokenOut>,
    },
    /// Some choice of a job that is [`Carried`] grew, in the engine's own words.
    Said {
        /// Index of the choice, from 0.
        choice: u16,
        /// What OpenAI calls a choice, without its index, of which only fields that a client may see
        /// are left; several in their order.
        said: Vec<serde_json::Value>,
        /// Tokens sampled for it so far, as far as the engine has said.
        sampled: Option<u32>,
    },
    /// Some choice ended.
    Finished {
        /// Index of the choice, from 0.
        choice: u16,
        /// Why.
        reason: Finish,
    },
    /// Every choice is finished and the request ended well.
    Done,
    /// The request ended badly; nothing follows.
    Failed(Fault),
}

/// Why a reader did not take an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// It has no room: it reads too slowly.
    Behind,
    /// It has left.
    Gone,
}

impl From<TrySendError<Event>> for NotTaken {
    fn from(error: TrySendError<Event>) -> Self {
        match error {
            TrySendError::Full(_) => Self::Behind,
            TrySendError::Closed(_) => Self::Gone,
        }
    }
}

/// Who computed an answer; for usage figures and the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Prompt tokens that were not computed again because a prefix was cached.
    pub cached_tokens: u32,
    /// Names of the workers; empty where there is none, or it is not told.
    pub prefill: String,
    /// The one that generates.
    pub decode: String,
    /// Epoch of the prefill worker, as text; empty where there is none.
    pub prefill_epoch: String,
    /// Epoch of the decode worker, as text.
    pub decode_epoch: String,
}
