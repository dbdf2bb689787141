use std::borrow::Cow;
use std::fmt;
use std::io;

use gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};

use crate::{Error, TEMPLATE_FUEL, Tokenizer, methods};

/// Stack of the thread that renders; what of it is not used takes no memory.
const STACK_BYTES: usize = 256 << 20;
/// Most bytes of a template's own words, and of what is wrong with it, that are passed on.
const REASON_BYTES: usize = 1024;

const KEY: &str = "tokenizer.chat_template";

/// The roles that a message may have. No others: templates build control tokens from them.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: one of [`ROLES`]. The template may accept fewer.
    pub role: String,
    /// What is said: plain text, whatever it looks like.
    pub content: String,
}

impl Message {
    /// A message of this role and content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// The chat template of a GGUF: it turns messages into the prompt that the model was trained on.
///
/// A template may `raise_exception` ([`Error::Refused`]); it sees `messages`, `bos_token`,
/// `eos_token` and `add_generation_prompt`. No files, no clock, no tools; bounded by
/// [`TEMPLATE_FUEL`]. (One way around is left in the engine: `~` writes a list out before it counts, so
/// lists in lists in lists that share their places, which no template in use has, can become long.)
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles the file's template.
    pub fn from_gguf(metadata: &Metadata) -> Result<ChatTemplate, Error> {
        let source = metadata.string(KEY)?.to_owned();
        let token = |key| -> Result<String, Error> {
            let id = metadata.find_u32(key)?;
            let tokens = metadata.strings("tokenizer.ggml.tokens")?;
            Ok(id
                .and_then(|id| tokens.get(id as usize))
                .cloned()
                .unwrap_or_default())
        };
        let bos = token("tokenizer.ggml.bos_token_id")?;
        let eos = token("tokenizer.ggml.eos_token_id")?;
        ChatTemplate::new(source, bos, eos)
    }

    fn new(source: String, bos: String, eos: String) -> Result<ChatTemplate, Error> {
        let mut environment = Environment::new();
        // As Hugging Face's `apply_chat_template`, for which these templates are written.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(explain)?);
        methods::add(&mut environment);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.add_function("raise_exception", |reason: String| -> Result<Value, _> {
            let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
            Err(error.with_source(Exception(reason)))
        });
        environment
            .add_template_owned(KEY, source.clone())
            .map_err(explain)?;
        Ok(ChatTemplate {
            environment,
            source,
            bos,
            eos,
        })
    }

    /// The tokens of this chat. With `add_generation_prompt` they end where the assistant is to
    /// begin.
    ///
    /// **No message can write a control token.** Control tokens are found only in what the
    /// template itself wrote (and roles, of which there are five): before rendering, contents are
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
        messages: &[Message],
        add_generation_prompt: bool,
        bytes_max: usize,
    ) -> Result<Vec<u32>, Error> {
        let mark = self.unused_character(messages)?;
        let guard = |text| tokenizer.specials().guard(text, mark);
        let page = Page {
            bytes_max,
            mark: Some(mark),
            ..Page::default()
        };
        let text = self.render_with(messages, add_generation_prompt, guard, page)?;
        Ok(tokenizer.encode_marked(&text, mark))
    }

    /// The text of this chat, for showing it. Tokens come from [`ChatTemplate::render_chat`]: this
    /// text does not say which control tokens are the template's and which a message's.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
        self.render_with(
            messages,
            add_generation_prompt,
            Cow::Borrowed,
            Page::default(),
        )
    }

    /// The template as it stands in the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn render_with<'m>(
        &self,
        messages: &'m [Message],
        add_generation_prompt: bool,
        content: impl Fn(&'m str) -> Cow<'m, str>,
        mut page: Page,
    ) -> Result<String, Error> {
        let mut values = Vec::with_capacity(messages.len());
        for Message {
            role,
            content: said,
        } in messages
        {
            if !ROLES.contains(&role.as_str()) {
                let expected = ROLES.join(", ");
                return Err(Error::Refused(format!(
                    "role {role:?} is not one of {expected}"
                )));
            }
            values.push(context! { role, content => content(said) });
        }
        let context = context! {
            messages => values,
            add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let rendered = self.write(context, &mut page);
        if page.full {
            return Err(Error::TemplateText {
                given: messages.iter().map(|m| m.content.len()).sum(),
                limit: page.bytes_max,
            });
        }
        rendered?;
        // Each piece that a template writes is whole characters.
        String::from_utf8(page.text).map_err(|error| Error::Template(error.to_string()))
    }

    /// Lists in lists in lists, as deep as the fuel allows, are walked and dropped by functions that
    /// call themselves, so a template has a thread with a stack of its own for that.
    fn write(&self, context: Value, page: &mut Page) -> Result<(), Error> {
        let render = move || {
            let template = self.environment.get_template(KEY).map_err(explain)?;
            let rendered = template.render_captured_to(context, page);
            rendered.map(drop).map_err(explain)
        };
        let failed = || Error::Template("there is no thread to render it on".to_owned());
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, render).map_err(|_| failed())?;
            thread.join().unwrap_or_else(|_| Err(failed()))
        })
    }

    /// A private-use character that neither the template nor a message contains. It is in nobody's
    /// alphabet, and need not be secret: it only has to be absent.
    fn unused_character(&self, messages: &[Message]) -> Result<char, Error> {
        let absent = |c: &char| {
            !self.source.contains(*c) && messages.iter().all(|m| !m.content.contains(*c))
        };
        // All texts are searched for each, so there are not many; and no chat needs them.
        let problem = "the messages contain all of U+F0000 to U+F000F, which no chat needs";
        ('\u{F0000}'..='\u{F000F}')
            .find(absent)
            .ok_or_else(|| Error::Refused(problem.into()))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chat template of {} bytes", self.source.len())
    }
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

    fn rendered(source: &str, messages: &[Message]) -> Result<String, Error> {
        ChatTemplate::new(source.into(), "<s>".into(), "</s>".into())?.render(messages, true)
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
}
