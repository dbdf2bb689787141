//! What is sent, and how answers are read: OpenAI's completions and chat, SGLang's `/generate`.

use crate::pieces::Pieces;
use serde_json::{Map, Value, json};

/// Which dialect a request is sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /generate` of SGLang.
    Generate,
}

impl Dialect {
    /// Its path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
            Self::Generate => "/generate",
        }
    }

    /// A greedy request.
    pub fn body(
        self,
        model: Option<&str>,
        prompt: &str,
        max_tokens: u32,
        stream: bool,
    ) -> Map<String, Value> {
        let body = match self {
            Self::Completions => json!({
                "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream,
            }),
            Self::Chat => json!({
                "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens,
                "temperature": 0, "stream": stream,
            }),
            Self::Generate => json!({
                "text": prompt, "stream": stream,
                "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0},
            }),
        };
        let Value::Object(mut body) = body else {
            unreachable!("written above as an object")
        };
        if self == Self::Generate {
            return body;
        }
        if let Some(model) = model {
            body.insert("model".to_owned(), json!(model));
        }
        if stream {
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        body
    }
}

impl Dialect {
    /// Fields with which an answer says more of what it was made of: log-probabilities and token ids.
    pub fn details(self, with_ids: bool) -> Map<String, Value> {
        let fields = match self {
            Self::Completions => json!({"logprobs": 2}),
            Self::Chat => json!({"logprobs": true, "top_logprobs": 2}),
            Self::Generate => json!({"return_logprob": true, "top_logprobs_num": 2,
                "return_text_in_logprobs": true}),
        };
        let Value::Object(mut fields) = fields else {
            unreachable!("written above as an object")
        };
        if with_ids && self != Self::Generate {
            fields.insert("return_token_ids".to_owned(), json!(true));
        }
        fields
    }
}

/// What an answer says, whatever its dialect and form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// The answer's text, of the first choice.
    pub text: String,
    /// Every text in it, joined piece by piece where it came in pieces: tool calls, reasoning,
    /// other choices, log-probabilities, error messages.
    pub everything: Vec<String>,
    /// Rows of numbers that may be token ids.
    pub ids: Vec<Vec<u64>>,
    /// Where it says that the prompt was cut: its words for it.
    pub truncated: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: Option<u64>,
    /// Of the prompt, from a cache.
    pub cached_tokens: Option<u64>,
    /// Why it ended.
    pub finish: Option<String>,
    /// The error's message, if it is one.
    pub error: Option<String>,
    /// vLLM's references to blocks, which a router hands on.
    pub transfer: Option<Value>,
    /// A stream that has begun and did not end with `[DONE]`.
    pub unfinished: bool,
    /// Not what the dialect says; why.
    pub garbage: Option<String>,
}

impl Said {
    /// Takes all that came in pieces.
    fn hold(&mut self, pieces: Pieces) {
        let places = [
            "/choices/0/text",
            "/choices/0/message/content",
            "/choices/0/delta/content",
            "/text",
        ];
        let text = places.iter().find_map(|it| pieces.text(it));
        self.text = text.cloned().unwrap_or_default();
        let (texts, ids) = pieces.into_all();
        self.everything.extend(texts);
        self.ids.extend(ids);
    }
}

/// Whether a field says that the prompt was cut, as an honest server that cuts does.
fn says_cut(value: &Value, depth: usize) -> Option<String> {
    const WORDS: [&str; 3] = ["truncat", "shorten", "was cut"];
    let cut = |text: &str| WORDS.iter().any(|it| text.to_lowercase().contains(it));
    let fields = value.as_object().filter(|_| depth < 4)?;
    fields.iter().find_map(|(name, field)| {
        let name = name.to_lowercase();
        match field {
            // Texts of the answer itself say nothing of the request.
            _ if name == "choices" || name == "text" || name == "error" => None,
            Value::Bool(true) if cut(&name) => Some(name),
            Value::Number(n) if cut(&name) && n.as_f64() > Some(0.0) => Some(format!("{name} {n}")),
            Value::String(text) if cut(text) => Some(text.clone()),
            Value::Array(all) => all.iter().find_map(|it| match it {
                Value::String(text) if cut(text) => Some(text.clone()),
                it => says_cut(it, depth + 1),
            }),
            field => says_cut(field, depth + 1),
        }
    })
}

/// Reads the body of an answer that is not a stream.
pub fn whole(body: &[u8]) -> Said {
    let mut said = Said::default();
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            let mut pieces = Pieces::default();
            pieces.take(&value);
            figures(&value, &mut said);
            said.hold(pieces);
        }
        Err(error) => {
            let text = String::from_utf8_lossy(body).into_owned();
            said.garbage = Some(format!("not JSON: {error}"));
            said.everything.push(text);
        }
    }
    said
}

