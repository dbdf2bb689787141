//! Requests without an outcome, as seen from their readers.

use std::sync::Arc;
use std::time::Instant;

use handoff::door::{Ask, EngineId, Leg, Prompt};
use handoff::{AttemptId, Finish, RequestId};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, OwnedPermit};
use wire::TokenOut;

use super::affinity::Keys;
use crate::engine::{Code, Event, Fault, Job, NotTaken, Provenance};

/// A job on its way to the machine.
pub(super) struct Submission {
    pub(super) request: RequestId,
    pub(super) job: Job,
    pub(super) events: mpsc::Sender<Event>,
    /// Room for the last event.
    pub(super) last: OwnedPermit<Event>,
    /// Its place among the unjudged.
    pub(super) _room: OwnedSemaphorePermit,
}

impl Submission {
    /// What the machine is told, and what is kept here.
    pub(super) fn split(
        self,
        salt: String,
        keys: Keys,
        (near, only): (Vec<EngineId>, Vec<EngineId>),
    ) -> (Ask, u64, Open) {
        let Self {
            job, events, last, ..
        } = self;
        let left = job.deadline.saturating_duration_since(Instant::now());
        let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let ask = Ask {
            prompt: Prompt::Counted(u32::try_from(job.prompt.len()).unwrap_or(u32::MAX)),
            max_new: Some(job.max_new),
            near,
            operator: job.operator,
            only,
        };
        let open = Open {
            since: Instant::now(),
            job: Arc::new(job),
            salt,
            keys,
            events,
            last,
            attempts: Vec::new(),
            held: Vec::new(),
            written: Vec::new(),
            sampled: None,
            cached_tokens: 0,
            by: Provenance::default(),
            finish: None,
            said: Vec::new(),
            begun: false,
            stopped: false,
        };
        (ask, deadline_ms, open)
    }

    /// The engine ends before the machine has judged it.
    pub(super) fn end(self) {
        self.last.send(Event::Failed(Fault::ended()));
    }
}

/// A request that a reader waits for.
pub(super) struct Open {
    /// When it came.
    pub(super) since: Instant,
    pub(super) job: Arc<Job>,
    /// What keeps its isolation domain's cached pages apart, at the engines.
    pub(super) salt: String,
    /// What it is near to.
    pub(super) keys: Keys,
    events: mpsc::Sender<Event>,
    last: OwnedPermit<Event>,
    /// Its attempts, the present one last.
    pub(super) attempts: Vec<AttemptId>,
    /// What decode has said in the present one and the machine has not released.
    held: Vec<TokenOut>,
    /// Likewise, where the engine writes the answer.
    written: Vec<Value>,
    sampled: Option<u32>,
    cached_tokens: u32,
    /// The engines of the present attempt.
    by: Provenance,
    finish: Option<Finish>,
    /// What an engine said of its failure.
    said: Vec<(AttemptId, Leg, String)>,
    begun: bool,
    stopped: bool,
}

impl Open {
    /// A new attempt: what was held of another is nobody's.
    pub(super) fn begins(&mut self, attempt: AttemptId) {
        if self.attempts.last() != Some(&attempt) {
            self.attempts.push(attempt);
            self.held.clear();
            self.written.clear();
            self.sampled = None;
            self.finish = None;
            self.cached_tokens = 0;
            self.by = Provenance::default();
        }
    }

    /// The engines of the present attempt.
    pub(super) fn by(&self) -> Provenance {
        self.by.clone()
    }

    /// A leg of the present attempt goes to this engine.
    pub(super) fn goes_to(&mut self, leg: Leg, engine: &str, life: &str) {
        let (name, epoch) = match leg {
            Leg::Prefill => (&mut self.by.prefill, &mut self.by.prefill_epoch),
            Leg::Decode => (&mut self.by.decode, &mut self.by.decode_epoch),
        };
        engine.clone_into(name);
        life.clone_into(epoch);
    }

    pub(super) fn hold(&mut self, attempt: AttemptId, part: Part) {
        if self.attempts.last() != Some(&attempt) {
            return; // late
        }
        let tokens = part.tokens.into_iter().map(|id| TokenOut {
            id,
            ..TokenOut::default()
        });
        self.held.extend(tokens);
        self.written.extend(part.said);
        self.sampled = part.sampled.or(self.sampled);
        self.finish = part.finish.or(self.finish);
        self.cached_tokens = part.cached_tokens.unwrap_or(self.cached_tokens);
    }

    pub(super) fn failed(&mut self, attempt: AttemptId, leg: Leg, said: String) {
        self.said.push((attempt, leg, said));
    }

    /// The engine's own words for how this leg failed.
    pub(super) fn words_of(&self, attempt: AttemptId, leg: Leg) -> Option<&str> {
        let mut of = self.said.iter().rev();
        of.find(|(a, l, _)| (*a, *l) == (attempt, leg))
            .map(|(_, _, said)| said.as_str())
    }

    /// Hands on what is held.
    pub(super) fn release(&mut self) -> Result<(), NotTaken> {
        if !self.begun {
            self.begun = true;
            let of = Provenance {
                cached_tokens: self.cached_tokens,
                ..self.by.clone()
            };
            self.say(Event::Committed(of))?;
        }
        if self.job.carried.is_some() {
            let said = std::mem::take(&mut self.written);
            let sampled = self.sampled;
            return self.say(Event::Said {
                choice: 0,
                said,
                sampled,
            });
        }
        if self.held.is_empty() {
            return Ok(());
        }
        let tokens = std::mem::take(&mut self.held);
        self.say(Event::Tokens { choice: 0, tokens })
    }

    /// Its text has run into a stop string.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Says the last word.
    pub(super) fn finish(mut self, outcome: Result<(), Fault>) {
        let reason = match self.stopped {
            true => Some(Finish::Stop),
            false => self.finish,
        };
        let last = match (outcome, reason) {
            (Ok(()), Some(reason)) => {
                let told = self.release();
                let finished = Event::Finished { choice: 0, reason };
                match told.and_then(|()| self.say(finished)) {
                    Ok(()) => Event::Done,
                    Err(_) => Event::Failed(behind()),
                }
            }
            (Ok(()), None) => Event::Failed(Fault::new(
                Code::DecodeFailed,
                "the engine's answer ended without a reason",
            )),
            (Err(fault), _) => Event::Failed(fault),
        };
        self.last.send(last);
    }

    /// The engine ends.
    pub(super) fn end(self) {
        self.last.send(Event::Failed(Fault::ended()));
    }

    fn say(&mut self, event: Event) -> Result<(), NotTaken> {
        Ok(self.events.try_send(event)?)
    }
}

/// What is told to a reader that has not read.
pub(super) fn behind() -> Fault {
    Fault::new(
        Code::Internal,
        "the answer was cancelled, because nobody took its tokens in time",
    )
}

/// A part of an answer.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Option<Finish>,
    pub(super) cached_tokens: Option<u32>,
    /// What the engine itself has written, and tokens sampled for it so far.
    pub(super) said: Vec<Value>,
    pub(super) sampled: Option<u32>,
}

impl Part {
    /// Nothing in it is for the client.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.said.is_empty()
    }
}
