use serde_json::{Map, Value};
use tokenizer::{Chat, Message, PromptEnding};

use super::{Fields, empty, invalid, unsupported};
use crate::api::calls;
use crate::api::strict_json::Texts;
use crate::api::text::Text;
use crate::engine::{Fault, TextPath};
use std::borrow::Cow;

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 4096;
/// Largest `chat_template_kwargs`, bytes as JSON; and the longest of its names.
const VARIABLES_BYTES_MAX: usize = 16 << 10;
const VARIABLE_BYTES_MAX: usize = 64;
/// What a template is rendered by elsewhere: as a variable one of these would tell an engine that takes
/// the variables over what to do.
const NO_VARIABLES: [&str; 12] = [
    "chat_template",
    "conversation",
    "continue_final_message",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer",
    "tokenizer_kwargs",
    "truncation",
];
/// What OpenAI and vLLM take as `reasoning_effort`.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

const LIST: &str = "a list of 1 to 4096 messages {\"role\": …, \"content\": …}";
const NO_TOOLS: &str = "tool calls are not carried out by these engines; write the call and what came of it as text \
                        into `content`";

/// A conversation as it was asked for, not yet seen by its template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Talk {
    /// The conversation.
    pub chat: Chat,
    /// How long the model is to think; also among the chat's variables.
    effort: Option<String>,
    /// Whether its prompt is written here, tools and all.
    ours: bool,
}

impl Talk {
    /// The conversation as the template is given it.
    pub(crate) fn told(&self, text: &dyn Text) -> Cow<'_, Chat> {
        let mut chat = Cow::Borrowed(&self.chat);
        if self.ours && !text.reads("tools") {
            calls::told(chat.to_mut());
        }
        chat
    }

    /// Refuses what this model's template cannot be told.
    ///
    /// # Errors
    /// A variable that is not the client's to set, or an effort that nothing would come of.
    pub(crate) fn judge(&self, text: &dyn Text) -> Result<(), Fault> {
        if let Some(name) = self.chat.variables.keys().find(|name| text.is_given(name)) {
            return Err(unsupported(
                format!("chat_template_kwargs.{name}"),
                "the template is given this by the server; leave it out",
            ));
        }
        match self.effort.as_deref() {
            None | Some("none") => Ok(()),
            Some(_) if text.reads(EFFORT) => Ok(()),
            Some(_) => Err(unsupported(
                EFFORT,
                "the chat template of this model does not read it; leave it out, or set what the \
                 template reads in `chat_template_kwargs`",
            )),
        }
    }
}

const EFFORT: &str = "reasoning_effort";

/// Reads a conversation and how its template is to write it.
///
/// # Errors
/// A fault naming the field that cannot be served.
pub(crate) fn talk(fields: &mut Fields, path: &TextPath) -> Result<Talk, Fault> {
    let list = fields
        .take("messages")
        .ok_or_else(|| invalid("messages", LIST))?;
    let mut variables = variables(fields)?;
    let effort = fields.text(EFFORT)?;
    if let Some(effort) = &effort {
        if !EFFORTS.contains(&effort.as_str()) {
            return Err(invalid(EFFORT, format!("one of {}", EFFORTS.join(", "))));
        }
        if variables
            .insert(EFFORT.to_owned(), effort.as_str().into())
            .is_some()
        {
            let expected = "to be set here or in `chat_template_kwargs`, not in both";
            return Err(invalid(EFFORT, expected));
        }
        if effort == "none" {
            // The switch of the templates that have one and think unless they are told.
            let switch = variables.entry("enable_thinking".to_owned());
            switch.or_insert(Value::Bool(false));
        }
    }
    let chat = Chat {
        ending: ending(fields)?,
        messages: messages(list, path.forms || path.fields.contains(&"tools"))?,
        variables,
        tools: None,
    };
    let ours = path.forms;
    Ok(Talk { chat, effort, ours })
}

