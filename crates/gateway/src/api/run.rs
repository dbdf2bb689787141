//! One generation: reads the engine's events, keeps them to their contract, and yields what may
//! be shown. Whoever holds a [`Run`] holds the request; dropping it cancels.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::access_log::Record;
use super::ask::Ask;
use super::choice::{ChoiceText, Piece};
use super::text::Text;
use crate::engine::{Answer, Code, Event, Fault, Finish, TokenOut};

/// The engine ends a request by its deadline and says why; this much later the gateway ends it
/// without knowing why (H-15: every wait has a deadline).
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// Exact figures of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens sampled, over all choices.
    pub completion: u32,
    /// Tokens of the prompt whose KV was cached.
    pub cached: u32,
}

/// What was asked of the engine for one prompt.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// It is the prompt of the one before, which is counted once.
    pub again: bool,
    /// How many answers to it this is.
    pub choices: u16,
    /// Most tokens of an answer to it.
    pub max_new: u32,
    /// What its answers begin with.
    pub before: String,
}

/// One prompt of a generation and its answers, which the engine knows as one request.
struct Part {
    /// None once nobody waits for more of it; dropping it cancels what still runs.
    answer: Option<Answer>,
    /// Its choices among all: choice `i` of the engine is the one at `start + i`.
    choices: Range<usize>,
    committed: bool,
    prompt: u32,
    again: bool,
    cached: u32,
    max_new: u32,
}

/// A running generation.
pub(super) struct Run {
    parts: Vec<Part>,
    /// Whose events are looked at first, so that nobody's are kept waiting by another's.
    turn: usize,
    text: Arc<dyn Text>,
    choices: Vec<ChoiceText>,
    ready: VecDeque<Piece>,
    deadline: Instant,
    /// Access log and metrics; written when dropped.
    pub record: Record,
    /// Its place among the running requests.
    place: Option<Box<dyn Send>>,
}

impl Run {
    /// Takes over what was just accepted, an answer for each prompt.
    pub(super) fn new(
        accepted: Vec<(Answer, Asked)>,
        ask: &Ask,
        text: Arc<dyn Text>,
        deadline: std::time::Instant,
        mut record: Record,
    ) -> Self {
        let ids = accepted.iter().map(|(answer, _)| answer.request.as_str());
        record.accepted = Some(std::time::Instant::now());
        record.engine_request = Some(ids.collect::<Vec<_>>().join(" "));
        let logs = ask.sampling.logprobs.is_some();
        let mut choices = Vec::new();
        let mut parts = Vec::new();
        for (answer, asked) in accepted {
            let first = choices.len();
            for index in first..first + usize::from(asked.choices) {
                let before = asked.before.clone();
                let rules = ask.rules.clone();
                let calling = ask.calling.as_ref();
                choices.push(ChoiceText::new(
                    index as u16,
                    &*text,
                    rules,
                    logs,
                    before,
                    calling,
                ));
            }
            parts.push(Part {
                answer: Some(answer),
                choices: first..choices.len(),
                committed: false,
                prompt: asked.prompt,
                again: asked.again,
                cached: 0,
                max_new: asked.max_new,
            });
        }
        Self {
            parts,
            turn: 0,
            text,
            choices,
            ready: VecDeque::new(),
            deadline: Instant::from_std(deadline) + DEADLINE_GRACE,
            record,
            place: None,
        }
    }

    /// Keeps something (a place in a queue) for as long as the request runs.
    pub(super) fn holding(mut self, place: impl Send + 'static) -> Self {
        self.place = Some(Box::new(place));
        self
    }

    /// The figures so far.
    pub(super) fn usage(&self) -> Usage {
        let counted = || self.parts.iter().filter(|part| !part.again);
        Usage {
            prompt: counted().map(|part| part.prompt).sum(),
            completion: self.choices.iter().map(ChoiceText::tokens).sum(),
            cached: counted().map(|part| part.cached).sum(),
        }
    }

