use serde_json::Value;

use super::{Fields, Input, invalid, unsupported};
use crate::api::text::ChatMessage;
use crate::engine::Fault;

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 4096;

pub fn input(fields: &mut Fields) -> Result<Input, Fault> {
    let value = fields
        .take("messages")
        .ok_or_else(|| invalid("messages", LIST))?;
    messages(value).map(Input::Chat)
}

const LIST: &str = "a list of 1 to 4096 messages {\"role\": …, \"content\": …}";

/// Reads a conversation: known roles, text only.
///
/// # Errors
/// A fault naming the message and field that cannot be served.
pub fn messages(value: Value) -> Result<Vec<ChatMessage>, Fault> {
    match value {
        Value::Array(list) if (1..=MAX_MESSAGES).contains(&list.len()) => list
            .into_iter()
            .enumerate()
            .map(|(i, value)| message(i, value))
            .collect(),
        _ => Err(invalid("messages", LIST)),
    }
}

fn message(index: usize, value: Value) -> Result<ChatMessage, Fault> {
    let Value::Object(map) = value else {
        return Err(invalid(format!("messages[{index}]"), "an object"));
    };
    let mut fields = Fields::of(map, format!("messages[{index}]."));
    let role = match fields.text("role")?.as_deref() {
        // OpenAI's newer name of the same role.
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool" | "function") => {
            return Err(unsupported(
                fields.name("role"),
                "tool calls are not implemented",
            ));
        }
        _ => {
            return Err(invalid(
                fields.name("role"),
                "system, developer, user or assistant",
            ));
        }
    };
    for (key, why) in [
        ("name", "speakers are told apart by role only"),
        ("tool_calls", "tool calls are not implemented"),
        ("tool_call_id", "tool calls are not implemented"),
        ("function_call", "function calls are not implemented"),
        ("audio", "input is text only"),
    ] {
        if let Some(value) = fields.take(key)
            && !super::empty(&value)
        {
            return Err(unsupported(fields.name(key), why));
        }
    }
    let name = fields.name("content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts
            .into_iter()
            .enumerate()
            .map(|(part, value)| text_part(format!("{name}[{part}]"), value))
            .collect::<Result<Vec<_>, _>>()?
            .concat(),
        _ => return Err(invalid(name, "a string or a list of text parts")),
    };
    fields.finish()?;
    Ok(ChatMessage { role, content })
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
    fields.finish()?;
    Ok(text)
}

/// `logprobs: true` switches log-probabilities on, `top_logprobs` says how many alternatives.
pub fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Fault> {
    let on = fields.flag("logprobs")?.unwrap_or(false);
    match fields.whole("top_logprobs", 0, 20)? {
        Some(n) if n > 0 && !on => Err(invalid(
            "top_logprobs",
            "`logprobs` to be true where this is set",
        )),
        top => Ok(on.then(|| top.unwrap_or(0) as u8)),
    }
}
