//! How each engine is asked, and how its answers are read. Nothing here knows sockets.

mod carried;
mod llama;
mod sglang;
mod vllm;

use std::sync::Arc;

use handoff::door::{Blame, Handing, Label, Leg, Serves, Whose};
use handoff::{AttemptId, Finish};
use pages::Epoch;
use serde_json::{Map, Value, json};

use super::leg::SILENT;
use super::requests::Part;
pub(super) use carried::{NONE as NO_TEXT_PATH, untold};

use crate::engine::{Carried, Job, TextPath};

/// Which engine, and what it does there.
#[derive(Clone, Debug, PartialEq)]
pub enum Protocol {
    /// SGLang, by `/generate`.
    Sglang {
        /// What it does.
        role: Role,
        /// Of a prefill: the port at which decodes find it.
        bootstrap: Option<u16>,
    },
    /// vLLM, by `/v1/completions` with token ids.
    Vllm {
        /// What it does.
        role: Role,
    },
    /// llama.cpp's server, by `/completion`.
    Llama,
}

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It computes prompts.
    Prefill,
    /// It answers with what was computed elsewhere.
    Decode,
    /// Both.
    Alone,
    /// It is none, but chooses some and answers what they answer.
    Router,
}

impl Role {
    /// Whether the other half of a pair is asked by us too.
    fn is_half(self) -> bool {
        matches!(self, Self::Prefill | Self::Decode)
    }
}

/// What a leg is asked with.
pub(super) struct Order {
    pub(super) job: Arc<Job>,
    pub(super) salt: String,
    pub(super) names: Names,
    pub(super) leg: Leg,
    pub(super) max_new: u32,
    pub(super) reference: Option<Reference>,
    /// Where prefill and decode meet.
    pub(super) meet: Option<Meeting>,
}

/// What a room's number is made of: the gateway's life, the attempt, and one of as many as ranks can be told apart.
const LIFE_BITS: u32 = 25;
const ATTEMPT_BITS: u32 = 30;
const RANK_BITS: u32 = 8;
/// Of more data-parallel ranks than that none is named.
pub const RANKS_MAX: usize = 1 << RANK_BITS;

/// Where prefill and decode of an attempt meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) host: String,
    pub(super) port: u16,
    /// Below 2^63, and used once.
    pub(super) room: u64,
    /// At which of prefill's data-parallel ranks, if it has several.
    pub(super) rank: Option<Rank>,
}

/// One of several data-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub(super) n: u32,
    of: u32,
}

impl Rank {
    /// One that takes so long a prompt, in turn; none where there are not several.
    pub(super) fn of(longest: &[u32], attempt: AttemptId, prompt: usize) -> Option<Self> {
        let several = 2..=RANKS_MAX;
        let of = several.contains(&longest.len()).then_some(longest.len())? as u32;
        let takes = |n: &u32| longest[*n as usize] as usize >= prompt;
        let all: Vec<u32> = (0..of).filter(takes).collect();
        let at = attempt.n.checked_rem(all.len() as u64)?;
        Some(Self {
            n: all[at as usize],
            of,
        })
    }
}

/// The reference to prefill's pages, as prefill wrote it.
pub(super) type Reference = Value;

/// A request to an engine.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) path: &'static str,
    pub(super) body: Vec<u8>,
    /// The engine's own name for the request, where it goes into a header.
    pub(super) request_id: Option<String>,
}

/// Identifiers of a leg: made of this life's epoch and the attempt's number, so never used twice and
/// nobody else's (DR-7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// Of one width, so that none is the beginning of another: SGLang aborts by prefix.
    pub(super) id: String,
}

impl Names {
    pub(super) fn of(epoch: Epoch, attempt: AttemptId, leg: Leg) -> Self {
        let role = match leg {
            Leg::Prefill => 'p',
            Leg::Decode => 'd',
        };
        let life = epoch.bits();
        Self {
            id: format!("cd{life:032x}{:016x}{role}", attempt.n),
        }
    }

    /// Where prefill and decode of an attempt meet; below 2^63. An SGLang that follows the room's number takes
    /// the rank that is left when it is divided by how many there are: the one that is named.
    pub(super) fn room(epoch: Epoch, attempt: AttemptId, rank: Option<Rank>) -> u64 {
        let life = epoch.bits();
        let life = ((life >> 97) as u64 ^ (life as u64 >> 33)) & ((1 << LIFE_BITS) - 1);
        // Each attempt has as many rooms of its own as ranks can be told apart, whatever other attempts have: a decode
        // knows a request by the room alone, also when its prefills have different numbers of ranks.
        let attempt = attempt.n & ((1 << ATTEMPT_BITS) - 1);
        let first = (life << ATTEMPT_BITS | attempt) << RANK_BITS;
        first
            + match rank.map(|it| (u64::from(it.n), u64::from(it.of))) {
                Some((n, of)) => (n + of - first % of) % of,
                // Whatever it divides by, it comes to each in turn.
                None => attempt % (1 << RANK_BITS),
            }
    }
}

