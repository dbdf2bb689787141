//! Clients of a server under attack, and what each of them may hear: the right answer, whole, or a
//! clear error. Anything else is a finding.

use super::dice::Dice;
use serde_json::{Value, json};
use std::io;
use std::sync::mpsc;
use std::time::Duration;
use testkit::Api;
use testkit::crowd::{COMPLETIONS, Choice, Heard, prompt};

/// Longest life of a request: above every deadline of a site. A client that hears nothing for so
/// long hangs, which is a finding.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A request.
#[derive(Clone, Debug)]
pub struct Question {
    /// As it is sent, but for `stream`.
    pub body: Value,
    /// Whether it is streamed: then its maximum of tokens is odd, which the board sees.
    pub stream: bool,
}

impl Question {
    /// One of a seed. `owner` says whose prompt it is: equal for equal prompts.
    pub fn of(dice: &mut Dice, owner: usize, seed: u64, longest: usize) -> Self {
        let stream = dice.below(2) == 1;
        let most = 2 * (4 + dice.below(14)) + u64::from(stream);
        let tokens = 1 + dice.below(longest as u64 - most - 1) as usize;
        let mut body = json!({
            "prompt": prompt(owner % 4096, tokens, 16, seed), "max_tokens": most,
            "logprobs": 1, "ignore_eos": true, "temperature": 0,
        });
        if dice.below(2) == 1 {
            body["temperature"] = json!(0.9);
            body["seed"] = json!(owner);
        }
        Self { body, stream }
    }

    /// What a server answers that nobody attacks.
    pub fn alone(&self, api: &Api) -> Vec<Choice> {
        let answer = api.post(COMPLETIONS, &self.body).good();
        let mut heard = Heard::default();
        heard.add(&answer);
        heard.choices
    }

    /// Asks, and hears.
    pub fn ask(&self, api: &Api) -> Answer {
        match self.try_ask(api) {
            Ok(answer) => answer,
            Err(error) => Answer::Broken(error.to_string()),
        }
    }

    fn try_ask(&self, api: &Api) -> io::Result<Answer> {
        let mut body = self.body.clone();
        if !self.stream {
            let reply = api.try_post(COMPLETIONS, &body)?;
            return Ok(match reply.status {
                200 => Answer::whole(&[reply.json()]),
                status => {
                    let (code, message) = reply.error();
                    Answer::Error(status, code, message)
                }
            });
        }
        body["stream"] = json!(true);
        let events = match api.begin(COMPLETIONS, &body)?.events() {
            Ok(events) => events,
            Err(error) => return refused(&error.to_string()).ok_or(error),
        };
        let (mut events, done) = events.rest();
        if done {
            return Ok(Answer::whole(&events));
        }
        let last = events.pop().unwrap_or_default();
        let code = last["error"]["code"].as_str();
        Ok(match code {
            Some(code) => Answer::BrokenOff(code.to_owned()),
            None => Answer::Broken("a stream without an end".into()),
        })
    }
}

/// `status 503: {"error": …}`, as the client says it.
fn refused(text: &str) -> Option<Answer> {
    let (status, body) = text.strip_prefix("status ")?.split_once(": ")?;
    let body: Value = serde_json::from_str(body).ok()?;
    let word = |key: &str| body["error"][key].as_str().unwrap_or_default().to_owned();
    let status = status.parse().ok()?;
    Some(Answer::Error(status, word("code"), word("message")))
}

/// What a client heard.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A whole answer.
    Whole(Vec<Choice>),
    /// An error before the first token: status, code, message.
    Error(u16, String, String),
    /// A stream that ended with an error event and without `[DONE]`.
    BrokenOff(String),
    /// The connection was lost.
    Broken(String),
}

impl Answer {
    fn whole(parts: &[Value]) -> Self {
        let mut heard = Heard::default();
        parts.iter().for_each(|part| heard.add(part));
        Self::Whole(heard.choices)
    }

    /// A word for a table.
    pub fn word(&self) -> String {
        match self {
            Self::Whole(_) => "answered".into(),
            Self::Error(status, code, _) => format!("{status} {code}"),
            Self::BrokenOff(code) => format!("broken off {code}"),
            Self::Broken(_) => "connection lost".into(),
        }
    }

    /// What is wrong with it, if anything is. `lost`: whether the gateway itself was attacked, so
    /// that a lost connection is honest.
    pub fn judge(&self, alone: &[Choice], lost: bool) -> Result<(), String> {
        match self {
            Self::Whole(choices) if choices == alone => Ok(()),
            Self::Whole(choices) => Err(format!("answered {choices:?}, alone {alone:?}")),
            Self::Error(500, code, message) => Err(format!("500 {code}: {message}")),
            Self::Error(501..=599, code, _) if is_honest(code) => Ok(()),
            Self::BrokenOff(code) if is_honest(code) => Ok(()),
            Self::Broken(_) if lost => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
}

/// Codes that say that the server failed, and where.
fn is_honest(code: &str) -> bool {
    let known = [
        "prefill_failed",
        "decode_failed",
        "unavailable",
        "over_capacity",
        "queue_timeout",
        "prefill_timeout",
        "handoff_timeout",
        "decode_timeout",
    ];
    known.contains(&code) || code.starts_with("integrity_")
}

/// Asks all at once and hears everybody, in order. A client that hears nothing in time hangs.
pub fn all_at_once(api: &Api, questions: &[Question]) -> Vec<Answer> {
    let (say, said) = mpsc::channel();
    for (n, question) in questions.iter().cloned().enumerate() {
        let (say, api) = (say.clone(), api.clone());
        std::thread::spawn(move || {
            let _ = say.send((n, question.ask(&api)));
        });
    }
    let mut answers = vec![None; questions.len()];
    for _ in questions {
        let heard = said.recv_timeout(PATIENCE);
        let (n, answer) = heard.unwrap_or_else(|_| {
            let silent = answers.iter().filter(|it: &&Option<Answer>| it.is_none());
            panic!("{} clients hear nothing for {PATIENCE:?}", silent.count())
        });
        answers[n] = Some(answer);
    }
    answers.into_iter().flatten().collect()
}
