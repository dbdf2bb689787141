//! One generation: reads the engine's events, keeps them to their contract, and yields what may
//! be shown. Whoever holds a [`Run`] holds the request; dropping it cancels.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

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
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens sampled, over all choices.
    pub completion: u32,
    /// Tokens of the prompt whose KV was cached.
    pub cached: u32,
}

/// A running generation.
pub struct Run {
    answer: Answer,
    text: Arc<dyn Text>,
    choices: Vec<ChoiceText>,
    ready: VecDeque<Piece>,
    committed: bool,
    deadline: Instant,
    max_new: u32,
    usage: Usage,
    /// Access log and metrics; written when dropped.
    pub record: Record,
    /// Its place among the running requests.
    place: Option<Box<dyn Send>>,
}

impl Run {
    /// Takes over an answer that was just accepted.
    pub fn new(
        answer: Answer,
        ask: &Ask,
        text: Arc<dyn Text>,
        prompt: u32,
        max_new: u32,
        deadline: std::time::Instant,
        mut record: Record,
    ) -> Self {
        record.engine_request = Some(answer.request.clone());
        let logs = ask.sampling.logprobs.is_some();
        let choices = (0..ask.choices)
            .map(|i| ChoiceText::new(i, &*text, ask.stop.clone(), logs, ask.ignore_eos))
            .collect();
        Self {
            answer,
            text,
            choices,
            ready: VecDeque::new(),
            committed: false,
            deadline: Instant::from_std(deadline) + DEADLINE_GRACE,
            max_new,
            usage: Usage {
                prompt,
                ..Usage::default()
            },
            record,
            place: None,
        }
    }

    /// Keeps something (a place in a queue) for as long as the request runs.
    pub fn holding(mut self, place: impl Send + 'static) -> Self {
        self.place = Some(Box::new(place));
        self
    }

    /// The figures so far.
    pub fn usage(&self) -> Usage {
        let completion = self.choices.iter().map(ChoiceText::tokens).sum();
        Usage {
            completion,
            ..self.usage
        }
    }

    /// The next piece; none when the request ended well. A piece exists only after `Committed`
    /// and a first token, so having one is what permits a status line of 200 (H-6).
    ///
    /// # Errors
    /// The request failed, or the engine broke its contract; nothing follows.
    pub async fn next(&mut self) -> Result<Option<Piece>, Fault> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.ended_here() {
                // Every choice ended and at least one by a stop string: the engine has
                // nothing more to say that anybody waits for.
                return Ok(None);
            }
            let event = match timeout_at(self.deadline, self.answer.events.recv()).await {
                Ok(Some(event)) => event,
                Ok(None) => return Err(broken("ended an answer without an outcome")),
                Err(_) => {
                    let code = if self.committed {
                        Code::DecodeTimeout
                    } else {
                        Code::QueueTimeout
                    };
                    return Err(Fault::new(code, "the deadline passed without an outcome"));
                }
            };
            if self.take(event)? {
                return Ok(None);
            }
        }
    }

    fn ended_here(&self) -> bool {
        let all = self.choices.iter().all(|c| c.finish().is_some());
        all && self.choices.iter().any(ChoiceText::is_cut)
    }

    /// Whether the request is done.
    fn take(&mut self, event: Event) -> Result<bool, Fault> {
        match event {
            Event::Committed(provenance) => {
                if self.record.first_token.is_some() {
                    return Err(broken("committed again after a token"));
                }
                if provenance.cached_tokens > self.usage.prompt {
                    return Err(broken("cached more tokens than the prompt has"));
                }
                self.committed = true;
                self.usage.cached = provenance.cached_tokens;
                self.record.provenance = Some(provenance);
            }
            Event::Tokens { choice, tokens } => self.tokens(choice, tokens)?,
            Event::Finished { choice, reason } => self.finished(choice, reason)?,
            Event::Done if self.choices.iter().all(|c| c.finish().is_some()) => {
                self.record.usage = self.usage();
                return Ok(true);
            }
            Event::Done => return Err(broken("is done while a choice is not")),
            Event::Failed(fault) => return Err(fault),
        }
        self.record.usage = self.usage();
        Ok(false)
    }

    fn tokens(&mut self, index: u16, tokens: Vec<TokenOut>) -> Result<(), Fault> {
        if !self.committed {
            return Err(broken("sent a token before the prompt was verified"));
        }
        let choice = choice(&mut self.choices, index)?;
        self.record.saw_token();
        for token in tokens {
            if choice.finish().is_some() {
                // Tokens behind a stop string, sampled before the engine heard of it.
                if choice.is_cut() {
                    break;
                }
                return Err(broken("sent a token of a choice that it had finished"));
            }
            if token.id >= self.text.vocab() || choice.tokens() >= self.max_new {
                return Err(broken("sent a token outside the vocabulary or the maximum"));
            }
            let piece = choice.push(token, &*self.text);
            if piece.finish.is_some() {
                self.answer.steering.stop_choice(index);
            }
            self.ready.push_back(piece);
        }
        Ok(())
    }

    fn finished(&mut self, index: u16, reason: Finish) -> Result<(), Fault> {
        if !self.committed {
            return Err(broken("finished a choice before the prompt was verified"));
        }
        let choice = choice(&mut self.choices, index)?;
        if choice.finish().is_some() {
            let crossed_our_stop = choice.is_cut();
            return crossed_our_stop
                .then_some(())
                .ok_or_else(|| broken("finished a choice twice"));
        }
        if choice.tokens() == 0 {
            return Err(broken("finished a choice without a token"));
        }
        let piece = choice.end(reason);
        self.ready.push_back(piece);
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