/// What was understood of a piece of an answer.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) part: Part,
    /// A failure inside it, in the engine's words.
    pub(super) failed: Option<(Blame, String)>,
}

/// Reads the answer of one leg, piece by piece. What cannot be understood is none.
pub(super) struct Reading {
    form: Form,
    /// The name that was given; none if it does not get to who answers.
    id: Option<String>,
    said: Label,
    tokens: u32,
    /// As many as the engine says that it has sampled.
    total: Option<u32>,
    most: u32,
    finish: Option<Finish>,
    reference: Option<Reference>,
}

enum Form {
    Sglang,
    Vllm,
    Llama,
    /// OpenAI's, of an engine that writes the answer itself.
    OpenAi,
}

impl Protocol {
    /// What it does, in the machine's words, in this group of engines.
    pub fn serves(&self, group: u32) -> Serves {
        let (role, handing) = match self {
            Self::Sglang { role, .. } => (*role, Handing::Together),
            Self::Vllm { role } => (*role, Handing::Pull),
            Self::Llama => return Serves::Alone,
        };
        match role {
            Role::Prefill => Serves::Prefill(group, handing),
            Role::Decode => Serves::Decode(group, handing),
            Role::Alone => Serves::Alone,
            Role::Router => Serves::Router,
        }
    }

    /// Where decodes find this prefill, which is reached at `authority`.
    pub(super) fn meeting(&self, authority: &str) -> Option<(String, u16)> {
        let Self::Sglang {
            bootstrap: Some(port),
            ..
        } = self
        else {
            return None;
        };
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host);
        Some((host.to_owned(), *port))
    }

    /// The request of a leg, and how its answer is read.
    pub(super) fn ask(&self, order: &Order) -> (Call, Reading) {
        let (call, form) = match (self, order.job.carried.as_deref()) {
            (Self::Sglang { role, .. }, Some(carried)) => {
                (carried::ask_sglang(order, carried, *role), Form::OpenAi)
            }
            (Self::Vllm { role }, Some(carried)) if order.leg == Leg::Decode => {
                (carried::ask_vllm(order, carried, *role), Form::OpenAi)
            }
            (Self::Sglang { role, .. }, _) => (sglang::ask(order, *role), Form::Sglang),
            (Self::Vllm { role }, _) => (vllm::ask(order, *role), Form::Vllm),
            (Self::Llama, _) => (llama::ask(order), Form::Llama),
        };
        let reading = Reading {
            form,
            id: self.names_arrive().then(|| order.names.id.clone()),
            said: SILENT,
            tokens: 0,
            total: None,
            most: order.max_new,
            finish: None,
            reference: None,
        };
        (call, reading)
    }

    /// Whether an engine gets the name that we give: routers of vLLM give another one.
    fn names_arrive(&self) -> bool {
        !matches!(self, Self::Vllm { role: Role::Router })
    }

    /// The engine's own tokenizer, asked about a text.
    pub(super) fn tokenize(&self, text: &str) -> Call {
        let body = match self {
            Self::Sglang { .. } | Self::Vllm { .. } => {
                json!({"prompt": text, "add_special_tokens": false})
            }
            Self::Llama => json!({"content": text, "add_special": false}),
        };
        Call {
            path: "/tokenize",
            body: bytes(&body),
            request_id: None,
        }
    }

    /// What can be asked of it besides tokens.
    pub(super) fn text_path(&self) -> TextPath {
        match self {
            // Routers pass on what they know, and none of what they do not.
            Self::Sglang { role, .. } | Self::Vllm { role } if *role == Role::Router => {
                carried::NONE
            }
            Self::Sglang { .. } => carried::SGLANG,
            Self::Vllm { .. } => carried::VLLM,
            Self::Llama => carried::NONE,
        }
    }

    /// Asks for the tokens of a conversation, where the engine writes the prompt itself.
    pub(super) fn tokens_of(&self, carried: &Carried) -> Option<Call> {
        matches!(self, Self::Vllm { .. }).then(|| carried::tokens_of(carried))
    }

    /// The engine's own call to end a leg; none where it ends with its connection.
    pub(super) fn abort(&self, names: &Names) -> Option<Call> {
        match self {
            // A router has no such call: its engines' legs end with the connection to it.
            Self::Sglang { role, .. } if *role == Role::Router => None,
            Self::Sglang { .. } => Some(sglang::abort(names)),
            Self::Vllm { .. } | Self::Llama => None,
        }
    }
}

