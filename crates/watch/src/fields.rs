//! Where the figures stand in a line of somebody's access log.
//!
//! A line is a JSON object; a field is named by its path (`usage.prompt_tokens`). Without a
//! mapping the fields are those of Cofferdam's own gateway.

use crate::request::{OfPair, Request};
use crate::value::{count, duration, has, last, number, status, text, time};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest line that is read, in bytes.
pub const LINE_MAX: usize = 1 << 20;
/// Names longer than this are cut: they come from clients.
const NAME_MAX: usize = 256;

/// A mapping from lines to requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// When: a number in `time_unit`, or RFC 3339 text.
    time: Paths,
    #[serde(default)]
    time_unit: Unit,
    /// How long prefill, or the first token, took: a number in `seconds_unit`, or two times. Of
    /// several the first that a line has.
    seconds: Vec<Span>,
    #[serde(default)]
    seconds_unit: Unit,
    prompt_tokens: Paths,
    #[serde(default)]
    cached_tokens: Option<Paths>,
    #[serde(default)]
    completion_tokens: Option<Paths>,
    #[serde(default)]
    id: Option<Paths>,
    #[serde(default)]
    tenant: Option<Paths>,
    #[serde(default)]
    model: Option<Paths>,
    #[serde(default)]
    worker: Option<Paths>,
    /// Where it is missing from the mapping, every line counts as answered with 200.
    #[serde(default)]
    status: Option<Paths>,
    /// Of a line that has none.
    #[serde(default)]
    status_default: Option<u16>,
    /// Words that stand for a status.
    #[serde(default)]
    status_words: BTreeMap<String, u16>,
    #[serde(default)]
    sent_tokens: Option<Paths>,
    #[serde(default)]
    prefill_tokens: Option<Paths>,
    #[serde(default)]
    decode_tokens: Option<Paths>,
    #[serde(default)]
    accept_length: Option<Paths>,
    #[serde(default)]
    accept_rate: Option<Paths>,
    /// What the lines of prefill and of decode about one request have in common, and which of both
    /// wrote this one (`prefill`; anything else is decode).
    #[serde(default)]
    pair: Option<Paths>,
    #[serde(default)]
    side: Option<Paths>,
    /// Lines in which a field has another value than these are passed over.
    #[serde(default)]
    only: BTreeMap<String, Vec<String>>,
}

/// Where a figure stands: a path, or several of which the first counts that a line has.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Paths {
    One(String),
    Several(Vec<String>),
}

impl Paths {
    /// The one that this line has; of none, the first.
    fn of(&self, value: &Value) -> &str {
        let all = match self {
            Self::One(path) => return path,
            Self::Several(all) => all,
        };
        let found = all.iter().find(|path| has(value, path));
        found.or(all.first()).map_or("", String::as_str)
    }
}

/// Where a duration stands.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Span {
    /// In a field of its own.
    Field(String),
    /// Between two times, each a number in `time_unit` or a time stamp.
    Between {
        /// The earlier.
        from: String,
        /// The later.
        to: String,
    },
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
    /// Passed over, because `only` wants another value of a field.
    PassedOver {
        /// The field.
        field: String,
        /// What stands there; none where the line has no such field.
        value: Option<String>,
    },
    /// Of a log that has other lines too: none that is about a request.
    Unmarked,
    /// Not what the mapping says; why.
    Bad(String),
}

