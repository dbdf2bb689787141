//! Calls of tools: how a model writes them, told by its chat template, and what an answer that must call
//! one is held to.

use serde_json::{Value, json};
use tokenizer::{Chat, Message};
use wire::Form;

use super::ask::{AskedForm, Tool, Tools};
use super::fields::invalid;
use super::strict_json::{Said, Texts};
use super::text::Text;
use crate::engine::{Code, Fault};

/// How calls stand in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, of Hermes, Qwen and many others.
    Hermes,
    /// `{"name": …, "parameters": …}` and nothing else: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`: Mistral.
    Mistral,
}

/// What stands before a call that Mistral's models write, and before one of Llama 3's at times.
pub(super) const MISTRAL: &str = "[TOOL_CALLS]";
pub(super) const PYTHON: &str = "<|python_tag|>";
pub(super) const OPENS: &str = "<tool_call>";
pub(super) const CLOSES: &str = "</tool_call>";

impl Style {
    /// What this model's template teaches it; Hermes' where the template knows of no tools.
    ///
    /// # Errors
    /// The template shows tools, and calls as they are not read here.
    pub(super) fn of(text: &dyn Text) -> Result<Self, Fault> {
        let template = text.template();
        let has = |what: &str| template.contains(what);
        match text.reads("tools") {
            false => Ok(Self::Hermes),
            true if has(OPENS) && !has("<function=") && !has("<arg_key>") => Ok(Self::Hermes),
            true if has(MISTRAL) => Ok(Self::Mistral),
            true if has("\"parameters\":") && (has(PYTHON) || has("ipython")) => Ok(Self::Llama),
            true => Err(Fault::new(
                Code::UnsupportedParameter,
                "`tools` is not supported: this model's chat template writes calls in a form that is \
                 not read here; describe the tools in a message and read the call from the text",
            )
            .on("tools")),
        }
    }

    /// The control token before a call, whose text no answer shows.
    pub(super) fn marker(self) -> Option<&'static str> {
        match self {
            Self::Hermes => None,
            Self::Llama => Some(PYTHON),
            Self::Mistral => Some(MISTRAL),
        }
    }

    /// What stands around the JSON of each call, and what its arguments are called.
    fn frame(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Hermes => ("<tool_call>\n", "arguments", "\n</tool_call>"),
            Self::Llama => ("", "parameters", ""),
            Self::Mistral => ("", "arguments", ""),
        }
    }

    /// What an answer is held to that must call one of these tools, several if it may.
    /// `beside`: the schema of an answer that calls none, where it need not.
    fn form(
        self,
        tools: &[&Tool],
        parallel: bool,
        beside: Option<&Value>,
        text: &dyn Text,
    ) -> Form {
        let (opens, arguments, closes) = self.frame();
        let literal = |text: &str| Value::from(text).to_string();
        let name = |tool: &Tool| format!("{{\"name\": {}, \"{arguments}\": ", literal(&tool.name));
        let mut rules = Vec::new();
        for tool in tools {
            let at = tool.at;
            let (before, after) = (name(tool), "}");
            rules.push(format!(
                "call_{at}: {} args_{at} {}",
                literal(&before),
                literal(after)
            ));
            rules.push(format!(
                "args_{at}: %json {}",
                grammar::written(&tool.parameters)
            ));
        }
        let any = tools.iter().map(|tool| format!("call_{}", tool.at));
        rules.push(format!("json: {}", any.collect::<Vec<_>>().join(" | ")));
        let one = match (opens, closes) {
            ("", "") => "json".to_owned(),
            _ => format!("{} json {}", literal(opens), literal(closes)),
        };
        rules.push(format!("call: {one}"));
        let start = match (self, parallel) {
            (Self::Hermes, true) => "call (\"\\n\" call)*".to_owned(),
            (Self::Llama, true) => "call (\"; \" call)*".to_owned(),
            (Self::Hermes | Self::Llama, false) => "call".to_owned(),
            (Self::Mistral, _) => {
                let marker = match text.control(MISTRAL) {
                    Some(token) => format!("<[{token}]>"),
                    None => literal(MISTRAL),
                };
                let more = if parallel { "(\", \" call)*" } else { "" };
                format!("{marker} \"[\" call {more} \"]\"")
            }
        };
        let start = match beside {
            None => start,
            Some(schema) => {
                rules.push(format!("answer: %json {}", grammar::written(schema)));
                rules.push(format!("calls: {start}"));
                "answer | calls".to_owned()
            }
        };
        Form::Lark(format!("start: {start}\n{}\n", rules.join("\n")))
    }
}

