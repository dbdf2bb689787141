//! Where the figures stand in a line of somebody's access log.
//!
//! A line is a JSON object; a field is named by its path (`usage.prompt_tokens`). Without a
//! mapping the fields are those of Cofferdam's own gateway.

use crate::request::Request;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest line that is read, in bytes.
pub const LINE_MAX: usize = 1 << 20;
/// Names longer than this are cut: they come from clients.
const NAME_MAX: usize = 256;
/// More tokens than any context has.
const TOKENS_MAX: u64 = 1 << 40;

/// A mapping from lines to requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// When: a number in `time_unit`, or RFC 3339 text.
    time: String,
    #[serde(default)]
    time_unit: Unit,
    /// How long prefill, or the first token, took: a number in `seconds_unit`. Of several the
    /// first that a line has.
    seconds: Vec<String>,
    #[serde(default)]
    seconds_unit: Unit,
    prompt_tokens: String,
    #[serde(default)]
    cached_tokens: Option<String>,
    #[serde(default)]
    completion_tokens: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    worker: Option<String>,
    /// Where it is missing from the mapping, every line counts as answered with 200.
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    sent_tokens: Option<String>,
    #[serde(default)]
    prefill_tokens: Option<String>,
    #[serde(default)]
    decode_tokens: Option<String>,
    #[serde(default)]
    accept_length: Option<String>,
    #[serde(default)]
    accept_rate: Option<String>,
    /// Lines in which a field has another value than these are passed over.
    #[serde(default)]
    only: BTreeMap<String, Vec<String>>,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanos,
}

impl Unit {
    fn seconds(self, value: f64) -> f64 {
        value
            * match self {
                Self::Seconds => 1.0,
                Self::Millis => 1e-3,
                Self::Micros => 1e-6,
                Self::Nanos => 1e-9,
            }
    }
}

/// What a line turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A request for a generation.
    Request(Box<Request>),
    /// Something else that may stand there: a blank line, another route, a refusal before its
    /// prompt was counted.
    Other,
    /// Not what the mapping says; why.
    Bad(String),
}

impl Default for Fields {
    fn default() -> Self {
        let some = |name: &str| Some(name.to_owned());
        Self {
            time: "time_unix_s".to_owned(),
            time_unit: Unit::Seconds,
            seconds: vec!["ttft_ms".to_owned()],
            seconds_unit: Unit::Millis,
            prompt_tokens: "prompt_tokens".to_owned(),
            cached_tokens: some("cached_tokens"),
            completion_tokens: some("completion_tokens"),
            id: some("request"),
            tenant: some("tenant"),
            model: some("model"),
            // A new life of a worker is the same machine: its epoch would begin a new series.
            worker: None,
            status: some("status"),
            sent_tokens: None,
            prefill_tokens: None,
            decode_tokens: None,
            accept_length: None,
            accept_rate: None,
            only: BTreeMap::new(),
        }
    }
}

impl Fields {
    /// Reads a mapping (TOML).
    ///
    /// # Errors
    /// What is wrong with it, with the line.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Reads a line.
    pub fn line(&self, line: &str) -> Line {
        if line.trim().is_empty() {
            return Line::Other;
        }
        if line.len() > LINE_MAX {
            return Line::Bad(format!("longer than {LINE_MAX} bytes"));
        }
        let value: Value = match serde_json::from_str(line) {
            Ok(value) => value,
            Err(error) => return Line::Bad(format!("not JSON: {error}")),
        };
        if !value.is_object() {
            return Line::Bad("not a JSON object".to_owned());
        }
        let kept = |(path, allowed): (&String, &Vec<String>)| {
            text(&value, path).is_some_and(|it| allowed.contains(&it))
        };
        if !self.only.iter().all(kept) {
            return Line::Other;
        }
        match self.request(&value) {
            Ok(Some(request)) => Line::Request(Box::new(request)),
            Ok(None) => Line::Other,
            Err(why) => Line::Bad(why),
        }
    }

    fn request(&self, value: &Value) -> Result<Option<Request>, String> {
        let tokens = |path: &Option<String>| match path {
            Some(path) => count(value, path),
            None => Ok(None),
        };
        let share = |path: &Option<String>| match path {
            Some(path) => number(value, path),
            None => Ok(None),
        };
        let name = |path: &Option<String>| {
            let text = path.as_ref().and_then(|path| text(value, path));
            text.map_or(String::new(), |it| it.chars().take(NAME_MAX).collect())
        };
        let Some(prompt_tokens) = count(value, &self.prompt_tokens)? else {
            return Ok(None);
        };
        let mut seconds = None;
        for path in &self.seconds {
            seconds = match number(value, path)? {
                Some(it) if it < 0.0 => return Err(format!("{path}: {it} is negative")),
                Some(it) => Some(self.seconds_unit.seconds(it)),
                None => continue,
            };
            break;
        }
        let status = match &self.status {
            Some(path) => match count(value, path)? {
                Some(status) => u16::try_from(status).map_err(|_| format!("{path}: {status}"))?,
                None => 0,
            },
            None => 200,
        };
        Ok(Some(Request {
            time: self.time(value)?,
            id: name(&self.id),
            tenant: name(&self.tenant),
            model: name(&self.model),
            worker: name(&self.worker),
            status,
            prompt_tokens,
            cached_tokens: tokens(&self.cached_tokens)?,
            completion_tokens: tokens(&self.completion_tokens)?,
            seconds,
            sent_tokens: tokens(&self.sent_tokens)?,
            prefill_tokens: tokens(&self.prefill_tokens)?,
            decode_tokens: tokens(&self.decode_tokens)?,
            accept_length: share(&self.accept_length)?,
            accept_rate: share(&self.accept_rate)?,
        }))
    }

