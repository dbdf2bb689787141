use std::borrow::Cow;

use minijinja::Value;
use serde_json::{Map, Value as Json};

/// The roles that a message may have. No others: templates build control tokens from them.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// One message of a chat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Who speaks: one of [`ROLES`]. The template may accept fewer.
    pub role: String,
    /// What is said: plain text, whatever it looks like.
    pub content: String,
    /// Which of several speakers of that role it is, for templates that tell them apart.
    pub name: Option<String>,
    /// What was thought before it was said, for templates that show it (as `reasoning_content`).
    pub reasoning: Option<String>,
    /// The calls of tools in it, as OpenAI writes them. Texts in them are as little trusted as contents
    /// are.
    pub tool_calls: Option<Json>,
    /// The call that it answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of this role and content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
            ..Message::default()
        }
    }

    /// Everything in it that is somebody's own words.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let own = [&self.name, &self.reasoning, &self.tool_call_id];
        let own = own.into_iter().filter_map(|text| text.as_deref());
        std::iter::once(self.content.as_str()).chain(own)
    }
}

/// Where a prompt stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PromptEnding {
    /// Where the assistant is to begin a turn of its own (`add_generation_prompt`).
    #[default]
    Answer,
    /// Behind the last message and whatever the template writes after it.
    Closed,
    /// With the last word of the last message, which is then continued.
    Continue,
}

/// A conversation, and how it is to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// What was said so far.
    pub messages: Vec<Message>,
    /// Where the prompt stops.
    pub ending: PromptEnding,
    /// Further variables that the template may read (`chat_template_kwargs`). Texts in them are as
    /// little trusted as contents are.
    pub variables: Map<String, Json>,
    /// The tools that may be called, as OpenAI writes them; texts in them likewise.
    pub tools: Option<Json>,
}

impl Chat {
    /// A conversation that the assistant is to answer.
    pub fn new(messages: impl Into<Vec<Message>>) -> Chat {
        Chat {
            messages: messages.into(),
            ..Chat::default()
        }
    }

    /// Bytes of all that is somebody's own words, and one for each value that is no text: nobody writes
    /// it with fewer.
    pub fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.each(&mut |text| bytes += text.len());
        bytes + self.values().map(others).sum::<usize>()
    }

    /// Whether this character occurs in anybody's words.
    pub(crate) fn contains(&self, character: char) -> bool {
        let mut found = false;
        self.each(&mut |text| found = found || text.contains(character));
        found
    }

    fn each<'c>(&'c self, look: &mut impl FnMut(&'c str)) {
        self.messages
            .iter()
            .flat_map(Message::texts)
            .for_each(&mut *look);
        self.variables.keys().for_each(|name| look(name));
        self.values().for_each(|value| each_text(value, look));
    }

    /// All that is not written as text.
    fn values(&self) -> impl Iterator<Item = &Json> {
        let calls = self.messages.iter().filter_map(|it| it.tool_calls.as_ref());
        calls.chain(&self.tools).chain(self.variables.values())
    }
}

/// How many values are in a value that are no text, itself among them.
fn others(value: &Json) -> usize {
    match value {
        Json::String(_) => 0,
        Json::Array(list) => 1 + list.iter().map(others).sum::<usize>(),
        Json::Object(map) => 1 + map.values().map(others).sum::<usize>(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 1,
    }
}

fn each_text<'v>(value: &'v Json, look: &mut impl FnMut(&'v str)) {
    match value {
        Json::String(text) => look(text),
        Json::Array(list) => list.iter().for_each(|value| each_text(value, look)),
        Json::Object(map) => {
            for (name, value) in map {
                look(name);
                each_text(value, look);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// The same value for a template, with every text in it, names included, as `write` writes it.
pub(crate) fn written<'v>(value: &'v Json, write: &impl Fn(&'v str) -> Cow<'v, str>) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(write(text)),
        Json::Array(list) => {
            let list = list.iter().map(|value| written(value, write));
            Value::from(list.collect::<Vec<_>>())
        }
        Json::Object(map) => Value::from_pairs(
            map.iter()
                .map(|(name, value)| (write(name), written(value, write))),
        ),
    }
}