/// Reads a stream of events that has ended.
pub fn stream(body: &[u8]) -> Said {
    let mut said = Said {
        unfinished: true,
        ..Said::default()
    };
    let mut pieces = Pieces::default();
    let text = String::from_utf8_lossy(body);
    for line in text.lines() {
        let Some(data) = line.strip_prefix("data:").map(str::trim) else {
            if !line.trim().is_empty() && !line.starts_with(':') && !line.starts_with("event:") {
                said.everything.push(line.to_owned());
            }
            continue;
        };
        if data == "[DONE]" {
            said.unfinished = false;
            continue;
        }
        match serde_json::from_str::<Value>(data) {
            Ok(value) => {
                pieces.take(&value);
                figures(&value, &mut said);
            }
            Err(error) => {
                said.garbage
                    .get_or_insert_with(|| format!("an event that is not JSON: {error}"));
                said.everything.push(data.to_owned());
            }
        }
    }
    said.hold(pieces);
    said
}

fn figures(value: &Value, said: &mut Said) {
    let number = |path: &str| value.pointer(path).and_then(Value::as_u64);
    let set = |slot: &mut Option<u64>, paths: [&str; 2]| {
        if let Some(it) = paths.into_iter().find_map(number) {
            *slot = Some(it);
        }
    };
    set(
        &mut said.prompt_tokens,
        ["/usage/prompt_tokens", "/meta_info/prompt_tokens"],
    );
    set(
        &mut said.completion_tokens,
        ["/usage/completion_tokens", "/meta_info/completion_tokens"],
    );
    set(
        &mut said.cached_tokens,
        [
            "/usage/prompt_tokens_details/cached_tokens",
            "/meta_info/cached_tokens",
        ],
    );
    let text = |path: &str| {
        value
            .pointer(path)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let finish = text("/choices/0/finish_reason").or_else(|| text("/meta_info/finish_reason/type"));
    if finish.is_some() {
        said.finish = finish;
    }
    if let Some(cut) = says_cut(value, 0) {
        said.truncated = Some(cut);
    }
    if let Some(transfer) = value.get("kv_transfer_params").filter(|it| it.is_object()) {
        said.transfer = Some(transfer.clone());
    }
    let error = text("/error/message")
        .or_else(|| text("/error"))
        .or_else(|| {
            let is_error = value.get("object").and_then(Value::as_str) == Some("error");
            is_error.then(|| text("/message")).flatten()
        });
    if error.is_some() {
        said.error = error;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_cut_across_events_is_one_text() {
        let said = stream(
            b"data: {\"choices\":[{\"index\":0,\"text\":\"aban\"}]}\n\n: ping\n\n\
              data: {\"choices\":[{\"index\":0,\"text\":\"don ability\",\"finish_reason\":\"stop\"}]}\n\n\
              data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n\
              data: [DONE]\n\n",
        );
        assert_eq!(said.text, "abandon ability");
        assert_eq!(
            (said.prompt_tokens, said.finish.as_deref()),
            (Some(7), Some("stop"))
        );
        assert!(!said.unfinished && said.garbage.is_none());
    }

    #[test]
    fn choices_tool_calls_reasoning_and_logprobs_are_looked_at_each_for_itself() {
        let said = whole(
            br#"{"choices":[{"index":0,"message":{"content":"zero","reasoning_content":"think",
            "tool_calls":[{"index":0,"function":{"arguments":"{\"a\":\"tool\"}"}}]},
            "logprobs":{"content":[{"token":"one"},{"token":" two"}]}},
            {"index":1,"message":{"content":"other"}}],"usage":{"prompt_tokens":1}}"#,
        );
        assert_eq!(said.text, "zero");
        for text in ["think", "{\"a\":\"tool\"}", "one two", "other"] {
            assert!(
                said.everything.iter().any(|it| it == text),
                "{text}: {said:?}"
            );
        }
    }

    #[test]
    fn sglang_sends_the_whole_text_so_far() {
        let said = stream(
            b"data: {\"text\":\"ab\",\"meta_info\":{\"prompt_tokens\":3}}\n\n\
              data: {\"text\":\"abandon\",\"meta_info\":{\"prompt_tokens\":3,\"finish_reason\":{\"type\":\"length\"}}}\n\n\
              data: [DONE]\n\n",
        );
        assert_eq!(
            (said.text.as_str(), said.prompt_tokens),
            ("abandon", Some(3))
        );
        assert_eq!(said.finish.as_deref(), Some("length"));
    }

    #[test]
    fn errors_and_garbage() {
        let said = whole(br#"{"error":{"message":"too long","code":400}}"#);
        assert_eq!(said.error.as_deref(), Some("too long"));
        let said = whole(br#"{"object":"error","message":"no","code":400}"#);
        assert_eq!(said.error.as_deref(), Some("no"));
        let said = whole(b"<html>abandon</html>");
        assert!(said.garbage.is_some() && said.everything[0].contains("abandon"));
        let said =
            stream(b"data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: {'error': x}\n\n");
        assert!(said.unfinished && said.garbage.is_some());
        assert_eq!(said.text, "a");
    }
}