    fn time(&self, value: &Value) -> Result<f64, String> {
        let path = &self.time;
        match at(value, path) {
            Some(Value::String(text)) => {
                let time = humantime::parse_rfc3339_weak(text);
                let time = time.map_err(|error| format!("{path}: {error}"))?;
                let since = time.duration_since(std::time::UNIX_EPOCH);
                Ok(since.map_or(0.0, |it| it.as_secs_f64()))
            }
            _ => match number(value, path)? {
                Some(it) => Ok(self.time_unit.seconds(it)),
                None => Err(format!("{path}: no time")),
            },
        }
    }
}

/// The value at a path: a name as it stands, or names joined by dots.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let found = value.get(path).or_else(|| {
        let mut names = path.split('.');
        names.try_fold(value, |value, name| value.get(name))
    });
    found.filter(|it| !it.is_null())
}

fn text(value: &Value, path: &str) -> Option<String> {
    match at(value, path)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(it) => Some(it.to_string()),
        _ => None,
    }
}

/// A finite number, also one that is written as text.
fn number(value: &Value, path: &str) -> Result<Option<f64>, String> {
    let Some(found) = at(value, path) else {
        return Ok(None);
    };
    let parsed = match found {
        Value::Number(number) => number.as_f64(),
        Value::String(text) if text.is_empty() || text == "-" => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let finite = parsed.filter(|it: &f64| it.is_finite());
    finite.map(Some).ok_or_else(|| format!("{path}: no number"))
}

fn count(value: &Value, path: &str) -> Result<Option<u64>, String> {
    let Some(number) = number(value, path)? else {
        return Ok(None);
    };
    if number.fract() != 0.0 || number < 0.0 || number > TOKENS_MAX as f64 {
        return Err(format!("{path}: {number} is no count"));
    }
    Ok(Some(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(fields: &Fields, line: &str) -> Request {
        match fields.line(line) {
            Line::Request(request) => *request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn our_own_access_log() {
        let line = r#"{"time_unix_s":1796000000.125,"request":"r-7","route":"POST /v1/completions",
            "outcome":"ok","status":200,"duration_ms":120.0,"tenant":"a","engine_request":"e",
            "stream":true,"ttft_ms":80.5,"completion_tokens":9,"cached_tokens":16,
            "prompt_tokens":331,"model":"m","prefill_epoch":"x","decode_epoch":"y"}"#;
        let it = request(&Fields::default(), &line.replace('\n', " "));
        assert_eq!((it.prompt_tokens, it.uncached()), (331, 315));
        assert_eq!(
            (it.status, it.tenant.as_str(), it.id.as_str()),
            (200, "a", "r-7")
        );
        assert_eq!(it.seconds, Some(0.0805));
        assert_eq!(it.time, 1_796_000_000.125);
        let refused = r#"{"time_unix_s":1.0,"route":"POST /v1/completions","status":401}"#;
        assert_eq!(Fields::default().line(refused), Line::Other);
    }

    #[test]
    fn a_mapping_of_somebody_elses_log() {
        let fields = Fields::parse(
            "time = 'ts'\nseconds = ['timing.prefill', 'timing.first']\nseconds_unit = 'us'\n\
             prompt_tokens = 'usage.prompt_tokens'\nprefill_tokens = 'p.n'\n\
             [only]\nroute = ['/v1/completions']\n",
        )
        .unwrap();
        let line = r#"{"ts":"2026-11-29T12:00:00Z","route":"/v1/completions",
            "timing":{"first":2500},"usage":{"prompt_tokens":"12"},"p":{"n":1}}"#;
        let it = request(&fields, line);
        assert_eq!((it.prompt_tokens, it.prefill_tokens), (12, Some(1)));
        assert_eq!(it.seconds, Some(0.0025));
        assert_eq!(it.status, 200);
        assert_eq!(it.time, 1_795_953_600.0);
        assert_eq!(
            fields.line(&line.replace("/v1/completions", "/health")),
            Line::Other
        );
    }

    #[test]
    fn what_is_no_figure_is_bad_and_named() {
        let fields = Fields::default();
        for (line, name) in [
            ("nonsense", "JSON"),
            ("[1]", "object"),
            (r#"{"time_unix_s":1,"prompt_tokens":-1}"#, "prompt_tokens"),
            (r#"{"time_unix_s":1,"prompt_tokens":1.5}"#, "prompt_tokens"),
            (
                r#"{"time_unix_s":1,"prompt_tokens":1,"ttft_ms":-3}"#,
                "ttft_ms",
            ),
            (
                r#"{"time_unix_s":1,"prompt_tokens":1,"status":70000}"#,
                "status",
            ),
            (r#"{"prompt_tokens":1}"#, "time_unix_s"),
        ] {
            match fields.line(line) {
                Line::Bad(why) => assert!(why.contains(name), "{line}: {why}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_misspelt_mapping_is_an_error() {
        let error = Fields::parse("time = 't'\nseconds = []\nprompt_tokens = 'p'\ntennant = 'x'\n");
        assert!(error.unwrap_err().to_string().contains("tennant"));
    }

    proptest! {
        #[test]
        fn no_line_panics(line in any::<String>()) {
            let _ = Fields::default().line(&line);
        }
    }
}
