use serde_json::Value;

use super::{Fields, Input, invalid, unsupported};
use crate::api::fields::whole;
use crate::engine::Fault;

const EXPECTED: &str = "a string or a list of token ids";

pub fn input(fields: &mut Fields) -> Result<Input, Fault> {
    let value = fields
        .take("prompt")
        .ok_or_else(|| invalid("prompt", EXPECTED))?;
    one(value, true)
}

/// One prompt, or a list of exactly one. Several prompts in a request would be several requests
/// with one outcome, and an outcome is set once for each (H-6): clients send several requests.
fn one(value: Value, may_nest: bool) -> Result<Input, Fault> {
    match value {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(mut list)
            if matches!(list.first(), Some(Value::String(_) | Value::Array(_))) =>
        {
            match list.len() {
                1 if may_nest => one(list.remove(0), false),
                1 => Err(invalid("prompt", EXPECTED)),
                _ => Err(unsupported(
                    "prompt",
                    "one prompt a request; send several requests",
                )),
            }
        }
        Value::Array(list) => token_ids("prompt", &list).map(Input::Tokens),
        _ => Err(invalid("prompt", EXPECTED)),
    }
}

/// Reads token ids.
///
/// # Errors
/// An element is not one.
pub fn token_ids(param: &'static str, list: &[Value]) -> Result<Vec<u32>, Fault> {
    list.iter()
        .map(|value| {
            whole(value)
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| invalid(param, "every element to be a token id"))
        })
        .collect()
}

/// `logprobs: k` means log-probabilities with `k` alternatives.
pub fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Fault> {
    Ok(fields.whole("logprobs", 0, 20)?.map(|n| n as u8))
}
