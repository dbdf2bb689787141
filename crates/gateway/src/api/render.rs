//! The JSON of answers, in both of OpenAI's forms. Nothing here decides anything.

use serde_json::{Map, Value, json};

use super::ask::{Ask, Dialect, StreamUsage};
use super::calls::{Call, Style};
use super::choice::{Piece, TokenLog};
use super::responses::{Echo, Events};
use super::run::Usage;
use super::text::Text;
use crate::engine::Finish;

/// What all objects of one answer share.
pub(super) struct Envelope {
    dialect: Dialect,
    id: String,
    model: String,
    created: u64,
    usage: StreamUsage,
    logs: bool,
    /// The engine writes its choices itself.
    carried: bool,
    /// How a call's id is to look.
    short_ids: bool,
    /// What an answer of `/v1/responses` is made from.
    echo: Option<Echo>,
}

impl Envelope {
    /// The envelope of the answer to `ask`, under the gateway's own id.
    pub(super) fn new(ask: &Ask, request: &str, model: &str, created: u64) -> Self {
        let prefix = match ask.dialect {
            Dialect::Chat => "chatcmpl",
            Dialect::Responses => "resp",
            Dialect::Completion => "cmpl",
        };
        let id = format!("{prefix}-{request}");
        let short_ids = ask
            .calling
            .as_ref()
            .is_some_and(|it| it.style == Style::Mistral);
        let echo = (ask.dialect == Dialect::Responses).then(|| Echo {
            id: id.clone(),
            model: model.to_owned(),
            created,
            asked: ask.asked.clone(),
            short_ids,
        });
        Self {
            echo,
            dialect: ask.dialect,
            id,
            model: model.to_owned(),
            created,
            usage: ask.usage,
            logs: ask.sampling.logprobs.is_some(),
            carried: ask.carried.is_some(),
            short_ids,
        }
    }

    /// How an answer of `/v1/responses` is streamed; others are in chunks.
    pub(super) fn events(&self) -> Option<Events> {
        self.echo.clone().map(Events::new)
    }