fn ending(fields: &mut Fields) -> Result<PromptEnding, Fault> {
    let further = fields.flag("continue_final_message")?.unwrap_or(false);
    match fields.flag("add_generation_prompt")? {
        Some(true) if further => Err(invalid(
            "add_generation_prompt",
            "false where `continue_final_message` is true",
        )),
        _ if further => Ok(PromptEnding::Continue),
        Some(false) => Ok(PromptEnding::Closed),
        None | Some(true) => Ok(PromptEnding::Answer),
    }
}

/// What a template may be told beside the messages. Names are such as a template can read.
fn variables(fields: &mut Fields) -> Result<Map<String, Value>, Fault> {
    let key = "chat_template_kwargs";
    let expected = format!(
        "an object of at most {VARIABLES_BYTES_MAX} bytes, its names of letters, digits and `_` and \
         of at most {VARIABLE_BYTES_MAX} bytes"
    );
    let named = |name: &String| {
        let first = name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        let rest = name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
        first && rest && name.len() <= VARIABLE_BYTES_MAX
    };
    let value = fields.take(key);
    let names = value
        .iter()
        .filter_map(Value::as_object)
        .flat_map(Map::keys);
    if let Some(name) = { names }.find(|name| NO_VARIABLES.contains(&name.as_str())) {
        let why = "it says how a template is used, and is no variable of one; leave it out";
        return Err(unsupported(format!("{key}.{name}"), why));
    }
    match value {
        None => Ok(Map::new()),
        Some(Value::Object(map)) if map.keys().all(named) => {
            let value = Value::Object(map);
            let fits = value.to_string().len() <= VARIABLES_BYTES_MAX;
            match value {
                Value::Object(map) if fits => Ok(map),
                _ => Err(invalid(key, expected)),
            }
        }
        Some(_) => Err(invalid(key, expected)),
    }
}

/// Reads a conversation: known roles, text only. `tools`: calls of tools and their answers too.
fn messages(value: Value, tools: bool) -> Result<Vec<Message>, Fault> {
    let mut texts = Texts::default();
    match value {
        Value::Array(list) if (1..=MAX_MESSAGES).contains(&list.len()) => list
            .into_iter()
            .enumerate()
            .map(|(i, value)| message(i, value, tools, &mut texts))
            .collect(),
        _ => Err(invalid("messages", LIST)),
    }
}

fn message(index: usize, value: Value, tools: bool, texts: &mut Texts) -> Result<Message, Fault> {
    let Value::Object(map) = value else {
        return Err(invalid(format!("messages[{index}]"), "an object"));
    };
    let mut fields = Fields::of(map, format!("messages[{index}]."));
    let role = role(&mut fields, tools)?;
    let mut tool_calls = None;
    let mut tool_call_id = None;
    if tools && role == "assistant" {
        tool_calls = calls(&mut fields, texts)?;
    }
    if role == "tool" {
        tool_call_id = fields.text("tool_call_id")?;
    }
    for (key, why) in [
        ("tool_calls", NO_TOOLS),
        ("tool_call_id", NO_TOOLS),
        ("function_call", NO_TOOLS),
        ("audio", "input is text only"),
        ("refusal", "write its text into `content`"),
    ] {
        if let Some(value) = fields.take(key)
            && !empty(&value)
        {
            return Err(unsupported(fields.name(key), why));
        }
    }
    fields.take("annotations"); // where an answer's words came from: nothing that a model reads
    let message = Message {
        role: role.to_owned(),
        name: fields.text("name")?,
        reasoning: reasoning(&mut fields)?,
        content: content(&mut fields, role)?,
        tool_calls,
        tool_call_id,
    };
    fields.finish()?;
    Ok(message)
}

