//! What an engine says, byte by byte: the shapes of the recordings.

mod openai;
mod refusal;
mod tokens;

use crate::engine::Dialect;

pub(crate) use refusal::{TooLong, over_length, refusal, too_long_for_pool};
pub(crate) use tokens::list;

/// Which endpoint's shape an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// SGLang's `/generate`.
    Generate,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
    /// vLLM's `/inference/v1/generate`.
    Tokens,
    /// llama.cpp's `/completion`.
    Completion,
}

/// Why an answer ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finish {
    Length,
    Stop,
    Abort {
        message: String,
        status: Option<u16>,
    },
}

/// An answer, and how to write it.
#[derive(Clone, Debug)]
pub(crate) struct Spoken {
    pub(crate) dialect: Dialect,
    pub(crate) shape: Shape,
    /// SGLang: chunks with their own part only.
    pub(crate) incremental: bool,
    /// JSON text, quoted.
    pub(crate) id: String,
    /// JSON text, quoted.
    pub(crate) model: String,
    pub(crate) created: u64,
    pub(crate) ids: Vec<u32>,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached: u64,
    /// Whether counts are said at all.
    pub(crate) counts: bool,
    /// SGLang's prefill says length 0 where it has said one token.
    pub(crate) length: usize,
    pub(crate) finish: Finish,
    /// vLLM's reference, as JSON.
    pub(crate) transfer: Option<String>,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    /// vLLM's completions: token ids beside the text.
    pub(crate) token_ids: bool,
    /// What it says are the arguments of a tool's call.
    pub(crate) tools: bool,
    /// Whether a stream says where it ends.
    pub(crate) done: bool,
}

impl Spoken {
    /// The whole answer.
    pub(crate) fn whole(&self) -> String {
        match self.shape {
            Shape::Generate => self.generate(self.ids.len(), true, &self.ids),
            Shape::Chat | Shape::Text => self.openai_whole(),
            Shape::Tokens => self.vllm_tokens(&self.ids, true),
            Shape::Completion => self.completion(&self.ids, true),
        }
    }

    /// What comes before the first token.
    pub(crate) fn opening(&self) -> Option<String> {
        (self.shape == Shape::Chat).then(|| event(&self.chat_role()))
    }

    /// The `n`-th token, from 0.
    pub(crate) fn chunk(&self, n: usize) -> String {
        let one = &self.ids[n..=n];
        // Where no chunk of its own ends the answer, the last token does.
        let last = n + 1 == self.ids.len();
        event(&match self.shape {
            Shape::Generate => {
                let said = if self.incremental {
                    one
                } else {
                    &self.ids[..=n]
                };
                self.generate(n + 1, last, said)
            }
            Shape::Chat => self.chat_chunk(one, n + 1, last && self.dialect != Dialect::Sglang),
            Shape::Text => self.text_chunk(one, n + 1, last),
            Shape::Tokens => self.vllm_tokens(one, last),
            Shape::Completion => self.completion(one, false),
        })
    }

    /// What comes behind the last token; `said` of them were.
    pub(crate) fn closing(&self, said: usize) -> String {
        let mut text = String::new();
        let ended =
            said > 0 && said == self.ids.len() && !matches!(self.finish, Finish::Abort { .. });
        match self.shape {
            Shape::Generate if !ended => {
                text += &event(&self.generate(said, true, &self.ids[..said]))
            }
            Shape::Chat if !ended || self.dialect == Dialect::Sglang => {
                text += &event(&self.chat_chunk(&[], said, true));
            }
            Shape::Text if !ended => text += &event(&self.text_chunk(&[], said, true)),
            Shape::Tokens if !ended => text += &event(&self.vllm_tokens(&[], true)),
            Shape::Completion => return event(&self.completion(&[], true)),
            _ => {}
        }
        if self.include_usage && self.counts && self.shape != Shape::Generate {
            text += &event(&self.usage_chunk(said));
        }
        if self.done {
            text += "data: [DONE]\n\n";
        }
        text
    }

    /// A stream that is nothing but an error, inside a 200.
    pub(crate) fn in_band(&self, message: &str) -> String {
        let message = quoted(message);
        let error = match (self.dialect, self.shape) {
            // An ordinary chunk, with the abort as its end.
            (Dialect::Sglang, Shape::Generate) => return self.closing(0),
            (Dialect::Sglang, _) => format!(
                r#"{{"error": {{"object": "error", "message": {message}, "type": "BAD_REQUEST", "param": null, "code": 400}}}}"#
            ),
            _ => format!(
                r#"{{"error":{{"message":{message},"type":"BadRequestError","param":null,"code":400}}}}"#
            ),
        };
        let usage = match self.include_usage {
            true => event(&self.usage_chunk(0)),
            false => String::new(),
        };
        event(&error) + &usage + "data: [DONE]\n\n"
    }

    /// What SGLang's tokenizer says to a `/generate` that streams.
    pub(crate) fn refused_in_stream(message: &str) -> String {
        let message = quoted(message);
        event(&format!(
            r#"{{"error":{{"message":{message},"type":"invalid_request_error","code":400,"retryable":false}}}}"#
        )) + "data: [DONE]\n\n"
    }

    fn finish_name(&self) -> &'static str {
        match self.finish {
            Finish::Length => "length",
            Finish::Stop if self.tools => "tool_calls",
            Finish::Stop => "stop",
            Finish::Abort { .. } => "abort",
        }
    }
}

fn event(data: &str) -> String {
    let mut text = String::with_capacity(data.len() + 8);
    text += "data: ";
    text += data;
    text += "\n\n";
    text
}

/// As a JSON text.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text")
}