    fn object(&self, kind: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), json!(self.id));
        map.insert("object".into(), json!(kind));
        map.insert("created".into(), json!(self.created));
        map.insert("model".into(), json!(self.model));
        map.insert("choices".into(), Value::Array(choices));
        map
    }

    /// A chunk; `usage` is shown in each if that was asked for, in the last one always.
    fn chunk(&self, choices: Vec<Value>, usage: Usage, last: bool) -> Value {
        let kind = match self.dialect {
            Dialect::Completion => "text_completion",
            Dialect::Chat | Dialect::Responses => "chat.completion.chunk",
        };
        let mut map = self.object(kind, choices);
        let StreamUsage {
            at_the_end,
            in_each,
        } = self.usage;
        if at_the_end || in_each {
            let shown = last || in_each;
            let usage = if shown {
                usage_json(usage)
            } else {
                Value::Null
            };
            map.insert("usage".into(), usage);
        }
        Value::Object(map)
    }

    /// The chunk that opens a choice of a chat; completions have none.
    pub(super) fn opening(&self, choice: u16, usage: Usage) -> Option<Value> {
        (self.dialect == Dialect::Chat && !self.carried).then(|| {
            let delta = json!({"role": "assistant", "content": ""});
            self.chunk(
                vec![json!({
                    "index": choice, "delta": delta, "logprobs": null, "finish_reason": null,
                })],
                usage,
                false,
            )
        })
    }

    /// The chunks of a piece: none if it shows nothing. `usage`: the figures so far.
    pub(super) fn chunks(&self, piece: &Piece, usage: Usage, text: &dyn Text) -> Vec<Value> {
        if let Some(said) = &piece.said {
            return vec![self.chunk(vec![at(piece.choice, said)], usage, false)];
        }
        let mut chunks = Vec::new();
        let shows = !piece.text.is_empty() || !piece.logs.is_empty();
        match self.dialect {
            Dialect::Chat | Dialect::Responses => {
                if shows {
                    let choice = json!({
                        "index": piece.choice,
                        "delta": {"content": piece.text},
                        "logprobs": self.logprobs(&piece.logs, text),
                        "finish_reason": null,
                    });
                    chunks.push(self.chunk(vec![choice], usage, false));
                }
                for delta in piece
                    .calls
                    .iter()
                    .flat_map(|call| self.deltas(piece.choice, call))
                {
                    let choice = json!({
                        "index": piece.choice,
                        "delta": {"tool_calls": [delta]},
                        "logprobs": null,
                        "finish_reason": null,
                    });
                    chunks.push(self.chunk(vec![choice], usage, false));
                }
                if piece.finish.is_some() {
                    let choice = json!({
                        "index": piece.choice,
                        "delta": {},
                        "logprobs": null,
                        "finish_reason": reason(piece),
                    });
                    chunks.push(self.chunk(vec![choice], usage, false));
                }
            }
            Dialect::Completion if shows || piece.finish.is_some() => {
                let choice = json!({
                    "index": piece.choice,
                    "text": piece.text,
                    "logprobs": self.logprobs(&piece.logs, text),
                    "finish_reason": reason(piece),
                });
                chunks.push(self.chunk(vec![choice], usage, false));
            }
            Dialect::Completion => {}
        }
        chunks
    }

    /// The last chunk of a stream that was asked for its usage.
    pub(super) fn closing(&self, usage: Usage) -> Option<Value> {
        self.usage
            .at_the_end
            .then(|| self.chunk(Vec::new(), usage, true))
    }

    /// A whole answer; `pieces` has one merged piece for each choice, in order.
    pub(super) fn whole(&self, pieces: &[Piece], usage: Usage, text: &dyn Text) -> Value {
        if let (Some(echo), [piece]) = (&self.echo, pieces) {
            return echo.whole(piece, usage);
        }
        let choices = pieces
            .iter()
            .map(|piece| {
                if let Some(said) = &piece.said {
                    return at(piece.choice, said);
                }
                let logprobs = self.logprobs(&piece.logs, text);
                let finish = reason(piece);
                match self.dialect {
                    Dialect::Chat | Dialect::Responses => json!({
                        "index": piece.choice,
                        "message": self.message(piece),
                        "logprobs": logprobs,
                        "finish_reason": finish,
                    }),
                    Dialect::Completion => json!({
                        "index": piece.choice,
                        "text": piece.text,
                        "logprobs": logprobs,
                        "finish_reason": finish,
                    }),
                }
            })
            .collect();
        let kind = match self.dialect {
            Dialect::Chat | Dialect::Responses => "chat.completion",
            Dialect::Completion => "text_completion",
        };
        let mut map = self.object(kind, choices);
        map.insert("usage".into(), usage_json(usage));
        Value::Object(map)
    }

    fn message(&self, piece: &Piece) -> Value {
        let mut message = json!({"role": "assistant", "content": piece.text, "refusal": null});
        if piece.called {
            let calls = piece.calls.iter().map(|call| {
                json!({
                    "id": self.call_id(piece.choice, call),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            });
            message["tool_calls"] = calls.collect();
            if piece.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
    }

    /// A call in a stream: its name, then its arguments.
    fn deltas(&self, choice: u16, call: &Call) -> [Value; 2] {
        let begins = json!({
            "index": call.index,
            "id": self.call_id(choice, call),
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        });
        let arguments = json!({
            "index": call.index,
            "function": {"arguments": call.arguments},
        });
        [begins, arguments]
    }

    fn call_id(&self, choice: u16, call: &Call) -> String {
        call_id(&self.id, choice, call.index, self.short_ids)
    }

    fn logprobs(&self, logs: &[TokenLog], text: &dyn Text) -> Value {
        if !self.logs {
            return Value::Null;
        }
        match self.dialect {
            Dialect::Chat | Dialect::Responses => chat_logprobs(logs, text),
            Dialect::Completion => completion_logprobs(logs, text),
        }
    }
}

/// The same whenever it is asked for, and no other call's. Mistral's templates take nine characters.
pub(super) fn call_id(answer: &str, choice: u16, index: usize, short: bool) -> String {
    let name = format!("{answer} {choice} {index}");
    let hash = blake3::hash(name.as_bytes()).to_hex();
    match short {
        true => hash[..9].to_owned(),
        false => format!("call_{}", &hash[..24]),
    }
}

/// A choice as the engine has written it, at its place among ours.
fn at(choice: u16, said: &Value) -> Value {
    let mut map = Map::new();
    map.insert("index".into(), json!(choice));
    map.extend(said.as_object().cloned().unwrap_or_default());
    Value::Object(map)
}

fn reason(piece: &Piece) -> Option<&'static str> {
    Some(match piece.finish? {
        Finish::Stop if piece.called => "tool_calls",
        Finish::Stop => "stop",
        Finish::Length => "length",
    })
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": u64::from(usage.prompt) + u64::from(usage.completion),
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}

fn chat_logprobs(logs: &[TokenLog], text: &dyn Text) -> Value {
    let one = |id: u32, logprob: Option<f32>| {
        let bytes = text.bytes(id);
        let mut map = Map::new();
        map.insert("token".into(), json!(String::from_utf8_lossy(&bytes)));
        map.insert("logprob".into(), json!(logprob));
        map.insert("bytes".into(), json!(bytes));
        map
    };
    let content: Vec<Value> = logs
        .iter()
        .map(|log| {
            let top: Vec<Value> = log
                .token
                .top
                .iter()
                .map(|&(id, logprob)| Value::Object(one(id, Some(logprob))))
                .collect();
            let mut map = one(log.token.id, log.token.logprob);
            map.insert("top_logprobs".into(), Value::Array(top));
            Value::Object(map)
        })
        .collect();
    json!({"content": content, "refusal": null})
}

fn completion_logprobs(logs: &[TokenLog], text: &dyn Text) -> Value {
    let shown = |id| token_key(&text.bytes(id));
    let top = |log: &TokenLog| -> Map<String, Value> {
        log.token
            .top
            .iter()
            .map(|&(id, logprob)| (shown(id), json!(logprob)))
            .collect()
    };
    json!({
        "tokens": logs.iter().map(|log| shown(log.token.id)).collect::<Vec<_>>(),
        "token_logprobs": logs.iter().map(|log| log.token.logprob).collect::<Vec<_>>(),
        "top_logprobs": logs.iter().map(top).collect::<Vec<_>>(),
        "text_offset": logs.iter().map(|log| log.offset).collect::<Vec<_>>(),
    })
}

/// A token as a key of a map: bytes that are not text are spelled out, as OpenAI does, so that two
/// such tokens do not become one key.
fn token_key(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let spelled: String = bytes.iter().map(|b| format!("\\x{b:02x}")).collect();
            format!("bytes:{spelled}")
        }
    }
}