impl Default for Fields {
    fn default() -> Self {
        let one = |name: &str| Paths::One(name.to_owned());
        let some = |name: &str| Some(one(name));
        Self {
            time: one("time_unix_s"),
            time_unit: Unit::Seconds,
            seconds: vec![Span::Field("ttft_ms".to_owned())],
            seconds_unit: Unit::Millis,
            prompt_tokens: one("prompt_tokens"),
            cached_tokens: some("cached_tokens"),
            completion_tokens: some("completion_tokens"),
            id: some("request"),
            tenant: some("tenant"),
            model: some("model"),
            // A new life of a worker is the same machine: its epoch would begin a new series.
            worker: None,
            status: some("status"),
            status_default: None,
            status_words: BTreeMap::new(),
            sent_tokens: None,
            prefill_tokens: None,
            decode_tokens: None,
            accept_length: None,
            accept_rate: None,
            pair: None,
            side: None,
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
        self.value(&value)
    }

    /// Reads what a line was taken apart into.
    pub(crate) fn value(&self, value: &Value) -> Line {
        if let Some(passed_over) = self.passed_over(value) {
            return passed_over;
        }
        match self.request(value) {
            Ok(Some(request)) => Line::Request(Box::new(request)),
            Ok(None) => Line::Other,
            Err(why) => Line::Bad(why),
        }
    }

    fn passed_over(&self, value: &Value) -> Option<Line> {
        self.only.iter().find_map(|(field, allowed)| {
            let is = text(value, field);
            let kept = is.as_ref().is_some_and(|it| allowed.contains(it));
            (!kept).then(|| Line::PassedOver {
                field: field.clone(),
                value: is.map(|it| it.chars().take(NAME_MAX).collect()),
            })
        })
    }

    /// What `only` wants of a field.
    pub fn wanted(&self, field: &str) -> &[String] {
        self.only.get(field).map_or(&[], Vec::as_slice)
    }

    fn request(&self, value: &Value) -> Result<Option<Request>, String> {
        let tokens = |paths: &Option<Paths>| match paths {
            Some(paths) => count(value, paths.of(value)),
            None => Ok(None),
        };
        let share = |paths: &Option<Paths>| match paths {
            Some(paths) => number(value, paths.of(value)),
            None => Ok(None),
        };
        let name = |paths: &Option<Paths>| {
            let text = paths.as_ref().and_then(|it| text(value, it.of(value)));
            text.map_or(String::new(), |it| it.chars().take(NAME_MAX).collect())
        };
        let prompt_tokens = count(value, self.prompt_tokens.of(value))?;
        let generated =
            || Ok::<_, String>(tokens(&self.completion_tokens)?.is_some_and(|it| it > 0));
        if prompt_tokens.is_none() && self.only.is_empty() && !generated()? {
            return Ok(None);
        }
        let status = match &self.status {
            Some(paths) => match status(value, paths.of(value), &self.status_words)? {
                0 => self.status_default.unwrap_or(0),
                status => status,
            },
            None => 200,
        };
        // An answer whose prompt nobody counted (streamed without usage) is one that cannot be
        // compared, and no other line than one that can.
        let prompt_tokens = match prompt_tokens {
            None if status != 200 => return Ok(None),
            counted => counted.unwrap_or(0),
        };
        let when = self.time.of(value);
        let moment = match when {
            "" => Some(0.0), // a log without times that can be read, and without times to judge
            when => time(value, when, self.time_unit.seconds(1.0))?,
        };
        let leg = OfPair {
            pair: name(&self.pair),
            is_prefill: name(&self.side) == "prefill",
        };
        let request = Request {
            time: moment.ok_or_else(|| format!("{when}: no time"))?,
            id: name(&self.id),
            tenant: name(&self.tenant),
            model: name(&self.model),
            worker: last(&name(&self.worker)).to_owned(),
            status,
            prompt_tokens,
            cached_tokens: tokens(&self.cached_tokens)?,
            completion_tokens: tokens(&self.completion_tokens)?,
            seconds: self.seconds(value)?,
            sent_tokens: tokens(&self.sent_tokens)?,
            prefill_tokens: tokens(&self.prefill_tokens)?,
            decode_tokens: tokens(&self.decode_tokens)?,
            accept_length: share(&self.accept_length)?,
            accept_rate: share(&self.accept_rate)?,
            leg: Some(leg).filter(|it| !it.pair.is_empty()),
        };
        possible(&request)?;
        Ok(Some(request))
    }

    /// The first that the line has.
    fn seconds(&self, value: &Value) -> Result<Option<f64>, String> {
        for span in &self.seconds {
            let (path, seconds) = match span {
                Span::Field(path) => {
                    let unit = self.seconds_unit.seconds(1.0);
                    (path, duration(value, path, unit)?)
                }
                Span::Between { from, to } => {
                    let unit = self.time_unit.seconds(1.0);
                    let ends = (time(value, from, unit)?, time(value, to, unit)?);
                    let span = ends.0.zip(ends.1).map(|(from, to)| to - from);
                    (to, span)
                }
            };
            match seconds {
                Some(it) if it < 0.0 => return Err(format!("{path}: {it} s is negative")),
                Some(it) => return Ok(Some(it)),
                None => {}
            }
        }
        Ok(None)
    }
}

/// What no engine counts: then the mapping is wrong, or the line is.
fn possible(it: &Request) -> Result<(), String> {
    let prompt = it.prompt_tokens;
    if let Some(cached) = it.cached_tokens.filter(|it| *it > prompt) {
        return Err(format!(
            "{cached} cached tokens of a prompt of {prompt}: is prompt_tokens without those?"
        ));
    }
    if let Some(rate) = it.accept_rate.filter(|it| !(0.0..=1.0).contains(it)) {
        return Err(format!("accept_rate {rate} is no share: from 0 to 1"));
    }
    if let Some(length) = it.accept_length.filter(|it| *it < 0.0) {
        return Err(format!("accept_length {length} is negative"));
    }
    Ok(())
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
            Line::PassedOver {
                field: "route".to_owned(),
                value: Some("/health".to_owned())
            }
        );
    }

    /// nginx as a proxy, with `escape=json`: everything is text, and retried upstreams are listed.
    #[test]
    fn nginx_lists_every_upstream_that_it_tried() {
        let fields = Fields::parse(
            "time = 'time'\nseconds = ['header_time']\nprompt_tokens = 'tokens'\n\
             status = 'upstream_status'\nworker = 'upstream'\n",
        )
        .unwrap();
        let line = |time: &str, status: &str| {
            format!(
                r#"{{"time":"2026-11-29T14:00:00+02:00","header_time":"{time}","tokens":"12",
                "upstream_status":"{status}","upstream":"10.0.0.1:80, 10.0.0.2:80"}}"#
            )
            .replace('\n', " ")
        };
        let it = request(&fields, &line("0.010, 0.350", "502, 200"));
        assert_eq!((it.seconds, it.status), (Some(0.35), 200));
        assert_eq!(
            (it.worker.as_str(), it.time),
            ("10.0.0.2:80", 1_795_953_600.0)
        );
        let it = request(&fields, &line("0.010 : 0.350", "404 : 200"));
        assert_eq!((it.seconds, it.status), (Some(0.35), 200));
        let it = request(&fields, &line("-, 0.350", "504, 200"));
        assert_eq!(it.seconds, Some(0.35));
        let it = request(&fields, &line("-", "-"));
        assert_eq!((it.seconds, it.status), (None, 0));
        assert!(matches!(fields.line(&line("0,010", "200")), Line::Bad(_)));
    }

    /// LiteLLM's standard logging payload.
    #[test]
    fn litellm_says_success_and_two_times() {
        let fields = Fields::parse(
            "time = 'startTime'\nprompt_tokens = 'prompt_tokens'\nstatus = 'status'\n\
             seconds = [{ from = 'startTime', to = 'completionStartTime' }]\n\
             status_words = { blocked = 403 }\n",
        )
        .unwrap();
        let line = |start: &str, first: &str, status: &str| {
            format!(
                r#"{{"startTime":{start},"completionStartTime":{first},"status":"{status}","prompt_tokens":9}}"#
            )
        };
        let it = request(&fields, &line("1796000000.5", "1796000000.75", "success"));
        assert_eq!(
            (it.seconds, it.status, it.time),
            (Some(0.25), 200, 1_796_000_000.5)
        );
        let texts = (
            r#""2026-11-29T14:00:00.5+02:00""#,
            r#""2026-11-29T12:00:01.5Z""#,
        );
        let it = request(&fields, &line(texts.0, texts.1, "200 OK"));
        assert_eq!((it.seconds, it.status), (Some(1.0), 200));
        assert_eq!(
            request(&fields, &line("1.5", "null", "failure")).status,
            500
        );
        assert_eq!(
            request(&fields, &line("1.5", "null", "blocked")).status,
            403
        );
        for (start, first, status) in [
            ("2.5", "1.5", "success"),
            ("1.5", "2.5", "perhaps"),
            ("1.5", "2.5", "70000"),
            (r#""noon""#, "2.5", "success"),
        ] {
            let bad = line(start, first, status);
            assert!(matches!(fields.line(&bad), Line::Bad(_)), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        let fields = Fields::default();
        for (more, says) in [
            (
                r#""cached_tokens":13"#,
                "13 cached tokens of a prompt of 12",
            ),
            (r#""time_unix_s":1796000000000"#, "is time_unit right?"),
            (r#""status":42"#, "no status"),
        ] {
            let line = format!(r#"{{"time_unix_s":1.0,"prompt_tokens":12,{more}}}"#);
            match fields.line(&line) {
                Line::Bad(why) => assert!(why.contains(says), "{line}: {why}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        let all = r#"{"time_unix_s":1.0,"prompt_tokens":12,"cached_tokens":12}"#;
        assert_eq!(request(&fields, all).uncached(), 1);
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
