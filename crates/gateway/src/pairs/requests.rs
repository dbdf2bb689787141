//! Requests without an outcome, as seen from their readers.

use std::time::Instant;

use handoff::gateway::{Item, Outcome};
use handoff::{Limit, RequestId, Spec};
use pages::Domain;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, OwnedPermit};
use wire::{Ask, TokenOut};

use crate::engine::{Code, Event, Fault, Job, NotTaken, Provenance};
use crate::spans::Steps;
use crate::verdict;

/// A job on its way to the machine.
pub(super) struct Submission {
    pub(super) request: RequestId,
    pub(super) job: Job,
    /// The job's sampling as bytes.
    pub(super) sampling: Vec<u8>,
    pub(super) events: mpsc::Sender<Event>,
    /// Room for the last event.
    pub(super) last: OwnedPermit<Event>,
    /// Its place among the unjudged.
    pub(super) _room: OwnedSemaphorePermit,
}

impl Submission {
    /// What the machine is told, and what is kept here.
    pub(super) fn split(self, domain: Domain, cache: bool) -> (Spec, u64, Open) {
        let Self {
            job,
            sampling,
            events,
            last,
            ..
        } = self;
        let left = job.deadline.saturating_duration_since(Instant::now());
        let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let spec = Spec {
            choices: job.choices,
            cache,
            sampling,
            ..Spec::new(domain, job.prompt, job.max_new)
        };
        let open = Open {
            since: Instant::now(),
            label: job.label,
            steps: job.trace.map(Steps::new),
            events,
            last,
            committed: false,
            fell_behind: false,
        };
        (spec, deadline_ms, open)
    }

    /// The engine ends before the machine has judged it.
    pub(super) fn end(self) {
        self.last.send(Event::Failed(Fault::ended()));
    }
}

/// The bytes of `Spec::sampling`: what workers of this product are told about a job's sampling.
///
/// # Errors
/// A value that no worker would sample with; the HTTP half has checked them before.
pub fn sampling_bytes(job: &Job) -> Result<Vec<u8>, Fault> {
    let ask = Ask {
        sampling: job.sampling.clone(),
        ignore_eos: job.ignore_eos,
        stop_tokens: job.stop_tokens.clone(),
        min_tokens: job.min_new,
        form: job.form.clone(),
    };
    let checked = ask.check();
    checked.map_err(|error| Fault::new(Code::InvalidRequest, error.to_string()).on(error.field))?;
    Ok(ask.encode())
}

/// A request that a reader waits for.
pub(super) struct Open {
    /// When it came.
    pub(super) since: Instant,
    pub(super) label: String,
    /// What a collector hears of it.
    pub(super) steps: Option<Steps>,
    events: mpsc::Sender<Event>,
    last: OwnedPermit<Event>,
    committed: bool,
    fell_behind: bool,
}

impl Open {
    /// Hands an item on. `token` is its payload, read.
    pub(super) fn deliver(&mut self, item: Item) -> Result<(), NotTaken> {
        match item {
            Item::Begin {
                cached_tokens,
                prefill,
                decode,
            } => {
                self.committed = true;
                let text = |epoch: Option<pages::Epoch>| {
                    epoch.map_or(String::new(), |epoch| epoch.to_string())
                };
                let (prefill_epoch, decode_epoch) = (text(prefill), text(decode));
                if let Some(steps) = &mut self.steps {
                    steps.committed(&prefill_epoch, &decode_epoch);
                }
                self.say(Event::Committed(Provenance {
                    cached_tokens,
                    prefill_epoch,
                    decode_epoch,
                    ..Provenance::default()
                }))
            }
            Item::Tokens {
                choice,
                payload,
                finish,
                ..
            } => {
                let token = TokenOut::decode(&payload).expect("read before the machine saw it");
                let tokens = vec![token];
                self.say(Event::Tokens { choice, tokens })?;
                match finish {
                    None => Ok(()),
                    Some(reason) => self.say(Event::Finished { choice, reason }),
                }
            }
        }
    }

    /// Says the last word. A retry may have begun an answer anew, so what counts is the last
    /// `Committed`.
    pub(super) fn finish(mut self, outcome: &Outcome, how: Option<&Limit>) {
        if let Some(steps) = &mut self.steps {
            steps.end(!matches!(outcome, Outcome::Answered | Outcome::ClientLeft));
        }
        let last = match verdict::of_outcome(outcome, self.committed, how) {
            Ok(()) => Event::Done,
            Err(fault) => Event::Failed(fault),
        };
        self.last.send(last);
    }

    /// The engine ends.
    pub(super) fn end(self) {
        self.last.send(Event::Failed(Fault::ended()));
    }

    fn say(&mut self, event: Event) -> Result<(), NotTaken> {
        if self.fell_behind {
            return Ok(()); // already cancelled; the machine hears of it next
        }
        let taken = self.events.try_send(event).map_err(NotTaken::from);
        self.fell_behind = taken == Err(NotTaken::Behind);
        taken
    }
}