/// How the tools of a request are called in its answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Calling {
    pub style: Style,
    /// Names that a call may have.
    pub names: Vec<String>,
    /// Whether several calls may be made.
    pub parallel: bool,
    /// What answers are held to, if one must be made.
    pub form: Option<Form>,
}

impl Calling {
    /// `form`: what an answer is held to that calls none.
    ///
    /// # Errors
    /// The template's calls are not read here, or arguments of a tool that must be called cannot be
    /// held to.
    pub(super) fn of(
        tools: &Tools,
        form: Option<&AskedForm>,
        text: &dyn Text,
    ) -> Result<Self, Fault> {
        let style = Style::of(text)?;
        let (demanded, beside) = match (tools.demanded(), form) {
            (Some(demanded), _) => (Some(demanded), None),
            (None, None) => (None, None),
            (None, Some(form)) => {
                let Form::Json(schema) = &form.form else {
                    return Err(invalid(
                        &form.param,
                        "a JSON schema, or `tool_choice` to be \"none\", where there are `tools`",
                    ));
                };
                let all = tools.list.iter().collect();
                (Some(all), serde_json::from_str(schema).ok())
            }
        };
        for tool in demanded.iter().flatten() {
            // Alone first, for the place of what is wrong.
            let form = Form::Json(tool.parameters.to_string());
            let param = format!("tools[{}].function.parameters", tool.at);
            text.compiles(&form).map_err(|problem| {
                Fault::new(Code::InvalidRequest, format!("`{param}`: {problem}")).on(param)
            })?;
        }
        let form = demanded.map(|them| style.form(&them, tools.parallel, beside.as_ref(), text));
        if let Some(form) = &form {
            let bytes = form.text().len();
            let problem = match bytes <= wire::FORM_BYTES_MAX {
                true => text.compiles(form).err(),
                false => Some(format!(
                    "the schemas have {bytes} bytes; call one tool by its name"
                )),
            };
            if let Some(problem) = problem {
                return Err(
                    Fault::new(Code::InvalidRequest, format!("`tools`: {problem}")).on("tools"),
                );
            }
        }
        Ok(Self {
            style,
            names: tools.list.iter().map(|tool| tool.name.clone()).collect(),
            parallel: tools.parallel,
            form,
        })
    }
}

/// Writes tools, calls and their results as text where the template knows of none, as Hermes' models
/// are taught them.
pub(super) fn told(chat: &mut Chat) {
    for message in &mut chat.messages {
        if let Some(calls) = message.tool_calls.take() {
            let calls = calls.as_array().into_iter().flatten().map(written);
            let said = Some(std::mem::take(&mut message.content)).filter(|said| !said.is_empty());
            let all: Vec<String> = said.into_iter().chain(calls).collect();
            message.content = all.join("\n");
        }
        if message.role == "tool" {
            message.role = "user".to_owned();
            message.tool_call_id = None;
            let said = std::mem::take(&mut message.content);
            message.content = format!("<tool_response>\n{said}\n</tool_response>");
        }
    }
    let Some(tools) = chat.tools.take() else {
        return;
    };
    let each = tools.as_array().into_iter().flatten().map(Value::to_string);
    let tools = format!(
        "You may call one or more functions to assist with the user query.\n\nYou are provided with \
         function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each \
         function call, return a json object with function name and arguments within \
         <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": <function-name>, \
         \"arguments\": <args-json-object>}}\n</tool_call>",
        each.collect::<Vec<_>>().join("\n")
    );
    match chat
        .messages
        .first_mut()
        .filter(|first| first.role == "system")
    {
        Some(first) => first.content = format!("{}\n\n{tools}", first.content),
        None => chat.messages.insert(0, Message::new("system", tools)),
    }
}

fn written(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let (name, arguments) = (&function["name"], &function["arguments"]);
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

/// A call that an answer makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Its place among the calls of its answer.
    pub index: usize,
    pub name: String,
    /// JSON, as the model has written it.
    pub arguments: String,
}

