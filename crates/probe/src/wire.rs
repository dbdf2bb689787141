//! What is sent, and how answers are read: OpenAI's completions and chat, SGLang's `/generate`.

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

/// What an answer says, whatever its dialect and form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// The answer's text, of the first choice.
    pub text: String,
    /// Every text in it, joined piece by piece where it came in pieces: tool calls, reasoning,
    /// other choices, log-probabilities, error messages.
    pub everything: Vec<String>,
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

/// Values nested deeper are not looked into.
const DEPTH_MAX: usize = 32;

/// Reads the body of an answer that is not a stream.
pub fn whole(body: &[u8]) -> Said {
    let mut said = Said::default();
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            let mut pieces = Pieces::default();
            pieces.take(&value);
            figures(&value, &mut said);
            pieces.into(&mut said);
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
    pieces.into(&mut said);
    said
}

/// Texts that come in pieces, by the path at which they stand.
#[derive(Default)]
struct Pieces(std::collections::BTreeMap<String, String>);

impl Pieces {
    fn take(&mut self, value: &Value) {
        self.at(String::new(), value, 0);
    }

    fn at(&mut self, path: String, value: &Value, depth: usize) {
        match value {
            Value::String(text) => {
                let joined = self.0.entry(path.clone()).or_default();
                // SGLang may send the whole text so far each time; others send what is new.
                match path == "/text" && text.starts_with(joined.as_str()) {
                    true => *joined = text.clone(),
                    false => joined.push_str(text),
                }
            }
            Value::Array(items) if depth < DEPTH_MAX => {
                for (n, item) in items.iter().enumerate() {
                    // Tokens of log-probabilities are one text, choices are not.
                    let own = item
                        .get("index")
                        .and_then(Value::as_u64)
                        .unwrap_or(n as u64);
                    let path = match path.rsplit('/').next() {
                        Some("choices" | "tool_calls") => format!("{path}/{own}"),
                        _ => format!("{path}/*"),
                    };
                    self.at(path, item, depth + 1);
                }
            }
            Value::Object(fields) if depth < DEPTH_MAX => {
                for (name, field) in fields {
                    self.at(format!("{path}/{name}"), field, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn into(self, said: &mut Said) {
        let places = [
            "/choices/0/text",
            "/choices/0/message/content",
            "/choices/0/delta/content",
            "/text",
        ];
        let text = places.iter().find_map(|it| self.0.get(*it));
        said.text = text.cloned().unwrap_or_default();
        said.everything.extend(self.0.into_values());
    }
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
