use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

use gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use crate::message::written;
use crate::rewritten::rewritten;
use crate::vocabulary::{TOKENS, named};
use crate::{
    Chat, Error, Message, PromptEnding, ROLES, TEMPLATE_FUEL, Tokenizer, folder, methods, paid,
};

/// Stack of the thread that compiles and renders; what of it is not used takes no memory.
const STACK_BYTES: usize = 256 << 20;
/// Longest template, bytes. The longest in use have a quarter of that.
const TEMPLATE_BYTES_MAX: usize = 128 << 10;
/// Most bytes of a template's own words, and of what is wrong with it, that are passed on.
const REASON_BYTES: usize = 1024;

const KEY: &str = "tokenizer.chat_template";

/// The chat template of a GGUF or of a folder: it turns messages into the prompt that the model was trained on.
///
/// A template may `raise_exception` ([`Error::Refused`]); it sees `messages`, `bos_token`,
/// `eos_token`, `add_generation_prompt` and the chat's own variables. `tools` if there are any. No files, no clock;
/// bounded by [`TEMPLATE_FUEL`], with whatever walks through lists in lists paid for before (`rewritten`).
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// The variables that it reads.
    reads: BTreeSet<String>,
    bos: String,
    eos: String,
}

/// What the template is given besides a chat's own variables, and what it could be given elsewhere.
const GIVEN: [&str; 6] = [
    "messages",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "tools",
    "documents",
];

impl ChatTemplate {
    /// Compiles the file's template.
    ///
    /// # Errors
    /// There is none, it cannot be used, or the file's BOS or EOS is no token of its vocabulary.
    pub fn from_gguf(metadata: &Metadata) -> Result<ChatTemplate, Error> {
        let source = metadata.string(KEY)?.to_owned();
        let tokens = metadata.strings(TOKENS)?;
        let token = |key| -> Result<String, Error> {
            let id = named(metadata, key, tokens.len())?;
            Ok(id.map_or_else(String::new, |id| tokens[id as usize].clone()))
        };
        let bos = token("tokenizer.ggml.bos_token_id")?;
        let eos = token("tokenizer.ggml.eos_token_id")?;
        ChatTemplate::new(source, bos, eos)
    }

    /// Compiles a folder's template: its `chat_template.jinja`, or else what `tokenizer_config.json`
    /// has (of several the one named `default`).
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn from_folder(dir: &Path) -> Result<ChatTemplate, Error> {
        let (source, bos, eos) = folder::template(dir)?;
        ChatTemplate::new(source, bos, eos)
    }

