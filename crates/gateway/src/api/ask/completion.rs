use serde_json::Value;

use super::{Fields, Prompt, invalid};
use crate::api::fields::whole;
use crate::engine::Fault;

/// Most prompts of one request.
const PROMPTS_MAX: usize = 64;

const EXPECTED: &str =
    "a string, a list of token ids, or a list of 1 to 64 of these, all of one kind";

/// One prompt or several.
pub(super) fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, Fault> {
    let wrong = || invalid("prompt", EXPECTED);
    match fields.take("prompt").ok_or_else(wrong)? {
        Value::String(text) => Ok(vec![Prompt::Text(text)]),
        Value::Array(list) if matches!(list.first(), Some(Value::String(_) | Value::Array(_))) => {
            if list.len() > PROMPTS_MAX {
                return Err(wrong());
            }
            let texts = matches!(list.first(), Some(Value::String(_)));
            let each = list.into_iter().map(|value| match value {
                Value::String(text) if texts => Ok(Prompt::Text(text)),
                Value::Array(list) if !texts => token_ids("prompt", &list).map(Prompt::Tokens),
                _ => Err(wrong()),
            });
            each.collect()
        }
        Value::Array(list) => Ok(vec![Prompt::Tokens(token_ids("prompt", &list)?)]),
        _ => Err(wrong()),
    }
}

/// Reads token ids.
///
/// # Errors
/// An element is not one.
pub(crate) fn token_ids(param: &'static str, list: &[Value]) -> Result<Vec<u32>, Fault> {
    list.iter()
        .map(|value| {
            whole(value)
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| invalid(param, "every element to be a token id"))
        })
        .collect()
}

/// `logprobs: k` means log-probabilities with `k` alternatives.
pub(super) fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Fault> {
    Ok(fields.whole("logprobs", 0, 20)?.map(|n| n as u8))
}
