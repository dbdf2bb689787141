//! From a request body to an [`Ask`]: every field read, checked, or refused by name.

mod carried;
mod chat;
mod completion;
mod ending;
mod form;
mod known;
mod responses;
mod sampling;
mod tools;

use super::fields::{Fields, invalid, unsupported};
use super::text::Text;
use crate::engine::{Code, Fault, Sampling, TextPath};
use serde_json::{Map, Value};

use super::calls::Calling;
pub(super) use chat::{Talk, talk};
pub(super) use completion::token_ids;
pub(super) use ending::Rules;
pub(super) use form::Asked as AskedForm;
use known::empty;
pub(super) use responses::in_these_words;
pub(super) use tools::{Tool, Tools, read as tools};

/// Which of OpenAI's two request forms is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/responses`: a chat in other words.
    Responses,
    /// `/v1/completions`
    Completion,
}

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    /// A conversation.
    Chat(Talk),
    /// Bare prompts, at least one, each of which gets `n` answers.
    Prompts(Vec<Prompt>),
}

/// A bare prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// A text.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<u32>),
}

/// A generation request, checked as far as possible without tokenizer and limits.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// The form of the answer.
    pub dialect: Dialect,
    /// The model asked for; none: the default.
    pub model: Option<String>,
    /// What to continue.
    pub input: Input,
    /// Put the model's marks around a bare text.
    pub add_special: bool,
    /// Begin an answer with its prompt.
    pub echo: bool,
    /// The part of the tenant's cache that may be used.
    pub cache_salt: Option<String>,
    /// How many answers to each prompt.
    pub choices: u16,
    /// Most tokens of an answer; none: up to the context.
    pub max_tokens: Option<u32>,
    /// How to sample; its seed is not set yet where `seed` is none.
    pub sampling: Sampling,
    /// The client's seed.
    pub seed: Option<u64>,
    /// When an answer ends.
    pub rules: Rules,
    /// What an answer is held to.
    pub form: Option<form::Asked>,
    /// The tools that it may call, where that is carried out here.
    pub tools: Option<Tools>,
    /// How it calls them; none before the template was looked at.
    pub calling: Option<Calling>,
    /// What only the engine itself can carry out.
    pub carried: Option<Map<String, Value>>,
    /// What an answer of `/v1/responses` repeats.
    pub asked: Value,
    /// Answer as server-sent events.
    pub stream: bool,
    /// Which events of a stream have usage figures.
    pub usage: StreamUsage,
}

/// Which events of a stream have usage figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamUsage {
    /// One more at its end.
    pub at_the_end: bool,
    /// All, as far as it has got.
    pub in_each: bool,
}

impl Ask {
    /// Looks at how this model calls tools, and judges what its answers are to be held to. Slow, and so
    /// the last of all that is looked at.
    ///
    /// # Errors
    /// The template's calls are not read here, or a form cannot be held to.
    pub(super) fn hold(&mut self, text: &dyn Text) -> Result<(), Fault> {
        if let Some(form) = &self.form {
            form.judge(text)?;
        }
        if let Some(tools) = &self.tools {
            self.calling = Some(Calling::of(tools, self.form.as_ref(), text)?);
        }
        Ok(())
    }

    /// What each answer is held to.
    pub(super) fn held(&self) -> Option<wire::Form> {
        let calls = self
            .calling
            .as_ref()
            .and_then(|calling| calling.form.as_ref());
        let form = self.form.as_ref().map(|asked| &asked.form);
        calls.or(form).cloned()
    }