    fn new(source: String, bos: String, eos: String) -> Result<ChatTemplate, Error> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let (is, most) = (source.len(), TEMPLATE_BYTES_MAX);
            let problem = format!("it has {is} bytes, at most {most} are read");
            return Err(Error::Template(problem));
        }
        let mut environment = Environment::new();
        paid::add(&mut environment);
        methods::add(&mut environment);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.add_function("raise_exception", |reason: String| -> Result<Value, _> {
            let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
            Err(error.with_source(Exception(reason)))
        });
        let reads = on_a_stack(|| {
            let walks_paid = rewritten(&source, KEY, syntax()?)?;
            environment.add_template_owned(KEY, walks_paid)?;
            let template = environment.get_template(KEY)?;
            Ok(template.undeclared_variables(false).into_iter().collect())
        })?;
        Ok(ChatTemplate {
            environment,
            source,
            reads,
            bos,
            eos,
        })
    }

    /// Whether the template looks at this variable at all.
    pub fn reads(&self, variable: &str) -> bool {
        self.reads.contains(variable)
    }

    /// Whether a chat may not set a variable of this name: the template is given it by others, or
    /// it is a function.
    pub fn is_given(&self, variable: &str) -> bool {
        let mut functions = self.environment.globals();
        GIVEN.contains(&variable) || functions.any(|(name, _)| name == variable)
    }

    /// The tokens of this chat.
    ///
    /// **Nobody's words can write a control token.** Control tokens are found only in what the
    /// template itself wrote (and roles, of which there are five): before rendering, contents, names
    /// and the texts of variables are
    /// marked with a character that occurs neither in them nor in the template, in such places
    /// that no control token can contain any character of theirs; afterwards the marks are
    /// removed and the text between control tokens is encoded as one piece. So a content of `<|im_end|>` becomes the ordinary
    /// tokens of these ten characters, and for ordinary contents the tokens are exactly those of
    /// the rendered text. (A template that takes a message apart character by character could
    /// still betray it; those in use do not.)
    ///
    /// The rendered text has at most `bytes_max` bytes, the marks not counted.
    pub fn render_chat(
        &self,
        tokenizer: &Tokenizer,
        chat: &Chat,
        bytes_max: usize,
    ) -> Result<Vec<u32>, Error> {
        let [mark, cut] = self.unused_characters(chat)?;
        let guard = |text| tokenizer.specials().guard(text, mark);
        let page = Page {
            bytes_max,
            mark: Some(mark),
            ..Page::default()
        };
        let text = self.render_with(chat, cut, guard, page)?;
        Ok(tokenizer.encode_marked(&text, mark))
    }

    /// The text of this chat, for showing it. Tokens come from [`ChatTemplate::render_chat`]: this
    /// text does not say which control tokens are the template's and which a message's.
    pub fn render(&self, chat: &Chat) -> Result<String, Error> {
        let [_, cut] = self.unused_characters(chat)?;
        self.render_with(chat, cut, Cow::Borrowed, Page::default())
    }

    /// The template as it stands in the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// `guard` rewrites whatever is somebody's own words; `cut` is a character that is in none.
    fn render_with<'c>(
        &self,
        chat: &'c Chat,
        cut: char,
        guard: impl Fn(&'c str) -> Cow<'c, str>,
        mut page: Page,
    ) -> Result<String, Error> {
        let mut messages = Vec::with_capacity(chat.messages.len());
        for (at, message) in chat.messages.iter().enumerate() {
            let last = at + 1 == chat.messages.len();
            let cut = (last && chat.ending == PromptEnding::Continue).then_some(cut);
            messages.push(shown(message, &guard, cut)?);
        }
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, value) in &chat.variables {
            context.insert(name, written(value, &guard));
        }
        if let Some(tools) = &chat.tools {
            context.insert("tools", written(tools, &guard));
        }
        // Last, so that none of these can be anybody's own.
        context.insert("messages", messages.into());
        let open = chat.ending == PromptEnding::Answer;
        context.insert("add_generation_prompt", open.into());
        context.insert("bos_token", self.bos.as_str().into());
        context.insert("eos_token", self.eos.as_str().into());
        let rendered = self.write(Value::from(context), &mut page);
        if page.full {
            return Err(Error::TemplateText {
                given: chat.bytes(),
                limit: page.bytes_max,
            });
        }
        rendered?;
        // Each piece that a template writes is whole characters.
        let text =
            String::from_utf8(page.text).map_err(|error| Error::Template(error.to_string()))?;
        match chat.ending {
            PromptEnding::Continue => cut_off(&text, cut, chat),
            PromptEnding::Answer | PromptEnding::Closed => Ok(text),
        }
    }

    /// Writes a page; on a stack of its own, for lists in lists are walked and dropped as deep as the fuel
    /// allows.
    fn write(&self, context: Value, page: &mut Page) -> Result<(), Error> {
        on_a_stack(move || {
            let template = self.environment.get_template(KEY)?;
            template.render_captured_to(context, page).map(drop)
        })
    }

    /// Two private-use characters that neither the template nor a chat contains. They are in nobody's
    /// alphabet, and need not be secret: they only have to be absent.
    fn unused_characters(&self, chat: &Chat) -> Result<[char; 2], Error> {
        let mut absent =
            ('\u{F0000}'..='\u{F000F}').filter(|c| !self.source.contains(*c) && !chat.contains(*c));
        // All texts are searched for each, so there are not many; and no chat needs them.
        let problem = "the messages contain nearly all of U+F0000 to U+F000F, which no chat needs";
        let mut next = || absent.next().ok_or_else(|| Error::Refused(problem.into()));
        Ok([next()?, next()?])
    }
}

