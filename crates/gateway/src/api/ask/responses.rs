//! `POST /v1/responses`, the part of it that stores nothing: the same request in the words of a chat.

use serde_json::{Map, Value, json};

use super::{Fields, invalid, unsupported};
use crate::engine::Fault;

/// What the chat calls a field, and what it is called here: for whoever is refused.
const NAMES: &[(&str, &str)] = &[
    ("messages", "input"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    (".function.", "."),
];

const STORED: &str = "answers are not stored; send the whole conversation as `input`, and `store` as \
                      false or not at all";
const ELSEWHERE: &str = "there is no such thing here; leave it out";

/// Parts of items that no answer here has, so that it is whole with all of them.
const OF_OTHER_ITEMS: &[&str] = &[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];

/// Fields that are the same in a chat.
const SAME: &[&str] = &[
    "model",
    "temperature",
    "top_p",
    "stream",
    "parallel_tool_calls",
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "moderation",
    "service_tier",
    // Not OpenAI's: as in a chat.
    "seed",
    "cache_salt",
    "top_k",
    "min_p",
    "stop",
    "chat_template_kwargs",
];

/// The fields of the chat that asks for the same.
///
/// # Errors
/// A field asks for what is stored, or is none.
pub(super) fn as_chat(fields: &mut Fields) -> Result<Fields, Fault> {
    for key in ["previous_response_id", "conversation", "prompt"] {
        if fields.take(key).is_some() {
            return Err(unsupported(key, STORED));
        }
    }
    for (key, why) in [
        ("store", STORED),
        (
            "background",
            "send the request and wait for its answer; leave it out",
        ),
    ] {
        if fields.flag(key)?.unwrap_or(false) {
            return Err(unsupported(key, why));
        }
    }
    let fine = [
        ("top_logprobs", json!(0)),
        ("stream_options", json!({"include_obfuscation": false})),
    ];
    for (key, fine) in fine {
        if fields.take(key).is_some_and(|value| value != fine) {
            return Err(unsupported(key, ELSEWHERE));
        }
    }
    // With "auto" as well nothing is cut: what does not fit is refused.
    if !matches!(
        fields.text("truncation")?.as_deref(),
        None | Some("auto" | "disabled")
    ) {
        return Err(invalid("truncation", "\"auto\" or \"disabled\""));
    }
    let included = fields.take("include").unwrap_or_else(|| json!([]));
    let known = |part: &Value| part.as_str().is_some_and(|it| OF_OTHER_ITEMS.contains(&it));
    if !included.as_array().is_some_and(|it| it.iter().all(known)) {
        return Err(unsupported("include", ELSEWHERE));
    }
    if fields.take("max_tool_calls").is_some() {
        return Err(unsupported("max_tool_calls", ELSEWHERE));
    }
    let mut chat = Map::new();
    for key in SAME {
        chat.extend(fields.take(key).map(|value| ((*key).to_owned(), value)));
    }
    chat.extend(
        fields
            .take("max_output_tokens")
            .map(|it| ("max_tokens".to_owned(), it)),
    );
    if let Some(mut reasoning) = fields.object("reasoning")? {
        let effort = reasoning.take("effort");
        chat.extend(effort.map(|it| ("reasoning_effort".to_owned(), it)));
        reasoning.take("summary"); // of thoughts, which are a part of the text
        reasoning.take("generate_summary");
        reasoning.finish()?;
    }
    if let Some(mut text) = fields.object("text")? {
        let format = text.take("format");
        chat.extend(format.map(|it| ("response_format".to_owned(), response_format(it))));
        chat.extend(
            text.take("verbosity")
                .map(|it| ("verbosity".to_owned(), it)),
        );
        text.finish()?;
    }
    if let Some(tools) = fields.take("tools") {
        chat.insert("tools".into(), nested(tools)?);
    }
    if let Some(choice) = fields.take("tool_choice") {
        chat.insert("tool_choice".into(), tool_choice(choice));
    }
    let instructions = fields.text("instructions")?;
    chat.insert(
        "messages".into(),
        messages(instructions, fields.take("input"))?,
    );
    Ok(Fields::of(chat, ""))
}

/// What an answer repeats: each as it was asked for, or as it was understood.
pub(super) fn repeated(fields: &Fields) -> Value {
    let usual = json!({
        "instructions": null, "tools": [], "tool_choice": "auto", "parallel_tool_calls": true,
        "temperature": 1.0, "top_p": 1.0, "max_output_tokens": null, "metadata": {},
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": null, "summary": null},
    });
    let each = usual.as_object().into_iter().flatten();
    let asked = each.map(|(name, usual)| {
        let value = fields.look(name).unwrap_or(usual);
        (name.clone(), value.clone())
    });
    Value::Object(asked.collect())
}

/// The same fault, in the words of who asked.
pub(crate) fn in_these_words(mut fault: Fault) -> Fault {
    let Some(param) = fault.param.take() else {
        return fault;
    };
    let mut named = param.to_string();
    for (chat, here) in NAMES {
        named = match named.strip_prefix(chat) {
            Some(rest) if !chat.starts_with('.') => format!("{here}{rest}"),
            _ if chat.starts_with('.') => named.replace(chat, here),
            _ => named,
        };
    }
    fault.message = fault.message.replace(&*param, &named);
    fault.on(named)
}

/// `{"type": "json_schema", "name": …, "schema": …}` has its name and schema one level higher here.
fn response_format(format: Value) -> Value {
    match format {
        Value::Object(mut map) if map.get("type").is_some_and(|it| it == "json_schema") => {
            map.shift_remove("type");
            json!({"type": "json_schema", "json_schema": map})
        }
        other => other,
    }
}

/// So has the choice among functions.
fn tool_choice(choice: Value) -> Value {
    let function = |it: &Value| match it.get("name").filter(|_| it["type"] == "function") {
        Some(name) => json!({"type": "function", "function": {"name": name}}),
        None => it.clone(),
    };
    match choice["tools"].as_array() {
        Some(tools) if choice["type"] == "allowed_tools" => {
            let tools: Vec<Value> = tools.iter().map(function).collect();
            let allowed = json!({"mode": choice["mode"], "tools": tools});
            json!({"type": "allowed_tools", "allowed_tools": allowed})
        }
        _ => function(&choice),
    }
}

/// So have functions.
fn nested(tools: Value) -> Result<Value, Fault> {
    let Value::Array(list) = tools else {
        return Ok(tools); // refused where tools are read
    };
    let nested = list.into_iter().enumerate().map(|(at, tool)| match tool {
        Value::Object(mut map) if map.get("type").is_some_and(|it| it == "function") => {
            map.shift_remove("type");
            Ok(json!({"type": "function", "function": map}))
        }
        _ => Err(unsupported(
            format!("tools[{at}].type"),
            "tools are functions of the client's own; send those alone",
        )),
    });
    Ok(Value::Array(nested.collect::<Result<_, _>>()?))
}

fn messages(instructions: Option<String>, input: Option<Value>) -> Result<Value, Fault> {
    let mut messages = Vec::new();
    messages.extend(instructions.map(|text| json!({"role": "system", "content": text})));
    match input {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for (at, item) in items.into_iter().enumerate() {
                add(&mut messages, at, item)?;
            }
        }
        _ => return Err(invalid("input", "a text or a list of items")),
    }
    Ok(Value::Array(messages))
}

