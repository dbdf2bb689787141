//! What a request's body says, in any of the dialects.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::tokens;

/// The prompt as it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Prompt {
    #[default]
    None,
    Text(String),
    Ids(Vec<u32>),
}

impl Prompt {
    pub(crate) fn ids(&self) -> Vec<u32> {
        match self {
            Self::None => Vec::new(),
            Self::Text(text) => tokens::encode(text),
            Self::Ids(ids) => ids.clone(),
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Text(text) => text.clone(),
            Self::Ids(ids) => tokens::decode(ids),
        }
    }
}

/// A request that generates, aborts or counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) prompt: Prompt,
    pub(crate) model: Option<String>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    /// vLLM's completions: token ids beside the text.
    pub(crate) token_ids: bool,
    /// It may call tools, and does.
    pub(crate) tools: bool,
    pub(crate) rid: Option<String>,
    pub(crate) room: Option<u64>,
    pub(crate) transfer: Option<Value>,
    pub(crate) abort_all: bool,
    pub(crate) request_ids: Vec<String>,
    pub(crate) fields: Vec<String>,
}

impl Ask {
    pub(crate) fn parse(body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }

    /// `kv_transfer_params.NAME`, a text.
    pub(crate) fn transfer_text(&self, name: &str) -> Option<&str> {
        self.transfer.as_ref()?.get(name)?.as_str()
    }

    pub(crate) fn transfer_flag(&self, name: &str) -> bool {
        let transfer = self.transfer.as_ref();
        transfer.is_some_and(|it| it.get(name) == Some(&Value::Bool(true)))
    }
}

impl<'de> Deserialize<'de> for Ask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Ask;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ask, A::Error> {
        let mut ask = Ask::default();
        while let Some(name) = map.next_key::<String>()? {
            read(&name, &mut map, &mut ask)?;
            ask.fields.push(name);
        }
        Ok(ask)
    }
}

fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A, ask: &mut Ask) -> Result<(), A::Error> {
    match name {
        "input_ids" | "token_ids" | "text" | "prompt" | "content" => {
            if let Some(prompt) = map.next_value::<Option<Given>>()? {
                ask.prompt = prompt.into();
            }
        }
        "messages" => {
            let messages: Vec<Message> = map.next_value()?;
            let all = messages.iter().map(|it| (it.role.as_str(), &*it.content.0));
            // SGLang: token ids that stand beside them are the prompt.
            if !matches!(ask.prompt, Prompt::Ids(_)) {
                ask.prompt = Prompt::Text(tokens::chat(all));
            }
        }
        "max_tokens" | "max_completion_tokens" | "n_predict" => {
            let most = map.next_value::<Value>()?;
            ask.max_tokens = number(&most).or(ask.max_tokens);
        }
        "sampling_params" => {
            let sampling: Value = map.next_value()?;
            let most = ["max_new_tokens", "max_tokens"];
            let most = most.iter().find_map(|it| number(sampling.get(it)?));
            ask.max_tokens = most.or(ask.max_tokens);
        }
        "stream" => ask.stream = map.next_value::<Value>()? == Value::Bool(true),
        "return_token_ids" => ask.token_ids = map.next_value::<Value>()? == Value::Bool(true),
        "stream_options" => {
            let options: Value = map.next_value()?;
            let on = |name| options.get(name) == Some(&Value::Bool(true));
            ask.include_usage = on("include_usage");
            ask.continuous_usage = on("continuous_usage_stats");
        }
        "tools" => ask.tools = !map.next_value::<Value>()?.is_null(),
        "model" => ask.model = text(&map.next_value()?),
        "rid" | "request_id" => ask.rid = text(&map.next_value()?).or(ask.rid.take()),
        "bootstrap_room" => ask.room = number(&map.next_value()?),
        "kv_transfer_params" => ask.transfer = map.next_value()?,
        "abort_all" => ask.abort_all = map.next_value::<Value>()? == Value::Bool(true),
        "request_ids" => {
            let ids: Value = map.next_value()?;
            let ids = ids.as_array().into_iter().flatten();
            ask.request_ids = ids.filter_map(text).collect();
        }
        _ => {
            map.next_value::<IgnoredAny>()?;
        }
    }
    Ok(())
}

/// A number, or the first of a list of them, as batches have it.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Array(list) => number(list.first()?),
        value => value.as_u64().or(value.as_f64().map(|it| it as u64)),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Array(list) => text(list.first()?),
        value => value.as_str().map(str::to_owned),
    }
}

/// A prompt: text, ids, or a list with one of these.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Ids(Vec<u32>),
    Text(String),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

impl From<Given> for Prompt {
    fn from(given: Given) -> Self {
        match given {
            Given::Ids(ids) => Self::Ids(ids),
            Given::Text(text) => Self::Text(text),
            Given::Texts(texts) => Self::Text(texts.into_iter().next().unwrap_or_default()),
            Given::Lists(lists) => Self::Ids(lists.into_iter().next().unwrap_or_default()),
        }
    }
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Content,
}

/// A message's text; of its parts, the text.
#[derive(Default)]
struct Content(String);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Contents)
    }
}

struct Contents;

impl<'de> Visitor<'de> for Contents {
    type Value = Content;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("text, or parts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Content, E> {
        Ok(Content(text))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let mut text = String::new();
        while let Some(part) = parts.next_element::<Value>()? {
            text.push_str(part.get("text").and_then(Value::as_str).unwrap_or_default());
        }
        Ok(Content(text))
    }
}