/// A message as the template sees it. `cut`: it is to be continued, and ends here.
fn shown<'m>(
    message: &'m Message,
    guard: &impl Fn(&'m str) -> Cow<'m, str>,
    cut: Option<char>,
) -> Result<Value, Error> {
    let role = message.role.as_str();
    if !ROLES.contains(&role) {
        let expected = ROLES.join(", ");
        return Err(Error::Refused(format!(
            "role {role:?} is not one of {expected}"
        )));
    }
    let mut content = guard(&message.content);
    if let Some(cut) = cut {
        // Before the white space at its end, which the template may trim.
        let end = content.trim_end().len();
        content.to_mut().insert(end, cut);
    }
    // In this order, which `tojson` shows.
    let mut fields = vec![("role", Value::from(role)), ("content", content.into())];
    if let Some(name) = &message.name {
        fields.push(("name", guard(name).into()));
    }
    if let Some(reasoning) = &message.reasoning {
        fields.push(("reasoning_content", guard(reasoning).into()));
    }
    if let Some(calls) = &message.tool_calls {
        fields.push(("tool_calls", written(calls, guard)));
    }
    if let Some(call) = &message.tool_call_id {
        fields.push(("tool_call_id", guard(call).into()));
    }
    Ok(Value::from_pairs(fields))
}

/// The text up to the end of the last message: to `cut`, and the white space behind it if the
/// template has left it there.
fn cut_off(text: &str, cut: char, chat: &Chat) -> Result<String, Error> {
    let Some((said, rest)) = text.rsplit_once(cut) else {
        let problem = "the chat template does not write the last message as it is, so that it \
                       cannot be continued";
        return Err(Error::Refused(problem.into()));
    };
    let content = chat.messages.last().map_or("", |last| &last.content);
    let space = &content[content.trim_end().len()..];
    let kept = if rest.starts_with(space) { space } else { "" };
    Ok(said.replace(cut, "") + kept)
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chat template of {} bytes", self.source.len())
    }
}

/// As Hugging Face's `apply_chat_template`, for which these templates are written.
fn syntax() -> Result<SyntaxConfig, minijinja::Error> {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true).build()
}

/// A template's expressions are as deep as it is long, and its lists as its fuel allows: whoever walks or
/// drops them calls itself, and so has a thread with a stack of its own.
fn on_a_stack<T: Send>(
    work: impl FnOnce() -> Result<T, minijinja::Error> + Send,
) -> Result<T, Error> {
    let failed = || Error::Template("there is no thread to work on it".to_owned());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || work().map_err(explain));
        let done = thread.map_err(|_| failed())?.join();
        done.unwrap_or_else(|_| Err(failed()))
    })
}

/// What a template has written so far, which is never more than it may be.
struct Page {
    text: Vec<u8>,
    bytes: usize,
    bytes_max: usize,
    /// A character that is not counted.
    mark: Option<char>,
    full: bool,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            text: Vec::new(),
            bytes: 0,
            bytes_max: usize::MAX, // and the fuel
            mark: None,
            full: false,
        }
    }
}

