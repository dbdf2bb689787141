//! `/v1/chat/completions` and `/v1/completions`, in each engine's accent.

use crate::engine::Dialect;
use crate::tokens::decode;

use super::{Shape, Spoken, quoted};

impl Spoken {
    pub(super) fn openai_whole(&self) -> String {
        let text = quoted(&decode(&self.ids));
        let finish = self.finish_name();
        let (text, calls) = match self.tools {
            true => ("null".to_owned(), self.call(&text, true)),
            false => (text, String::new()),
        };
        let choice = match (self.shape, self.dialect) {
            (Shape::Chat, Dialect::Sglang) => format!(
                r#""message":{{"role":"assistant","content":{text},"reasoning_content":null{calls}}},"logprobs":null,"finish_reason":"{finish}","matched_stop":null"#
            ),
            (Shape::Chat, Dialect::Vllm) => format!(
                r#""message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null{calls}}},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null"#
            ),
            (Shape::Chat, Dialect::Llama) => {
                format!(
                    r#""finish_reason":"{finish}","message":{{"role":"assistant","content":{text}}}"#
                )
            }
            (_, Dialect::Vllm) => format!(
                r#""text":{text},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":{},"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null"#,
                self.ids_beside(&self.ids)
            ),
            _ => format!(
                r#""text":{text},"logprobs":null,"finish_reason":"{finish}","matched_stop":null"#
            ),
        };
        let usage = self.usage_field(self.ids.len());
        let tail = self.openai_tail();
        let (id, model, created) = (&self.id, &self.model, self.created);
        let object = self.object(false);
        format!(
            r#"{{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":[{{"index":0,{choice}}}]{usage}{tail}}}"#
        )
    }

    fn openai_tail(&self) -> String {
        let n = self.ids.len();
        match self.dialect {
            Dialect::Sglang => format!(
                r#","metadata":{{"weight_version":"default","weight_versions":[{{"version":"default","start":0,"end":{n}}}]}}"#
            ),
            Dialect::Vllm => format!(
                r#","service_tier":null,"system_fingerprint":"vllm-0.32.0-b9511983","kv_transfer_params":{},"ec_transfer_params":null,"metrics":null"#,
                self.transfer.as_deref().unwrap_or("null")
            ),
            Dialect::Llama => r#","system_fingerprint":"b0-unknown""#.into(),
        }
    }

    fn object(&self, chunk: bool) -> &'static str {
        match (self.shape, chunk) {
            (Shape::Chat, false) => "chat.completion",
            (Shape::Chat, true) => "chat.completion.chunk",
            _ => "text_completion",
        }
    }

    pub(super) fn chat_role(&self) -> String {
        let delta = match self.dialect {
            Dialect::Sglang => r#""reasoning_content":null,"role":"assistant","content":"""#,
            _ => r#""role":"assistant","content":"""#,
        };
        self.openai_chunk(&self.chat_choice(delta, false), 0)
    }

    pub(super) fn chat_chunk(&self, ids: &[u32], said: usize, last: bool) -> String {
        let sglang = self.dialect == Dialect::Sglang;
        let mut delta = String::from(if sglang {
            r#""reasoning_content":null"#
        } else {
            ""
        });
        if !ids.is_empty() {
            let comma = if sglang { "," } else { "" };
            let text = quoted(&decode(ids));
            delta += &match self.tools {
                true => self.call(&text, said == ids.len())[usize::from(!sglang)..].to_owned(),
                false => format!(r#"{comma}"content":{text}"#),
            };
        }
        self.openai_chunk(&self.chat_choice(&delta, last), said)
    }

    /// A call of a tool with these words for arguments; its name goes with the first of them.
    fn call(&self, text: &str, first: bool) -> String {
        let name = match first {
            true => r#""id":"call_1","type":"function","function":{"name":"look","#,
            false => r#""function":{"#,
        };
        format!(r#","tool_calls":[{{"index":0,{name}"arguments":{text}}}}}]"#)
    }

    fn chat_choice(&self, delta: &str, last: bool) -> String {
        format!(r#""delta":{{{delta}}},{}"#, self.choice_end(last))
    }

    pub(super) fn text_chunk(&self, ids: &[u32], said: usize, last: bool) -> String {
        let text = quoted(&decode(ids));
        let beside = match self.dialect {
            Dialect::Vllm => format!(r#","token_ids":{}"#, self.ids_beside(ids)),
            _ => String::new(),
        };
        let end = self.choice_end(last);
        self.openai_chunk(&format!(r#""text":{text},{end}{beside}"#), said)
    }

    fn ids_beside(&self, ids: &[u32]) -> String {
        match self.token_ids {
            true => super::list(ids),
            false => "null".into(),
        }
    }

    fn choice_end(&self, last: bool) -> String {
        let finish = match last {
            true => format!("\"{}\"", self.finish_name()),
            false => "null".into(),
        };
        let stop = match self.dialect {
            Dialect::Sglang => "matched_stop",
            Dialect::Vllm => "stop_reason",
            Dialect::Llama => return format!(r#""finish_reason":{finish}"#),
        };
        format!(r#""logprobs":null,"finish_reason":{finish},"{stop}":null"#)
    }

    fn openai_chunk(&self, choice: &str, said: usize) -> String {
        let usage = match self.continuous_usage {
            true => self.usage_field(said),
            false => String::new(),
        };
        self.chunk_of(&format!(r#"{{"index":0,{choice}}}"#), &usage)
    }

    pub(super) fn usage_chunk(&self, said: usize) -> String {
        if self.shape == Shape::Tokens {
            let (id, usage) = (&self.id, self.usage_field(said));
            return format!(r#"{{"request_id":{id},"choices":[]{usage}}}"#);
        }
        self.chunk_of("", &self.usage_field(said))
    }

    fn chunk_of(&self, choices: &str, usage: &str) -> String {
        let (id, model, created) = (&self.id, &self.model, self.created);
        let object = self.object(true);
        format!(
            r#"{{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":[{choices}]{usage}}}"#
        )
    }

    /// `,"usage":{…}`, unless counts are kept back.
    pub(super) fn usage_field(&self, said: usize) -> String {
        if !self.counts {
            return String::new();
        }
        let cached = match (self.cached, self.dialect) {
            (0, Dialect::Sglang | Dialect::Vllm) => "null".to_owned(),
            (cached, _) => format!(r#"{{"cached_tokens":{cached}}}"#),
        };
        let more = match self.dialect {
            Dialect::Sglang => r#","reasoning_tokens":0,"completion_tokens_details":null"#,
            Dialect::Vllm => r#","completion_tokens_details":null"#,
            Dialect::Llama => "",
        };
        let details = format!(r#","prompt_tokens_details":{cached}{more}"#);
        let prompt = self.prompt_tokens;
        let total = prompt + said as u64;
        format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{said}{details}}}"#
        )
    }
}