    /// Reads the body of `POST /v1/chat/completions` or `/v1/completions`. `path`: what the engine
    /// carries out beside tokens.
    ///
    /// # Errors
    /// A fault naming the first field that cannot be served as asked.
    pub(super) fn parse(
        dialect: Dialect,
        body: &[u8],
        max_choices: u16,
        path: &TextPath,
    ) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        if dialect != Dialect::Responses {
            return Self::read(dialect, fields, max_choices, path);
        }
        if !path.forms {
            let message = "`/v1/responses` is not served in front of these engines; send the whole \
                           conversation to `/v1/chat/completions`";
            return Err(Fault::new(Code::NotFound, message));
        }
        let asked = responses::repeated(&fields);
        let chat = responses::as_chat(&mut fields)?;
        fields.finish()?;
        let ask = Self::read(dialect, chat, max_choices, path)?;
        Ok(Self { asked, ..ask })
    }

    fn read(
        dialect: Dialect,
        mut fields: Fields,
        max_choices: u16,
        path: &TextPath,
    ) -> Result<Self, Fault> {
        let carries = path.fields;
        known::unused_tools(&mut fields)?;
        let carried = carried::take(&mut fields, carries);
        let form = match path.forms {
            true => form::read(&mut fields)?,
            false => None,
        };
        let ours = path.forms && dialect != Dialect::Completion;
        let mut tools = match ours {
            true => tools::read(&mut fields)?,
            false => None,
        };
        let theirs = carried.as_ref().and_then(|it| it.get("tools"));
        let mut echo = false;
        let mut add_special = true;
        let (input, logprobs) = match dialect {
            Dialect::Chat | Dialect::Responses => {
                let mut talk = chat::talk(&mut fields, path)?;
                talk.chat.tools = tools.as_mut().map(|it| it.shown.take()).or(theirs.cloned());
                (Input::Chat(talk), chat::logprobs(&mut fields)?)
            }
            Dialect::Completion => {
                let prompts = completion::prompts(&mut fields)?;
                let logprobs = completion::logprobs(&mut fields)?;
                echo = fields.flag("echo")?.unwrap_or(false);
                add_special = fields.flag("add_special_tokens")?.unwrap_or(true);
                (Input::Prompts(prompts), logprobs)
            }
        };
        if echo && (logprobs.is_some() || carried.is_some() || form.is_some()) {
            return Err(unsupported(
                "echo",
                "a prompt is repeated without log-probabilities and in no form; leave it out, or \
                 `logprobs` and what the answer is to be held to",
            ));
        }
        let (mut sampling, seed) = sampling::read(&mut fields)?;
        sampling.logprobs = logprobs;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let ask = Self {
            dialect,
            model: fields.text("model")?,
            input,
            add_special,
            echo,
            cache_salt: cache_salt(&mut fields)?,
            choices: fields.whole("n", 1, max_choices.into())?.unwrap_or(1) as u16,
            max_tokens: ending::max_tokens(&mut fields)?,
            sampling,
            seed,
            rules: Rules::read(&mut fields)?,
            form,
            tools,
            calling: None,
            carried,
            asked: Value::Null,
            stream,
            usage: stream_options(&mut fields, stream)?,
        };
        best_of(&mut fields, ask.choices)?;
        known::judge(&mut fields)?;
        fields.finish()?;
        Ok(ask)
    }
}

/// Longest `cache_salt`, bytes.
const SALT_BYTES_MAX: usize = 256;

fn cache_salt(fields: &mut Fields) -> Result<Option<String>, Fault> {
    match fields.text("cache_salt")? {
        Some(salt) if salt.is_empty() || salt.len() > SALT_BYTES_MAX => {
            let expected = format!("a string of 1 to {SALT_BYTES_MAX} bytes");
            Err(invalid("cache_salt", expected))
        }
        salt => Ok(salt),
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<StreamUsage, Fault> {
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(StreamUsage::default());
    };
    if !stream {
        return Err(invalid(
            "stream_options",
            "`stream` to be true where this is set",
        ));
    }
    let usage = StreamUsage {
        at_the_end: options.flag("include_usage")?.unwrap_or(false),
        in_each: options.flag("continuous_usage_stats")?.unwrap_or(false),
    };
    // Padding against traffic analysis: there is none, so only "off" is true.
    if options.flag("include_obfuscation")?.unwrap_or(false) {
        return Err(unsupported(
            "stream_options.include_obfuscation",
            "chunks are not padded; leave it out",
        ));
    }
    options.finish()?;
    Ok(usage)
}

fn best_of(fields: &mut Fields, choices: u16) -> Result<(), Fault> {
    match fields.whole("best_of", 1, i64::MAX)? {
        Some(best_of) if best_of != i64::from(choices) => Err(unsupported(
            "best_of",
            "every sampled answer is returned; leave it out or set `n`",
        )),
        _ => Ok(()),
    }
}