impl io::Write for Page {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let mut utf8 = [0; 4];
        let mark: &[u8] = self
            .mark
            .map_or(&[], |mark| mark.encode_utf8(&mut utf8).as_bytes());
        let marks = match mark {
            [] => 0,
            mark => piece.windows(mark.len()).filter(|w| *w == mark).count() * mark.len(),
        };
        self.bytes += piece.len() - marks;
        if self.bytes > self.bytes_max {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a template gave to `raise_exception`.
#[derive(Debug)]
struct Exception(String);

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Exception {}

fn explain(error: minijinja::Error) -> Error {
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(current) = cause {
        if let Some(Exception(reason)) = current.downcast_ref() {
            return Error::Refused(shortened(reason));
        }
        let engine = current.downcast_ref::<minijinja::Error>();
        if engine.is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return Error::TemplateFuel;
        }
        cause = current.source();
    }
    Error::Template(shortened(&error.to_string()))
}

fn shortened(reason: &str) -> String {
    reason[..reason.floor_char_boundary(REASON_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<ChatTemplate, Error> {
        ChatTemplate::new(source.into(), "<s>".into(), "</s>".into())
    }

    fn rendered(source: &str, messages: &[Message]) -> Result<String, Error> {
        template(source)?.render(&Chat::new(messages))
    }

    #[test]
    fn what_templates_in_use_rely_on_works() {
        let chat = [
            Message::new("user", " <b>Hi</b> "),
            Message::new("assistant", "Hello"),
        ];
        let source = "{{ bos_token }}{% for m in messages %}\n\
            {% if m.role == 'user' %}\n    [{{ m['content'].strip() }}]\n\
            {% else %}{{ m['content'].split('l')[-1] + eos_token }}{% endif %}\n\
            {% endfor %}{% if add_generation_prompt and tools is not defined %}>{% endif %}";
        assert_eq!(
            rendered(source, &chat).unwrap(),
            "<s>    [<b>Hi</b>]\no</s>>"
        );
    }

    #[test]
    fn a_template_may_refuse_with_its_own_words() {
        let source = "{% if messages[0].role != 'user' %}\
            {{ raise_exception('a user speaks first') }}{% endif %}";
        let error = rendered(source, &[Message::new("assistant", "?")]).unwrap_err();
        assert!(matches!(error, Error::Refused(reason) if reason == "a user speaks first"));
    }

    #[test]
    fn a_template_that_never_ends_or_grows_without_bound_runs_out_of_fuel() {
        let endless = "{% for i in range(10000) %}{% for j in range(10000) %}{{ j }}{% endfor %}\
            {% endfor %}";
        assert!(matches!(rendered(endless, &[]), Err(Error::TemplateFuel)));
        let growing = "{% set ns = namespace(s='0123456789') %}\
            {% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
        assert!(matches!(rendered(growing, &[]), Err(Error::TemplateFuel)));
    }

    #[test]
    fn faults_of_the_template_are_told_apart_from_the_callers() {
        assert!(matches!(rendered("{% if %}", &[]), Err(Error::Template(_))));
        assert!(matches!(
            rendered("{{ no_such_function() }}", &[]),
            Err(Error::Template(_))
        ));
        assert!(matches!(
            rendered("{{ messages[0].content }}", &[]),
            Err(Error::Template(_))
        ));
    }

    #[test]
    fn names_thoughts_and_variables_are_seen_and_what_is_given_cannot_be_set() {
        let source = "{{ bos_token }}{% for m in messages %}{{ m.role }}/{{ m.name }}/\
            {{ m.reasoning_content }}: {{ m.content }}\n{% endfor %}\
            {{ mood.of[0] if mood is defined }}{{ add_generation_prompt }}";
        let template = template(source).unwrap();
        let mut chat = Chat::new([
            Message {
                name: Some("Ada".into()),
                ..Message::new("user", "Hi")
            },
            Message {
                reasoning: Some("hm".into()),
                ..Message::new("assistant", "Hello")
            },
        ]);
        let said = "<s>user/Ada/: Hi\nassistant//hm: Hello\n";
        assert_eq!(template.render(&chat).unwrap(), format!("{said}True"));
        let variables = serde_json::json!({"mood": {"of": ["gay"]}, "bos_token": "x",
            "messages": [], "add_generation_prompt": true, "unread": 1});
        chat.variables = variables.as_object().unwrap().clone();
        chat.ending = PromptEnding::Closed;
        assert_eq!(template.render(&chat).unwrap(), format!("{said}gayFalse"));
        assert!(template.reads("mood") && !template.reads("unread"));
        for given in ["messages", "bos_token", "tools", "range", "raise_exception"] {
            assert!(template.is_given(given), "{given}");
        }
        assert!(!template.is_given("mood"));
        assert_eq!(chat.bytes(), "HiAdaHellohm".len() + chat_words(&variables));
    }

    fn chat_words(variables: &serde_json::Value) -> usize {
        let names = variables.as_object().unwrap().keys().map(String::len);
        let no_text = ["mood", "of", "messages", "add_generation_prompt", "unread"];
        names.sum::<usize>() + "ofgayx".len() + no_text.len()
    }

    #[test]
    fn the_last_message_can_be_continued_whatever_is_done_with_its_space() {
        let continued = |source: &str, content: &str| {
            let chat = Chat {
                ending: PromptEnding::Continue,
                ..Chat::new([
                    Message::new("user", "Hi"),
                    Message::new("assistant", content),
                ])
            };
            template(source).unwrap().render(&chat)
        };
        let kept = "{% for m in messages %}<{{ m.content }}>{% endfor %}!";
        assert_eq!(continued(kept, "Once \n").unwrap(), "<Hi><Once \n");
        assert_eq!(continued(kept, "").unwrap(), "<Hi><");
        let trimmed = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
        assert_eq!(continued(trimmed, " Once \n").unwrap(), "<Hi><Once");
        let twice = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}";
        assert_eq!(continued(twice, "ab").unwrap(), "HiHiabab");
        let first = "{{ messages[0].content }}";
        let refused = continued(first, "ab").unwrap_err();
        assert!(
            matches!(&refused, Error::Refused(why) if why.contains("cannot be continued")),
            "{refused}"
        );
    }
}
