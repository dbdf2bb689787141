//! From a request body to an [`Ask`]: every field read, checked, or refused by name.

mod carried;
mod chat;
mod completion;
mod ending;
mod known;
mod sampling;

use super::fields::{Fields, invalid, unsupported};
use crate::engine::{Fault, Sampling};
use serde_json::{Map, Value};

pub(super) use chat::{Talk, talk};
pub(super) use completion::token_ids;
pub(super) use ending::Rules;
use known::empty;

/// Which of OpenAI's two request forms is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/v1/chat/completions`
    Chat,
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
    /// What only the engine itself can carry out.
    pub carried: Option<Map<String, Value>>,
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
    /// Reads the body of `POST /v1/chat/completions` or `/v1/completions`. `carries`: the fields that the
    /// engine carries out itself.
    ///
    /// # Errors
    /// A fault naming the first field that cannot be served as asked.
    pub(super) fn parse(
        dialect: Dialect,
        body: &[u8],
        max_choices: u16,
        carries: &[&str],
    ) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        known::unused_tools(&mut fields)?;
        let carried = carried::take(&mut fields, carries);
        let tools = carried.as_ref().and_then(|it| it.get("tools"));
        let mut echo = false;
        let mut add_special = true;
        let (input, logprobs) = match dialect {
            Dialect::Chat => {
                let mut talk = chat::talk(&mut fields, carries)?;
                talk.chat.tools = tools.cloned();
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
        if echo && (logprobs.is_some() || carried.is_some()) {
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
            carried,
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
