//! From a request body to an [`Ask`]: every field read, checked, or refused by name.

mod chat;
mod completion;
mod sampling;

use serde_json::Value;
use text::{STOP_BYTES_MAX, STOPS_MAX, StopMatcher};

use super::fields::{Fields, invalid, unsupported};
use super::text::ChatMessage;
use crate::engine::{Fault, Sampling};

pub use chat::messages;
pub use completion::token_ids;

/// Which of OpenAI's two request forms is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A conversation.
    Chat(Vec<ChatMessage>),
    /// A bare text.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<u32>),
}

/// A generation request, checked as far as possible without tokenizer and limits.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The form of the answer.
    pub dialect: Dialect,
    /// The model asked for; none: the default.
    pub model: Option<String>,
    /// What to continue.
    pub input: Input,
    /// The part of the tenant's cache that may be used.
    pub cache_salt: Option<String>,
    /// How many answers.
    pub choices: u16,
    /// Most tokens of an answer; none: up to the context.
    pub max_tokens: Option<u32>,
    /// How to sample; its seed is not set yet where `seed` is none.
    pub sampling: Sampling,
    /// The client's seed.
    pub seed: Option<u64>,
    /// Texts that end an answer.
    pub stop: StopMatcher,
    /// Go on after a stop token.
    pub ignore_eos: bool,
    /// Answer as server-sent events.
    pub stream: bool,
    /// End a stream with the usage figures.
    pub include_usage: bool,
}