/// Tells the calls of an answer from its other words, as they come.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    calling: Calling,
    /// What may still become a call, or the white space before one.
    held: String,
    /// Behind the mark of a call.
    inside: bool,
    /// Something has been said that is no call.
    spoken: bool,
    calls: usize,
}

/// What was told apart.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    pub text: String,
    pub calls: Vec<Call>,
}

impl Reader {
    pub(super) fn new(calling: Calling) -> Self {
        Self {
            calling,
            held: String::new(),
            inside: false,
            spoken: false,
            calls: 0,
        }
    }

    /// Takes the next words of the answer.
    pub(super) fn push(&mut self, text: &str) -> Told {
        self.held += text;
        let mut told = Told::default();
        match self.calling.style {
            Style::Hermes => while self.step(&mut told) {},
            Style::Llama if !self.may_be_call() => self.say(self.held.len(), &mut told),
            Style::Mistral if !self.held.contains(MISTRAL) => {
                let safe = self.held.len() - kept(&self.held, MISTRAL);
                self.say(self.held[..safe].trim_end().len(), &mut told);
            }
            Style::Llama | Style::Mistral => {} // to the end
        }
        told
    }

    /// The answer is over: what never became a call is its text.
    pub(super) fn finish(&mut self) -> Told {
        let mut told = Told::default();
        let style = self.calling.style;
        if style == Style::Hermes && self.inside {
            // Some models end where they should close.
            let body = opened(&self.held).to_owned();
            if self.make(&body, &mut told.calls) {
                self.held.clear();
            }
        } else if style != Style::Hermes {
            let (before, body) = match self.held.split_once(style.marker().unwrap_or("\0")) {
                Some((before, body)) => (before.to_owned(), body.to_owned()),
                None if style == Style::Llama && !self.spoken => (String::new(), self.held.clone()),
                None => (self.held.clone(), String::new()),
            };
            if !body.is_empty() && self.make(&body, &mut told.calls) {
                self.held = before.trim_end().to_owned();
            }
        }
        let no_calls = told.calls.is_empty() && self.calls == 0;
        if !no_calls && self.held.trim().is_empty() {
            self.held.clear();
        }
        told.text += &std::mem::take(&mut self.held);
        told
    }

    /// One step through Hermes' marks; false if more text is needed.
    fn step(&mut self, told: &mut Told) -> bool {
        if !self.inside {
            return match self.held.find(OPENS) {
                Some(at) => {
                    let before = self.held[..at].trim_end().len();
                    self.say(before, told);
                    self.inside = true;
                    true
                }
                None => {
                    let safe = self.held.len() - kept(&self.held, OPENS);
                    self.say(self.held[..safe].trim_end().len(), told);
                    false
                }
            };
        }
        let Some(at) = self.held.find(CLOSES) else {
            return false;
        };
        let (whole, rest) = self.held.split_at(at + CLOSES.len());
        let (whole, rest) = (whole.to_owned(), rest.to_owned());
        if !self.make(opened(&whole[..at]), &mut told.calls) {
            told.text += &whole;
            self.spoken = true;
        }
        self.held = rest;
        self.inside = false;
        true
    }

    /// Lets go of so many bytes of what is held, which are no call.
    fn say(&mut self, bytes: usize, told: &mut Told) {
        let rest = self.held.split_off(bytes);
        let said = std::mem::replace(&mut self.held, rest);
        self.spoken = self.spoken || !said.trim().is_empty();
        told.text += &said;
    }

    /// Whether an answer of Llama 3's can still be a call: one is JSON from its first character.
    fn may_be_call(&self) -> bool {
        let begun = self.held.trim_start();
        let marked = begun.starts_with(PYTHON) || PYTHON.starts_with(begun);
        !self.spoken && (begun.is_empty() || begun.starts_with('{') || marked)
    }

    /// Reads calls; false if the text is none.
    fn make(&mut self, body: &str, calls: &mut Vec<Call>) -> bool {
        let found = match self.calling.style {
            Style::Mistral => mistral(body),
            _ => objects(body, "; \n\t"),
        };
        let found = found.and_then(|found| {
            let read = found.iter().map(|call| self.read(call));
            read.collect::<Option<Vec<_>>>()
        });
        let Some(found) = found.filter(|found| !found.is_empty()) else {
            return false;
        };
        let most = if self.calling.parallel { usize::MAX } else { 1 };
        if self.calls + found.len() > most {
            return false;
        }
        for (name, arguments) in found {
            let index = self.calls;
            self.calls += 1;
            calls.push(Call {
                index,
                name,
                arguments,
            });
        }
        true
    }

