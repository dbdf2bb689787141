//! When an answer ends, and what of its end is shown.

use serde_json::Value;
use tokenizer::{STOP_BYTES_MAX, STOPS_MAX, StopMatcher};

use super::{Fields, invalid, token_ids};
use crate::engine::Fault;

/// When an answer ends, and what of its end is shown.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Texts that end it.
    pub stop: StopMatcher,
    /// Tokens that end it, besides the model's own; sorted, none twice.
    pub stop_tokens: Vec<u32>,
    /// Go on after a stop token of the model.
    pub ignore_eos: bool,
    /// Tokens that it has at least.
    pub min_tokens: u32,
    /// Show the stop string, and the text of a stop token.
    pub keep_stop: bool,
    /// Show the text of special tokens.
    pub specials: bool,
}

impl Rules {
    /// Reads them.
    ///
    /// # Errors
    /// A fault naming the field that cannot be served.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, Fault> {
        let keep_stop = fields.flag("include_stop_str_in_output")?;
        let hidden = fields.flag("skip_special_tokens")?;
        let min_tokens = fields.whole("min_tokens", 0, u32::MAX.into())?;
        Ok(Self {
            stop: stops(fields)?,
            stop_tokens: stop_tokens(fields)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            min_tokens: min_tokens.unwrap_or(0) as u32,
            keep_stop: keep_stop.unwrap_or(false),
            specials: !hidden.unwrap_or(true),
        })
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

fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, Fault> {
    let key = "stop_token_ids";
    let most = wire::STOP_TOKENS_MAX;
    match fields.take(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= most => {
            let mut tokens = token_ids(key, &list)?;
            tokens.sort_unstable();
            tokens.dedup();
            Ok(tokens)
        }
        Some(_) => Err(invalid(key, format!("a list of at most {most} token ids"))),
    }
}

/// Most tokens of an answer, by whichever of its names; none: as many as fit.
pub(super) fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, Fault> {
    let mut least: Option<(&str, u32)> = None;
    for key in ["max_tokens", "max_completion_tokens", "n_predict"] {
        // -1 is how vLLM's and llama.cpp's clients spell "no maximum".
        let most = match fields.whole(key, -1, i64::MAX)? {
            None | Some(-1) => continue,
            Some(0) => return Err(invalid(key, "a whole number from 1, or -1 for no maximum")),
            Some(n) => n.min(u32::MAX.into()) as u32,
        };
        match least {
            Some((other, known)) if known != most => {
                let expected = format!("the same value as `{other}`, or only one of them");
                return Err(invalid(key, expected));
            }
            _ => least = Some((key, most)),
        }
    }
    Ok(least.map(|(_, most)| most))
}