impl Reading {
    /// Reads a piece: an event of a stream, or the whole.
    pub(super) fn read(&mut self, json: &[u8]) -> Option<Heard> {
        let value: Value = serde_json::from_slice(json).ok()?;
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Some(Heard {
                failed: Some(in_band(error)),
                ..Heard::default()
            });
        }
        let heard = match self.form {
            Form::Sglang => sglang::read(self, &value),
            Form::Vllm => vllm::read(self, &value),
            Form::Llama => llama::read(self, &value),
            Form::OpenAi => carried::read(self, &value),
        }?;
        self.tokens += u32::try_from(heard.part.tokens.len()).ok()?;
        self.finish = heard.part.finish.or(self.finish);
        (self.tokens <= self.most).then_some(heard)
    }

    /// What the answer has said of itself so far.
    pub(super) fn said(&self) -> Label {
        self.said
    }

    /// Whether the engine has said why its answer ends, and every token of it was read. (What a
    /// prefill has sampled is nobody's answer.)
    pub(super) fn is_whole(&self, leg: Leg) -> bool {
        let all = self.total.is_none_or(|total| total == self.tokens);
        self.finish.is_some() && (all || leg == Leg::Prefill)
    }

    /// As many tokens as the engine says that it has sampled.
    pub(super) fn sampled(&self) -> Option<u32> {
        self.total
    }

    pub(super) fn finish(&self) -> Option<Finish> {
        self.finish
    }

    pub(super) fn reference(&mut self) -> Option<Reference> {
        self.reference.take()
    }

    /// Whether a stream of this engine ends with `[DONE]`.
    pub(super) fn says_done(&self) -> bool {
        !matches!(self.form, Form::Llama)
    }

    /// Compares the name in an answer with the one that was given.
    fn named(&mut self, name: Option<&Value>, ours: impl Fn(&str, &str) -> bool) {
        let (Some(name), Some(id)) = (name.and_then(Value::as_str), &self.id) else {
            return;
        };
        // Once another's, it stays that.
        self.said.whose = match ours(name, id) && self.said.whose != Whose::Anothers {
            true => Whose::Ours,
            false => Whose::Anothers,
        };
    }

    fn counted(&mut self, prompt: Option<&Value>, sampled: Option<&Value>) {
        let number = |value: Option<&Value>| {
            let number = value.and_then(Value::as_u64)?;
            Some(u32::try_from(number).unwrap_or(u32::MAX))
        };
        self.said.prompt = number(prompt).or(self.said.prompt);
        self.total = number(sampled).or(self.total);
    }
}

/// Whose fault a status is; none: it is no answer to what was asked.
pub(super) fn class_of(status: u16) -> Option<Blame> {
    match status {
        429 | 503 => Some(Blame::Busy),
        408 | 499 => Some(Blame::Engine),
        400..=498 => Some(Blame::Client),
        500..=599 => Some(Blame::Engine),
        _ => None,
    }
}

/// A failure inside an answer of status 200.
fn in_band(error: &Value) -> (Blame, String) {
    let code = error.get("code").and_then(Value::as_u64);
    let class = code.and_then(|code| class_of(u16::try_from(code).ok()?));
    let said = words(error).unwrap_or_else(|| "an error without a message".into());
    (class.unwrap_or(Blame::Engine), said)
}

/// The message of an engine's error.
pub(super) fn words_of(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    words(value.get("error").unwrap_or(&value))
}

fn words(error: &Value) -> Option<String> {
    let named = ["message", "detail"]
        .into_iter()
        .find_map(|at| error.get(at));
    let text = named.unwrap_or(error).as_str()?;
    Some(text.chars().filter(|c| !c.is_control()).collect())
}

/// What an engine's tokenizer has made of a text.
pub(super) fn tokens_of(body: &[u8]) -> Option<Vec<u32>> {
    let value: Value = serde_json::from_slice(body).ok()?;
    ids(value.get("tokens")?)
}

/// Token ids of a list.
fn ids(list: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    list.as_array()?.iter().map(id).collect()
}

/// Why an answer ends, in the words that OpenAI has for it.
fn reason(word: &str) -> Option<Finish> {
    match word {
        "stop" => Some(Finish::Stop),
        "length" => Some(Finish::Length),
        _ => None,
    }
}

/// How to sample, in the names that OpenAI, SGLang and vLLM have for it.
fn sampling(job: &Job) -> Map<String, Value> {
    let sampling = &job.sampling;
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
    put("temperature", json!(sampling.temperature));
    put("top_p", json!(sampling.top_p));
    put("min_p", json!(sampling.min_p));
    put("presence_penalty", json!(sampling.presence_penalty));
    put("frequency_penalty", json!(sampling.frequency_penalty));
    put("repetition_penalty", json!(sampling.repetition_penalty));
    if sampling.top_k > 0 {
        put("top_k", json!(sampling.top_k));
    }
    if !sampling.logit_bias.is_empty() {
        let biased = sampling.logit_bias.iter();
        let biased = biased.map(|(token, bias)| (token.to_string(), json!(bias)));
        put("logit_bias", Value::Object(biased.collect()));
    }
    map
}

fn bytes(body: &Value) -> Vec<u8> {
    body.to_string().into_bytes()
}

#[cfg(test)]
mod tests;
