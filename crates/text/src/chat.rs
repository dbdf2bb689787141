use std::borrow::Cow;
use std::fmt;

use gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};

use crate::{Error, TEMPLATE_FUEL, Tokenizer};

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
/// [`TEMPLATE_FUEL`].
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
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
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
    pub fn render_chat(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, Error> {
        let mark = self.unused_character(messages)?;
        let guard = |text| tokenizer.specials().guard(text, mark);
        let text = self.render_with(messages, add_generation_prompt, guard)?;
        tokenizer.encode_marked(&text, mark)
    }

    /// The text of this chat, for showing it. Tokens come from [`ChatTemplate::render_chat`]: this
    /// text does not say which control tokens are the template's and which a message's.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
        self.render_with(messages, add_generation_prompt, Cow::Borrowed)
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
        let template = self.environment.get_template(KEY).map_err(explain)?;
        template.render(context).map_err(explain)
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
            return Error::Refused(reason.clone());
        }
        let engine = current.downcast_ref::<minijinja::Error>();
        if engine.is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return Error::TemplateFuel;
        }
        cause = current.source();
    }
    Error::Template(error.to_string())
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