    /// The next piece; none when the request ended well. A piece exists only after `Committed`
    /// and a first token, so having one is what permits a status line of 200 (H-6).
    ///
    /// # Errors
    /// The request failed, or the engine broke its contract; nothing follows.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, Fault> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            self.let_go();
            if self.parts.iter().all(|part| part.answer.is_none()) {
                return Ok(None);
            }
            let deadline = self.deadline;
            let (part, event) = match timeout_at(deadline, self.event()).await {
                Ok((part, Some(event))) => (part, event),
                Ok((_, None)) => return Err(broken("ended an answer without an outcome")),
                Err(_) => {
                    let mut waiting = self.parts.iter().filter(|part| part.answer.is_some());
                    let code = if waiting.all(|part| part.committed) {
                        Code::DecodeTimeout
                    } else {
                        Code::QueueTimeout
                    };
                    return Err(Fault::new(code, "the deadline passed without an outcome"));
                }
            };
            self.take(part, event)?;
        }
    }

    /// The next event of any part, or that its channel was closed.
    async fn event(&mut self) -> (usize, Option<Event>) {
        let (parts, turn) = (&mut self.parts, &mut self.turn);
        poll_fn(|context| {
            let count = parts.len();
            for at in (0..count).map(|i| (*turn + i) % count) {
                let Some(answer) = &mut parts[at].answer else {
                    continue;
                };
                if let Poll::Ready(event) = answer.events.poll_recv(context) {
                    *turn = (at + 1) % count;
                    return Poll::Ready((at, event));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Lets go of the parts of which every choice ended and at least one by a stop string: the
    /// engine has nothing more to say of them that anybody waits for.
    fn let_go(&mut self) {
        for part in &mut self.parts {
            let choices = &self.choices[part.choices.clone()];
            let all = choices.iter().all(|choice| choice.finish().is_some());
            if all && choices.iter().any(ChoiceText::is_cut) {
                part.answer = None;
            }
        }
    }

    fn take(&mut self, at: usize, event: Event) -> Result<(), Fault> {
        let part = &mut self.parts[at];
        let choices = &mut self.choices[part.choices.clone()];
        match event {
            Event::Committed(provenance) => {
                if choices.iter().any(|choice| choice.tokens() > 0) {
                    return Err(broken("committed again after a token"));
                }
                if provenance.cached_tokens > part.prompt {
                    return Err(broken("cached more tokens than the prompt has"));
                }
                part.committed = true;
                part.cached = provenance.cached_tokens;
                self.record.provenance = Some(provenance);
            }
            Event::Tokens { choice, tokens } => self.tokens(at, choice, tokens)?,
            Event::Said {
                choice,
                said,
                sampled,
            } => self.said(at, choice, said, sampled)?,
            Event::Finished { choice, reason } => self.finished(at, choice, reason)?,
            Event::Done if choices.iter().all(|c| c.finish().is_some()) => part.answer = None,
            Event::Done => return Err(broken("is done while a choice is not")),
            Event::Failed(fault) => return Err(fault),
        }
        self.record.usage = self.usage();
        Ok(())
    }

    fn tokens(&mut self, at: usize, index: u16, tokens: Vec<TokenOut>) -> Result<(), Fault> {
        let part = &self.parts[at];
        if !part.committed {
            return Err(broken("sent a token before the prompt was verified"));
        }
        let choice = choice(&mut self.choices[part.choices.clone()], index)?;
        self.record.saw_token();
        for token in tokens {
            if choice.finish().is_some() {
                // Tokens behind a stop string, sampled before the engine heard of it.
                if choice.is_cut() {
                    break;
                }
                return Err(broken("sent a token of a choice that it had finished"));
            }
            if token.id >= self.text.vocab() || choice.tokens() >= part.max_new {
                return Err(broken("sent a token outside the vocabulary or the maximum"));
            }
            let piece = choice.push(token, &*self.text);
            if piece.finish.is_some()
                && let Some(answer) = &part.answer
            {
                answer.steering.stop_choice(index);
            }
            self.ready.push_back(piece);
        }
        Ok(())
    }

    /// What the engine itself has written.
    fn said(
        &mut self,
        at: usize,
        index: u16,
        said: Vec<Value>,
        sampled: Option<u32>,
    ) -> Result<(), Fault> {
        let part = &self.parts[at];
        if !part.committed {
            return Err(broken("said something before the prompt was verified"));
        }
        let choice = choice(&mut self.choices[part.choices.clone()], index)?;
        if sampled.is_some_and(|sampled| sampled > part.max_new) {
            return Err(broken("sampled more tokens than the maximum"));
        }
        self.record.saw_token();
        self.ready.extend(choice.said(said, sampled));
        Ok(())
    }

    fn finished(&mut self, at: usize, index: u16, reason: Finish) -> Result<(), Fault> {
        let part = &self.parts[at];
        if !part.committed {
            return Err(broken("finished a choice before the prompt was verified"));
        }
        let choice = choice(&mut self.choices[part.choices.clone()], index)?;
        if choice.finish().is_some() {
            let crossed_our_stop = choice.is_cut();
            return crossed_our_stop
                .then_some(())
                .ok_or_else(|| broken("finished a choice twice"));
        }
        if choice.tokens() == 0 {
            return Err(broken("finished a choice without a token"));
        }
        self.ready.extend(choice.end(reason));
        Ok(())
    }
}

fn choice(choices: &mut [ChoiceText], index: u16) -> Result<&mut ChoiceText, Fault> {
    choices
        .get_mut(usize::from(index))
        .ok_or_else(|| broken("answered a choice nobody asked for"))
}

/// The engine broke the contract of `crate::engine`: whatever it sent is not trusted.
fn broken(what: &str) -> Fault {
    Fault::new(
        Code::Internal,
        format!("the engine {what}; this is a fault of the server"),
    )
}
