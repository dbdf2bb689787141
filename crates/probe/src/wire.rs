//! What is sent, and how answers are read: OpenAI's completions and chat, SGLang's `/generate`.

use crate::pieces::Pieces;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

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
    /// And the status that it names, be it in an answer with 200: a stream has begun when it comes.
    pub code: Option<u16>,
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

/// What some write before a text to say that it is UTF-8.
pub(crate) const MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads the body of an answer that is not a stream.
pub fn whole(body: &[u8]) -> Said {
    let mut said = Said::default();
    let body = body.strip_prefix(MARK).unwrap_or(body);
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
    let text = String::from_utf8_lossy(body.strip_prefix(MARK).unwrap_or(body));
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    // What is no data may hold a text too: comments, names of events, their numbers.
    let mut beside: BTreeMap<&str, String> = BTreeMap::new();
    let mut event = String::new();
    for line in text.split('\n').chain([""]) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        match field {
            "data" => event = format!("{event}{}\n", value.trim()),
            "" | "event" | "id" | "retry" if !value.is_empty() => {
                *beside.entry(field).or_default() += &format!("{} ", value.trim());
            }
            _ if !line.trim().is_empty() => {
                *beside.entry("line").or_default() += &format!("{line}\n")
            }
            _ => take(&std::mem::take(&mut event), &mut pieces, &mut said),
        }
    }
    said.everything.extend(beside.into_values());
    said.hold(pieces);
    said
}

/// An event: one value over all its lines, as the standard has it, or, as some send it, one in each.
fn take(event: &str, pieces: &mut Pieces, said: &mut Said) {
    let whole = serde_json::from_str(event).ok();
    let lines = event.lines().filter(|_| whole.is_none());
    let values: Vec<Result<Value, &str>> = match &whole {
        Some(value) => vec![Ok(Value::clone(value))],
        None => lines
            .map(|it| serde_json::from_str(it).map_err(|_| it))
            .collect(),
    };
    for value in values {
        match value {
            Ok(value) => {
                pieces.take(&value);
                figures(&value, said);
            }
            Err("[DONE]") => said.unfinished = false,
            Err("") => {}
            Err(data) => {
                said.garbage
                    .get_or_insert_with(|| "an event that is not JSON".to_owned());
                said.everything.push(data.to_owned());
            }
        }
    }
}

/// Where answers say how much of their prompt was computed before: OpenAI, SGLang, and others.
const CACHED: [&str; 8] = [
    "/usage/prompt_tokens_details/cached_tokens",
    "/meta_info/cached_tokens",
    "/usage/input_tokens_details/cached_tokens",
    "/usage/cached_tokens",
    "/usage/num_cached_tokens",
    "/usage/prompt_cache_hit_tokens",
    "/usage/cache_read_input_tokens",
    "/timings/cache_n",
];

fn figures(value: &Value, said: &mut Said) {
    let number = |path: &str| value.pointer(path).and_then(Value::as_u64);
    let set = |slot: &mut Option<u64>, paths: &[&str]| {
        if let Some(it) = paths.iter().find_map(|it| number(it)) {
            *slot = Some(it);
        }
    };
    set(
        &mut said.prompt_tokens,
        &["/usage/prompt_tokens", "/meta_info/prompt_tokens"],
    );
    set(
        &mut said.completion_tokens,
        &["/usage/completion_tokens", "/meta_info/completion_tokens"],
    );
    set(&mut said.cached_tokens, &CACHED);
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
    if let Some(error) = error.filter(|it| !it.is_empty()) {
        said.error = Some(error);
        let code = ["/error/code", "/error/status", "/code", "/status"];
        let code = code.iter().find_map(|it| match value.pointer(it)? {
            Value::String(text) => text.parse().ok(),
            it => it.as_u64()?.try_into().ok(),
        });
        said.code = code.filter(|it| (400..600).contains(it));
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
    fn what_stands_beside_the_data_of_events_is_looked_at() {
        let said = stream(
            b"\xef\xbb\xbf: abandon ability\r\nevent: able\r\ndata: {\"choices\":\r\n\
              data: [{\"index\":0,\"text\":\"x\"}]}\r\n\r\n: able about\r\nevent:above\r\nid: 7\r\n\
              data: {\"usage\":{\"prompt_tokens\":7}}\r\ndata: [DONE]\r\n",
        );
        assert!(!said.unfinished && said.garbage.is_none(), "{said:?}");
        assert_eq!((said.text.as_str(), said.prompt_tokens), ("x", Some(7)));
        for text in ["abandon ability able about", "able above"] {
            let found = said.everything.iter().any(|it| it.trim() == text);
            assert!(found, "{text}: {said:?}");
        }
    }

    #[test]
    fn cached_tokens_have_many_names() {
        for path in CACHED {
            let mut parts = path.trim_start_matches('/').rsplit('/');
            let value = parts.clone().count();
            let field = parts.next().unwrap();
            let value = parts.fold(json!({ field: value }), |all, it| json!({ it: all }));
            let said = whole(value.to_string().as_bytes());
            assert!(said.cached_tokens.is_some(), "{path}");
        }
    }

    #[test]
    fn errors_and_garbage() {
        let said = whole("\u{feff}{\"error\":{\"message\":\"busy\",\"code\":\"503\"}}".as_bytes());
        assert_eq!(
            (said.error.as_deref(), said.code),
            (Some("busy"), Some(503))
        );
        let said = whole(br#"{"error":"","choices":[{"text":"a"}]}"#);
        assert_eq!((said.error, said.text.as_str()), (None, "a"));
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
