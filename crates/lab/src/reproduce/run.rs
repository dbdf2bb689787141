//! One configuration, from start to end: what every client got, and what the traces say.

use super::guards::{Expected, Guards};
use super::pool::{Footprint, footprint};
use super::scenario::{Ask, SECRET, SENTENCE, Scenario};
use super::stack::Stack;
use super::timeline::{Moment, timeline};
use anyhow::{Context, bail};
use std::path::Path;

/// What a client got.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub status: u16,
    /// `error.code` and `error.message`.
    pub error: Option<(String, String)>,
    pub text: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

/// How much of A's text is in an answer that is not A's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leak {
    None,
    /// The secret's words.
    Secret,
    /// The whole sentence, word for word.
    Sentence,
}

impl Answer {
    pub(super) fn leak(&self) -> Leak {
        let text = self.text.as_deref().unwrap_or_default();
        if text.contains(SENTENCE) {
            Leak::Sentence
        } else if text.contains(SECRET) {
            Leak::Secret
        } else {
            Leak::None
        }
    }
}

/// What came of one configuration.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The worker's last words, if it did not start; then nothing was asked.
    pub refused: Option<String>,
    /// The short request that is good everywhere.
    pub control: Option<Answer>,
    /// The first of A's.
    pub fill: Option<Answer>,
    /// B's, in order.
    pub over: Vec<Answer>,
    /// Decode's pool around B's first request.
    pub footprint: Option<Footprint>,
    /// What the three machines did with it, step by step.
    pub moments: Vec<Moment>,
    /// Where the API was.
    pub addr: String,
}

/// Starts everything, asks, ends everything, and reads the traces.
pub(super) fn run(
    model: &Path,
    scenario: &Scenario,
    guards: Guards,
    most: usize,
) -> anyhow::Result<Outcome> {
    let shape = scenario.size.shape();
    let stack = match Stack::start(model, shape, guards) {
        Ok(stack) => stack,
        Err(error) => match error.downcast_ref::<worker::WorkerError>() {
            Some(worker::WorkerError::Refused(refusal)) => {
                return Ok(Outcome::refused(refusal.to_string()));
            }
            _ => return Err(error),
        },
    };
    let ask = |ask: &Ask| asked(&stack, ask);
    let control = ask(&scenario.control)?;
    let mut fill = None;
    let mut over = Vec::new();
    for request in scenario.over.iter().take(most) {
        // What B's last answer left in the pool is no evidence: A fills it again.
        let answered = over.last().is_none_or(|last: &Answer| last.status == 200);
        if answered {
            let filled = ask(&scenario.fill)?;
            if filled.status != 200 {
                bail!("tenant A's own request was not answered: {filled:?}");
            }
            fill.get_or_insert(filled);
        }
        over.push(ask(request)?);
    }
    let addr = stack.api.addr.clone();
    let dir = stack.end()?;
    let shown = &scenario.over[0];
    let footprint = footprint(dir.path(), guards, shown.tokens);
    let moments = timeline(dir.path(), guards, scenario);
    Ok(Outcome {
        refused: None,
        control: Some(control),
        fill,
        over,
        footprint: footprint.context("decode's trace")?,
        moments: moments.context("the traces")?,
        addr,
    })
}

impl Outcome {
    fn refused(why: String) -> Self {
        Self {
            refused: Some(why),
            control: None,
            fill: None,
            over: Vec::new(),
            footprint: None,
            moments: Vec::new(),
            addr: String::new(),
        }
    }

    /// Whether it came as it must: to every request of B's, and nothing else was disturbed.
    pub(super) fn is(&self, expected: Expected) -> bool {
        let as_expected = |answer: &Answer| match expected {
            Expected::NoStart => false,
            Expected::Error(status, codes) => {
                let code = answer.error.as_ref().map(|(code, _)| code.as_str());
                let known = code.is_some_and(|code| codes.contains(&code));
                answer.status == status && known && answer.leak() == Leak::None
            }
            Expected::Leak => answer.status == 200 && answer.leak() == Leak::Sentence,
        };
        match (&self.refused, expected) {
            (Some(_), expected) => expected == Expected::NoStart,
            // Another processor's arithmetic may turn a word; the one that is shown must leak.
            (None, Expected::Leak) => self.over.first().is_some_and(as_expected),
            (None, _) => !self.over.is_empty() && self.over.iter().all(as_expected),
        }
    }

    /// Answers with A's sentence, and with at least A's secret in them.
    pub(super) fn leaked(&self) -> (usize, usize) {
        let at_least = |leak| self.over.iter().filter(|it| it.leak() >= leak).count();
        (at_least(Leak::Sentence), at_least(Leak::Secret))
    }
}

fn asked(stack: &Stack, ask: &Ask) -> anyhow::Result<Answer> {
    let reply = stack.api.post(ask.path, ask.tenant.key(), &ask.body)?;
    let body = &reply.body;
    let choice = &body["choices"][0];
    let text = choice["text"].as_str();
    let text = text.or_else(|| choice["message"]["content"].as_str());
    let word = |key: &str| body["error"][key].as_str().map(str::to_owned);
    Ok(Answer {
        status: reply.status,
        error: word("code").zip(word("message")),
        text: text.map(str::to_owned),
        prompt_tokens: body["usage"]["prompt_tokens"].as_u64(),
        completion_tokens: body["usage"]["completion_tokens"].as_u64(),
    })
}