/// Calls of tools, as the assistant has made them. Their arguments are text in JSON; a template is
/// shown what they say, as engines do it.
fn calls(fields: &mut Fields, texts: &mut Texts) -> Result<Option<Value>, Fault> {
    let name = fields.name("tool_calls");
    let wrong = || {
        let form =
            "{\"id\": …, \"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}";
        invalid(name.clone(), format!("a list of calls {form}"))
    };
    let Some(value) = fields.take("tool_calls").filter(|it| !empty(it)) else {
        return Ok(None);
    };
    let Value::Array(mut calls) = value else {
        return Err(wrong());
    };
    for (at, call) in calls.iter_mut().enumerate() {
        // A template is shown it as it is, and may write all of it.
        let place = format!("{name}[{at}].");
        known_only(call, &["id", "type", "index", "function"], &place)?;
        let function = call.get_mut("function").ok_or_else(wrong)?;
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(wrong());
        }
        known_only(
            function,
            &["name", "arguments"],
            &format!("{place}function."),
        )?;
        if let Some(arguments) = function.get_mut("arguments")
            && let Some(said) = arguments.as_str()
        {
            let param = format!("{name}[{at}].function.arguments");
            if let Some(value) = texts.read(&param, said)? {
                *arguments = value;
            }
        }
    }
    Ok(Some(Value::Array(calls)))
}

/// Refuses what an object has beside these.
fn known_only(value: &Value, names: &[&str], path: &str) -> Result<(), Fault> {
    let all = value.as_object().into_iter().flatten();
    let others = all.filter(|(name, _)| !names.contains(&name.as_str()));
    let others = others.map(|(name, value)| (name.clone(), value.clone()));
    Fields::of(others.collect(), path).finish()
}

fn role(fields: &mut Fields, tools: bool) -> Result<&'static str, Fault> {
    match fields.text("role")?.as_deref() {
        // OpenAI's newer name of the same role.
        Some("system" | "developer") => Ok("system"),
        Some("user") => Ok("user"),
        Some("assistant") => Ok("assistant"),
        Some("tool") if tools => Ok("tool"),
        Some("tool" | "function") => Err(unsupported(fields.name("role"), NO_TOOLS)),
        _ => Err(invalid(
            fields.name("role"),
            "system, developer, user, assistant or tool",
        )),
    }
}

/// What a model thought before it spoke, under vLLM's old name or its new one.
fn reasoning(fields: &mut Fields) -> Result<Option<String>, Fault> {
    let [old, new] = ["reasoning_content", "reasoning"];
    match (fields.text(old)?, fields.text(new)?) {
        (Some(a), Some(b)) if a != b => Err(invalid(
            fields.name(new),
            "the same text as `reasoning_content`, or only one",
        )),
        (a, b) => Ok(a.or(b)),
    }
}

fn content(fields: &mut Fields, role: &str) -> Result<String, Fault> {
    let name = fields.name("content");
    match fields.take("content") {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => Ok(parts
            .into_iter()
            .enumerate()
            .map(|(part, value)| text_part(format!("{name}[{part}]"), value))
            .collect::<Result<Vec<_>, _>>()?
            .concat()),
        // How the answer of an assistant is spelled that said nothing.
        None if role == "assistant" => Ok(String::new()),
        _ => Err(invalid(name, "a string or a list of text parts")),
    }
}

fn text_part(name: String, value: Value) -> Result<String, Fault> {
    let Value::Object(map) = value else {
        return Err(invalid(name, "{\"type\": \"text\", \"text\": …}"));
    };
    let mut fields = Fields::of(map, format!("{name}."));
    match fields.text("type")?.as_deref() {
        Some("text") => {}
        Some(_) => return Err(unsupported(name, "input is text only")),
        None => return Err(invalid(fields.name("type"), "\"text\"")),
    }
    let text = fields
        .text("text")?
        .ok_or_else(|| invalid(fields.name("text"), "a string"))?;
    // Hints for another provider's cache.
    fields.take("cache_control");
    fields.take("prompt_cache_breakpoint");
    fields.finish()?;
    Ok(text)
}

/// `logprobs: true` switches log-probabilities on, `top_logprobs` says how many alternatives.
pub(super) fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Fault> {
    let on = fields.flag("logprobs")?.unwrap_or(false);
    match fields.whole("top_logprobs", 0, 20)? {
        Some(n) if n > 0 && !on => Err(invalid(
            "top_logprobs",
            "`logprobs` to be true where this is set",
        )),
        top => Ok(on.then(|| top.unwrap_or(0) as u8)),
    }
}