    fn read(&self, call: &Value) -> Option<(String, String)> {
        let name = call.get("name")?.as_str()?;
        let arguments = match (call.get("arguments"), call.get("parameters")) {
            // As it stands, if that is no JSON; a name twice in it is no call, as anywhere in one.
            (Some(Value::String(text)), _) => {
                Texts::default().read("arguments", text).ok()?;
                text.clone()
            }
            (Some(value), _) | (None, Some(value)) => value.to_string(),
            (None, None) => "{}".to_owned(),
        };
        let known = self.calling.names.iter().any(|known| known == name);
        known.then(|| (name.to_owned(), arguments))
    }
}

/// What stands behind the mark of a call, and behind the white space before it, which belongs to the text
/// if this is no call.
fn opened(held: &str) -> &str {
    held.trim_start().strip_prefix(OPENS).unwrap_or_default()
}

/// Bytes at the end of a text that may become `mark`.
fn kept(text: &str, mark: &str) -> usize {
    let most = mark.len().min(text.len() + 1);
    let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
    (1..most).rev().find(ends).unwrap_or(0)
}

/// The JSON objects that a text is, with nothing between them but these characters.
fn objects(text: &str, between: &str) -> Option<Vec<Value>> {
    let mut rest = text;
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches(|c: char| between.contains(c) || c.is_whitespace());
        if rest.is_empty() {
            return Some(found);
        }
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter();
        let Said(object) = stream.next()?.ok()?;
        rest = &rest[stream.byte_offset()..];
        found.push(Some(object).filter(Value::is_object)?);
    }
}

