//! The tools that a model may call, and whether it must.

use serde_json::{Map, Value, json};

use super::{Fields, invalid};
use crate::engine::Fault;

/// Tools of one request, at most; and bytes of a tool's name.
const TOOLS_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 64;

/// The tools of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tools {
    /// As a template is shown them.
    pub shown: Value,
    /// Each by itself that may be called.
    pub list: Vec<Tool>,
    /// Which are to be called.
    pub choice: Choice,
    /// Whether several may be called in one answer.
    pub parallel: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    /// Its place in the request.
    pub at: usize,
    /// What the model calls it.
    pub name: String,
    /// The schema of its arguments: an object.
    pub parameters: Value,
}

/// Which tools are to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The model decides.
    Auto,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

impl Tools {
    /// Those that an answer must call one of; none if it need not call any.
    pub(crate) fn demanded(&self) -> Option<Vec<&Tool>> {
        let all = self.list.iter();
        match &self.choice {
            Choice::Auto => None,
            Choice::Required => Some(all.collect()),
            Choice::Named(name) => Some(all.filter(|tool| tool.name == *name).collect()),
        }
    }
}

/// Reads them; none if the model is to be told of none.
///
/// # Errors
/// A field that cannot be served.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Tools>, Fault> {
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let choice = fields.take("tool_choice");
    let list = match fields.take("tools") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.len() <= TOOLS_MAX => list,
        Some(_) => {
            return Err(invalid(
                "tools",
                format!("a list of at most {TOOLS_MAX} tools"),
            ));
        }
    };
    let choice = tool_choice(choice, list.is_empty())?;
    let tools = list.iter().enumerate().map(|(at, value)| tool(at, value));
    let mut tools = tools.collect::<Result<Vec<_>, _>>()?;
    for (at, tool) in tools.iter().enumerate() {
        if tools[..at].iter().any(|other| other.name == tool.name) {
            let param = format!("tools[{at}].function.name");
            return Err(invalid(param, "a name that no other tool has"));
        }
    }
    let Some((choice, allowed)) = choice.filter(|_| !tools.is_empty()) else {
        return Ok(None);
    };
    let named = match &choice {
        Choice::Named(name) => Some(name),
        _ => None,
    };
    let mut named = named.into_iter().chain(allowed.iter().flatten());
    if !named.all(|name| tools.iter().any(|tool| tool.name == *name)) {
        return Err(invalid("tool_choice", "the name of one of `tools`"));
    }
    if let Some(allowed) = allowed {
        tools.retain(|tool| allowed.contains(&tool.name));
    }
    Ok(Some(Tools {
        shown: Value::Array(list),
        list: tools,
        // A call of this one was asked for, not calls.
        parallel: parallel && !matches!(choice, Choice::Named(_)),
        choice,
    }))
}

/// Which are to be called, and the names of those that may be, where not all may.
type Chosen = (Choice, Option<Vec<String>>);

/// None: no tool is called, and the model is told of none.
fn tool_choice(value: Option<Value>, no_tools: bool) -> Result<Option<Chosen>, Fault> {
    let choice = match value {
        None => Some((Choice::Auto, None)),
        Some(Value::String(word)) if word == "none" => None,
        Some(Value::String(word)) => Some((mode(&word)?, None)),
        Some(value) if value["type"] == "allowed_tools" => {
            let allowed = &value["allowed_tools"];
            let choice = mode(allowed["mode"].as_str().unwrap_or_default())?;
            let names = allowed["tools"].as_array().ok_or_else(wrong)?;
            let names: Vec<String> = names.iter().map(named).collect::<Result<_, _>>()?;
            if names.is_empty() {
                return Err(wrong());
            }
            Some((choice, Some(names)))
        }
        Some(value) => Some((Choice::Named(named(&value)?), None)),
    };
    match choice {
        Some((choice, allowed)) if no_tools && (choice != Choice::Auto || allowed.is_some()) => {
            let expected = "`tools` to be set where this asks for a call";
            Err(invalid("tool_choice", expected))
        }
        choice => Ok(choice),
    }
}

fn wrong() -> Fault {
    let expected = "\"auto\", \"none\", \"required\", {\"type\": \"function\", \"function\": {\"name\": …}} \
                    or {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": …, \"tools\": […]}}";
    invalid("tool_choice", expected)
}

fn mode(word: &str) -> Result<Choice, Fault> {
    match word {
        "auto" => Ok(Choice::Auto),
        "required" => Ok(Choice::Required),
        _ => Err(wrong()),
    }
}

fn named(value: &Value) -> Result<String, Fault> {
    let function = value.get("type").is_none_or(|kind| kind == "function");
    let name = value["function"]["name"].as_str().filter(|_| function);
    name.map(str::to_owned).ok_or_else(wrong)
}

fn tool(at: usize, value: &Value) -> Result<Tool, Fault> {
    let expected = "{\"type\": \"function\", \"function\": {\"name\": …, \"parameters\": {…}}}";
    let wrong = || invalid(format!("tools[{at}]"), expected);
    let map = value.as_object().cloned().ok_or_else(wrong)?;
    let mut fields = Fields::of(map, format!("tools[{at}]."));
    if fields.text("type")?.as_deref() != Some("function") {
        return Err(invalid(fields.name("type"), "\"function\""));
    }
    let mut function = fields.object("function")?.ok_or_else(wrong)?;
    fields.finish()?;
    let name = function.text("name")?.ok_or_else(wrong)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        let expected = format!("1 to {NAME_BYTES_MAX} of letters, digits, `_`, `-` and `.`");
        return Err(invalid(function.name("name"), expected));
    }
    function.text("description")?;
    function.flag("strict")?;
    let parameters = match function.take("parameters") {
        None => json!({"type": "object", "properties": {}}),
        Some(Value::Object(map)) if map.is_empty() => json!({"type": "object"}),
        Some(Value::Object(map)) => of_object(map),
        Some(_) => return Err(invalid(function.name("parameters"), "a JSON schema")),
    };
    function.finish()?;
    Ok(Tool {
        at,
        name,
        parameters,
    })
}

/// Arguments are an object, whether the schema says so or not.
fn of_object(mut map: Map<String, Value>) -> Value {
    if !map.contains_key("type") && !map.contains_key("$ref") {
        map.insert("type".into(), "object".into());
    }
    Value::Object(map)
}