/// An item as a message; calls belong to the message of the assistant that makes them.
fn add(messages: &mut Vec<Value>, at: usize, item: Value) -> Result<(), Fault> {
    let wrong = |expected: &str| invalid(format!("input[{at}]"), expected);
    let Value::Object(map) = item else {
        return Err(wrong("an item {\"role\": …, \"content\": …}"));
    };
    let mut item = Fields::of(map, format!("input[{at}]."));
    for label in ["id", "status", "phase"] {
        item.take(label); // of what was said, and nothing that a model reads
    }
    let kind = item.text("type")?;
    match kind.as_deref() {
        None | Some("message") => {
            let role = item.text("role")?.unwrap_or_default();
            if !["system", "developer", "user", "assistant"].contains(&role.as_str()) {
                return Err(invalid(
                    item.name("role"),
                    "system, developer, user or assistant",
                ));
            }
            let content = said(&mut item, at, "content")?;
            messages.push(json!({"role": role, "content": content}));
        }
        Some("function_call") => {
            let mut text = |key: &str| {
                let text = item.text(key)?;
                text.ok_or_else(|| invalid(item.name(key), "a string"))
            };
            let (id, name, arguments) = (text("call_id")?, text("name")?, text("arguments")?);
            let function = json!({"name": name, "arguments": arguments});
            let call = json!({"id": id, "type": "function", "function": function});
            let last = messages
                .last_mut()
                .filter(|last| last["role"] == "assistant");
            match last {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => messages.push(json!({
                    "role": "assistant", "content": "", "tool_calls": [call],
                })),
            }
        }
        Some("function_call_output") => {
            let content = said(&mut item, at, "output")?;
            messages.push(json!({
                "role": "tool", "tool_call_id": item.text("call_id")?, "content": content,
            }));
        }
        Some(_) => {
            let why = "items are messages, calls of functions and what came of them; leave it out";
            return Err(unsupported(item.name("type"), why));
        }
    }
    item.finish()
}

fn said(item: &mut Fields, at: usize, key: &str) -> Result<Value, Fault> {
    match item.take(key) {
        Some(Value::String(text)) => Ok(Value::String(text)),
        Some(Value::Array(parts)) => Ok(Value::Array(texts(at, parts)?)),
        _ => Err(invalid(item.name(key), "a string or a list of text parts")),
    }
}

fn texts(at: usize, parts: Vec<Value>) -> Result<Vec<Value>, Fault> {
    let is_text = |part: &Map<String, Value>| {
        let kind = part.get("type").and_then(Value::as_str);
        matches!(kind, Some("input_text" | "output_text" | "text"))
            && part.get("text").is_some_and(Value::is_string)
    };
    let part = |(n, part): (usize, Value)| {
        let name = format!("input[{at}].content[{n}]");
        let Value::Object(map) = part else {
            return Err(invalid(name, "{\"type\": \"input_text\", \"text\": …}"));
        };
        if !is_text(&map) {
            let why = "input is text only; send parts of type input_text";
            return Err(unsupported(name, why));
        }
        let mut part = Fields::of(map, format!("{name}."));
        let text = part.take("text");
        // Of what was said, and hints for another provider's cache.
        for label in ["type", "annotations", "logprobs", "prompt_cache_breakpoint"] {
            part.take(label);
        }
        part.finish()?;
        Ok(json!({"type": "text", "text": text}))
    };
    parts.into_iter().enumerate().map(part).collect()
}
