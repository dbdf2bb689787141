//! Reading single values of a line: numbers, words and times as logs write them.

use crate::moment;
use serde_json::Value;
use std::collections::BTreeMap;

/// More tokens than any context has.
const TOKENS_MAX: u64 = 1 << 40;

/// The value at a path: a name as it stands, or names joined by dots.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let found = value.get(path).or_else(|| {
        let mut names = path.split('.');
        names.try_fold(value, |value, name| value.get(name))
    });
    found.filter(|it| !it.is_null())
}

pub(crate) fn text(value: &Value, path: &str) -> Option<String> {
    match at(value, path)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(it) => Some(it.to_string()),
        _ => None,
    }
}

/// Of what nginx writes for several upstreams (`0.010, 0.350`; ` : ` after an internal redirect)
/// the last one that is not `-`: the earlier ones did not answer.
pub(crate) fn last(text: &str) -> &str {
    let attempts = text.split(", ").flat_map(|it| it.split(" : "));
    let answered = attempts
        .map(str::trim)
        .filter(|it| !matches!(*it, "" | "-"));
    answered.last().unwrap_or("")
}

/// A finite number, also one that is written as text.
pub(crate) fn number(value: &Value, path: &str) -> Result<Option<f64>, String> {
    let Some(found) = at(value, path) else {
        return Ok(None);
    };
    let parsed = match found {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match last(text) {
            "" => return Ok(None),
            text => text.parse().ok(),
        },
        _ => None,
    };
    let finite = parsed.filter(|it: &f64| it.is_finite());
    finite.map(Some).ok_or_else(|| format!("{path}: no number"))
}

pub(crate) fn count(value: &Value, path: &str) -> Result<Option<u64>, String> {
    let Some(number) = number(value, path)? else {
        return Ok(None);
    };
    if number.fract() != 0.0 || number < 0.0 || number > TOKENS_MAX as f64 {
        return Err(format!("{path}: {number} is no count"));
    }
    Ok(Some(number as u64))
}

/// A time in seconds since 1970: a number of units, also as text, or a time stamp.
pub(crate) fn time(value: &Value, path: &str, unit: f64) -> Result<Option<f64>, String> {
    let seconds = match at(value, path) {
        None => return Ok(None),
        Some(Value::String(text)) if text.trim().parse::<f64>().is_err() => {
            moment::seconds(text).map_err(|error| format!("{path}: {error}"))?
        }
        Some(_) => match number(value, path)? {
            Some(number) => number * unit,
            None => return Ok(None),
        },
    };
    if seconds.abs() > moment::LATEST {
        return Err(format!(
            "{path}: {seconds} seconds since 1970 are no time of a log: is time_unit right?"
        ));
    }
    Ok(Some(seconds))
}

/// An HTTP status, or a word for one: LiteLLM writes `success` and `failure`.
pub(crate) fn status(
    value: &Value,
    path: &str,
    words: &BTreeMap<String, u16>,
) -> Result<u16, String> {
    let Some(found) = text(value, path) else {
        return Ok(0);
    };
    let found = last(&found);
    if let Some(status) = words.get(found) {
        return Ok(*status);
    }
    let digits = found.split(' ').next().unwrap_or(found);
    let number = digits.parse::<f64>().ok();
    let is_status = |it: &f64| it.fract() == 0.0 && (*it == 0.0 || (100.0..=999.0).contains(it));
    if let Some(number) = number {
        let status = Some(number).filter(is_status).map(|it| it as u16);
        return status.ok_or_else(|| format!("{path}: {found} is no status"));
    }
    match found.to_ascii_lowercase().as_str() {
        "" => Ok(0),
        "success" | "succeeded" | "ok" | "completed" => Ok(200),
        "failure" | "failed" | "error" | "cancelled" | "canceled" | "timeout" => Ok(500),
        _ => Err(format!(
            "{path}: {found:?} is no status: say in `status_words` what it means"
        )),
    }
}
