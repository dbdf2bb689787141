//! Reading single values of a line: numbers, words and times as logs write them.

use crate::moment;
use serde_json::Value;
use std::collections::BTreeMap;

/// More tokens than any context has.
const TOKENS_MAX: u64 = 1 << 40;

/// The value at a path: names joined by dots, of which some may have dots themselves.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let found = value.get(path).filter(|it| !it.is_null());
    found.or_else(|| {
        let mut dots = path.match_indices('.');
        dots.find_map(|(dot, _)| at(value.get(&path[..dot])?, &path[dot + 1..]))
    })
}

/// Whether something stands there.
pub(crate) fn has(value: &Value, path: &str) -> bool {
    at(value, path).is_some()
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

/// Seconds: a number of units, or one that names its own (`350ms`, `0.35s`).
pub(crate) fn duration(value: &Value, path: &str, unit: f64) -> Result<Option<f64>, String> {
    const UNITS: [(&str, f64); 6] = [
        ("ms", 1e-3),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ns", 1e-9),
        ("s", 1.0),
    ];
    if let Some(Value::String(text)) = at(value, path) {
        let text = last(text);
        let named = UNITS.iter().find_map(|(name, unit)| {
            let number: f64 = text.strip_suffix(name)?.trim_end().parse().ok()?;
            number.is_finite().then_some(number * unit)
        });
        if named.is_some() {
            return Ok(named);
        }
    }
    Ok(number(value, path)?.map(|it| it * unit))
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
    let mut parts = found.split(' ');
    let first = parts.next().unwrap_or(found);
    let digits = match first.starts_with("HTTP/") {
        true => parts.next().unwrap_or(first),
        false => first,
    };
    let number = digits.parse::<f64>().ok();
    let is_status = |it: &f64| it.fract() == 0.0 && (*it == 0.0 || (100.0..=999.0).contains(it));
    if let Some(number) = number {
        let status = Some(number).filter(is_status).map(|it| it as u16);
        return status.ok_or_else(|| format!("{path}: {found} is no status"));
    }
    match found.to_ascii_lowercase().as_str() {
        "" => Ok(0),
        "success" | "succeeded" | "ok" | "completed" | "true" | "status_code_ok" => Ok(200),
        "failure" | "failed" | "error" | "cancelled" | "canceled" | "timeout" | "false"
        | "status_code_error" => Ok(500),
        _ => Err(format!(
            "{path}: {found:?} is no status: say in `status_words` what it means"
        )),
    }
}