/// A list of calls; or, as newer models write them, `name[ARGS]{…}`, each behind a mark.
fn mistral(text: &str) -> Option<Vec<Value>> {
    let text = text.trim();
    if let Ok(Said(Value::Array(list))) = serde_json::from_str(text) {
        return Some(list);
    }
    let each = text.split(MISTRAL).map(|call| {
        let (name, arguments) = call.split_once("[ARGS]")?;
        let Said(arguments) = serde_json::from_str(arguments.trim()).ok()?;
        let name = name.split("[CALL_ID]").next()?.trim();
        Some(json!({"name": name, "arguments": arguments}))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(style: Style) -> Reader {
        Reader::new(Calling {
            style,
            names: vec!["add".into(), "now".into()],
            parallel: true,
            form: None,
        })
    }

    /// The same, however the text is cut.
    fn told(style: Style, text: &str) -> (String, Vec<(usize, String, String)>) {
        let mut answers = Vec::new();
        for size in [1, 2, 3, 7, 1_000] {
            let mut reader = reader(style);
            let mut all = Told::default();
            let chars: Vec<char> = text.chars().collect();
            let mut take = |told: Told| {
                all.text += &told.text;
                all.calls.extend(told.calls);
            };
            for part in chars.chunks(size) {
                take(reader.push(&part.iter().collect::<String>()));
            }
            take(reader.finish());
            let calls = all.calls.into_iter();
            let calls = calls.map(|call| (call.index, call.name, call.arguments));
            answers.push((all.text, calls.collect::<Vec<_>>()));
        }
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{answers:?}"
        );
        answers.swap_remove(0)
    }

    fn call(index: usize, name: &str, arguments: &str) -> (usize, String, String) {
        (index, name.into(), arguments.into())
    }

    #[test]
    fn hermes_calls_are_told_from_words() {
        let hermes = |text| told(Style::Hermes, text);
        let one =
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": [2]}}\n</tool_call>";
        let add = r#"{"b":1,"a":[2]}"#;
        assert_eq!(hermes(one), (String::new(), vec![call(0, "add", add)]));
        let both = format!("Let me see.\n\n{one}\n<tool_call>{{\"name\":\"now\"}}</tool_call>\n");
        let expected = vec![call(0, "add", add), call(1, "now", "{}")];
        assert_eq!(hermes(&both), ("Let me see.".into(), expected));
        // Unclosed by a model that ended where it should have closed.
        let unclosed = &one[..one.len() - CLOSES.len()];
        assert_eq!(hermes(unclosed).1, [call(0, "add", add)]);
    }

    #[test]
    fn what_is_no_call_stays_text_to_the_letter() {
        for text in [
            "",
            " a < b, <tool_ <tool_cal",
            "<tool_call>\nnot json\n</tool_call> and on",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ",
            "Now\n<tool_call>\n{\"name\": \"add\"",
            "  two  spaces \n",
            "</tool_call>",
        ] {
            assert_eq!(told(Style::Hermes, text), (text.into(), vec![]), "{text:?}");
        }
        for text in [
            "{\"name\": \"unknown\"}",
            "{ no json",
            "It is {\"name\": \"add\"}",
            "<|pyth",
            " \n",
        ] {
            assert_eq!(told(Style::Llama, text), (text.into(), vec![]), "{text:?}");
        }
        for text in ["[TOOL_CALLS] nothing", "[TOOL_CAL", "words", "[TOOL_CALLS]"] {
            assert_eq!(
                told(Style::Mistral, text),
                (text.into(), vec![]),
                "{text:?}"
            );
        }
    }

    #[test]
    fn the_other_styles_are_read() {
        let add = r#"{"a":1}"#;
        let llama = |text| told(Style::Llama, text);
        let one = r#"{"name": "add", "parameters": {"a": 1}}"#;
        assert_eq!(llama(one), (String::new(), vec![call(0, "add", add)]));
        let marked = format!("<|python_tag|>{one}; {one}");
        assert_eq!(llama(&marked).1, [call(0, "add", add), call(1, "add", add)]);
        let mistral = |text| told(Style::Mistral, text);
        let list = r#"Well. [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now"}]"#;
        let expected = vec![call(0, "add", add), call(1, "now", "{}")];
        assert_eq!(mistral(list), ("Well.".into(), expected));
        let newer = r#"[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}"#;
        assert_eq!(
            mistral(newer).1,
            [call(0, "add", add), call(1, "now", "{}")]
        );
    }

    /// Whoever reads it takes the first value, the last or none: it would be called with what the model
    /// may not have meant.
    #[test]
    fn a_name_that_stands_twice_makes_no_call() {
        let hermes = |json: &str| (Style::Hermes, format!("<tool_call>{json}</tool_call>"));
        let llama = |json: &str| (Style::Llama, json.to_owned());
        let mistral = |json: &str| (Style::Mistral, format!("[TOOL_CALLS]{json}"));
        for (style, text) in [
            hermes(r#"{"name": "add", "arguments": {"a": 1, "a": 2}}"#),
            hermes(r#"{"name": "add", "arguments": {"a": {"b": [{"c": 1, "\u0063": 2}]}}}"#),
            hermes(r#"{"name": "add", "name": "now", "arguments": {}}"#),
            hermes(r#"{"name": "add", "arguments": {"a": 1}, "arguments": {"a": 2}}"#),
            hermes(r#"{"name": "add", "arguments": "{\"a\": 1, \"a\": 2}"}"#),
            llama(r#"{"name": "add", "parameters": {"a": 1, "a": 2}}"#),
            llama(r#"{"name": "now"}; {"name": "add", "parameters": {"a": 1, "a": 2}}"#),
            mistral(r#"[{"name": "add", "arguments": {"a": 1, "a": 2}}]"#),
            mistral(r#"add[ARGS]{"a": 1, "a": 2}"#),
        ] {
            assert_eq!(told(style, &text), (text.clone(), vec![]), "{text}");
            // With one name less it is one.
            let once = text.replace(r#", "a": 2"#, "");
            if once != text {
                let calls = told(style, &once).1;
                assert_eq!(calls.last().unwrap().2, r#"{"a":1}"#, "{once}");
            }
        }
        // A text that is no JSON is handed on as it stands.
        let (style, text) = hermes(r#"{"name": "add", "arguments": "a, a"}"#);
        assert_eq!(told(style, &text).1, [call(0, "add", "a, a")]);
    }

    #[test]
    fn one_call_is_made_where_several_may_not_be() {
        let mut one = reader(Style::Hermes);
        one.calling.parallel = false;
        let text =
            "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>";
        let mut told = one.push(text);
        told.text += &one.finish().text;
        assert_eq!(told.calls.len(), 1);
        assert_eq!(
            told.text, "<tool_call>{\"name\": \"now\"}</tool_call>",
            "nothing is lost"
        );
    }
}