impl Ask {
    /// Reads the body of `POST /v1/chat/completions` or `/v1/completions`.
    ///
    /// # Errors
    /// A fault naming the first field that cannot be served as asked.
    pub fn parse(dialect: Dialect, body: &[u8], max_choices: u16) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        let (input, logprobs) = match dialect {
            Dialect::Chat => (chat::input(&mut fields)?, chat::logprobs(&mut fields)?),
            Dialect::Completion => (
                completion::input(&mut fields)?,
                completion::logprobs(&mut fields)?,
            ),
        };
        let (mut sampling, seed) = sampling::read(&mut fields)?;
        sampling.logprobs = logprobs;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let ask = Self {
            dialect,
            model: fields.text("model")?,
            input,
            cache_salt: cache_salt(&mut fields)?,
            choices: fields.whole("n", 1, max_choices.into())?.unwrap_or(1) as u16,
            max_tokens: max_tokens(&mut fields)?,
            sampling,
            seed,
            stop: stops(&mut fields)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            stream,
            include_usage: stream_options(&mut fields, stream)?,
        };
        best_of(&mut fields, ask.choices)?;
        accept_harmless(&mut fields)?;
        refuse_known(&mut fields)?;
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

fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, Fault> {
    let mut read = |key: &str| {
        let value = fields.whole(key, 1, i64::MAX)?;
        Ok(value.map(|n| n.min(u32::MAX.into()) as u32))
    };
    match (read("max_tokens")?, read("max_completion_tokens")?) {
        (Some(old), Some(new)) if old != new => Err(invalid(
            "max_tokens",
            "the same value as `max_completion_tokens`, or only one",
        )),
        (old, new) => Ok(new.or(old)),
    }
}

fn stops(fields: &mut Fields) -> Result<StopMatcher, Fault> {
    let expected = format!("a string or up to {STOPS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes");
    let list = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    let stops: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
    stops
        .and_then(|stops| StopMatcher::new(&stops).ok())
        .ok_or_else(|| invalid("stop", expected))
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, Fault> {
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        return Err(invalid(
            "stream_options",
            "`stream` to be true where this is set",
        ));
    }
    let include = options.flag("include_usage")?.unwrap_or(false);
    // Padding against traffic analysis: there is none, so only "off" is true.
    if options.flag("include_obfuscation")?.unwrap_or(false) {
        return Err(unsupported(
            "stream_options.include_obfuscation",
            "chunks are not padded",
        ));
    }
    options.finish()?;
    Ok(include)
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

/// Fields that are for the provider's bookkeeping and change no answer.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls", // there are no tools to call
    "prediction",          // may only make an answer faster
];

fn accept_harmless(fields: &mut Fields) -> Result<(), Fault> {
    for key in HARMLESS {
        fields.take(key);
    }
    Ok(())
}

type ChangesNothing = fn(&Value) -> bool;

/// Fields that are known to change answers and are not implemented, with the values that change
/// nothing, which are accepted, and what to say about the rest.
const KNOWN: &[(&str, ChangesNothing, &str)] = &[
    ("tools", empty, "tool calls are not implemented"),
    ("tool_choice", no_tool, "tool calls are not implemented"),
    ("functions", empty, "function calls are not implemented"),
    (
        "function_call",
        no_tool,
        "function calls are not implemented",
    ),
    (
        "response_format",
        plain_text,
        "answers are plain text; only {\"type\": \"text\"} is served",
    ),
    ("modalities", text_only, "answers are text only"),
    ("audio", never, "answers are text only"),
    ("echo", is_false, "the prompt is not repeated in the answer"),
    ("suffix", empty, "text is continued, not filled in"),
    (
        "logit_processors",
        empty,
        "there are no custom logit processors",
    ),
    (
        "logits_processors",
        empty,
        "there are no custom logit processors",
    ),
    (
        "reasoning_effort",
        never,
        "the model has no reasoning switch",
    ),
    ("verbosity", never, "the model has no verbosity switch"),
    ("web_search_options", never, "there is no web search"),
    ("stop_token_ids", empty, "use `stop` with text"),
    ("bad_words", empty, "use `logit_bias`"),
    (
        "include_stop_str_in_output",
        is_false,
        "stop strings are always cut off",
    ),
    (
        "min_tokens",
        zero,
        "an answer may end as soon as the model ends it",
    ),
    ("use_beam_search", is_false, "there is no beam search"),
    ("length_penalty", one, "there is no beam search"),
    (
        "skip_special_tokens",
        is_true,
        "special tokens are never shown in answers",
    ),
    (
        "spaces_between_special_tokens",
        is_true,
        "special tokens are never shown in answers",
    ),
    (
        "prompt_logprobs",
        never,
        "log-probabilities of the prompt are not computed",
    ),
    (
        "add_generation_prompt",
        is_true,
        "an answer always begins with a new assistant turn",
    ),
    (
        "continue_final_message",
        is_false,
        "an answer always begins with a new assistant turn",
    ),
    (
        "add_special_tokens",
        never,
        "send token ids to control special tokens",
    ),
    (
        "chat_template",
        never,
        "the model's own chat template is used",
    ),
    (
        "chat_template_kwargs",
        empty,
        "the model's own chat template is used",
    ),
    (
        "guided_json",
        never,
        "constrained output is not implemented",
    ),
    (
        "guided_regex",
        never,
        "constrained output is not implemented",
    ),
    (
        "guided_choice",
        never,
        "constrained output is not implemented",
    ),
    (
        "guided_grammar",
        never,
        "constrained output is not implemented",
    ),
    (
        "structured_outputs",
        never,
        "constrained output is not implemented",
    ),
    ("lora_path", never, "there are no adapters"),
];

fn refuse_known(fields: &mut Fields) -> Result<(), Fault> {
    for (key, changes_nothing, why) in KNOWN {
        if let Some(value) = fields.take(key)
            && !changes_nothing(&value)
        {
            return Err(unsupported(*key, why));
        }
    }
    Ok(())
}

fn never(_: &Value) -> bool {
    false
}
fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}
fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}
fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}
fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
fn empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
fn no_tool(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}
fn plain_text(value: &Value) -> bool {
    *value == serde_json::json!({"type": "text"})
}
fn text_only(value: &Value) -> bool {
    *value == serde_json::json!(["text"])
}
