//! Audit records: one JSON object a line, for people who must say afterwards what happened. Never a
//! word or a token of a prompt; a prompt appears as its keyed lineage, by six bytes.

use serde::Serialize;
use std::collections::BTreeMap;

/// No field of a record is longer, in characters: ids come from clients.
const FIELD_CHARS_MAX: usize = 256;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Record {
    /// Seconds since 1970, of the machine's clock, with milliseconds.
    time: String,
    /// The engine: `vllm` or `sglang`.
    engine: String,
    /// What happened: `refused`, `verified`, `stated`, `started`, …
    event: String,
    /// What it was about: request, reason, block, expected, got, …
    #[serde(flatten)]
    fields: BTreeMap<String, String>,
}

impl Record {
    /// A record of `event` at `unix_ms`.
    pub fn new(unix_ms: u64, engine: &str, event: &str) -> Self {
        Self {
            time: format!("{}.{:03}", unix_ms / 1000, unix_ms % 1000),
            engine: engine.into(),
            event: event.into(),
            fields: BTreeMap::new(),
        }
    }

    /// Adds a field. Control characters are replaced, long values cut; the names of the fixed
    /// fields are not taken.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if !matches!(name, "time" | "engine" | "event") {
            let clean = |c: char| if c.is_control() { '?' } else { c };
            let value = value.chars().take(FIELD_CHARS_MAX).map(clean).collect();
            self.fields.insert(name.into(), value);
        }
        self
    }

    /// The line, without its end.
    pub fn line(&self) -> String {
        // Serialization of strings into memory has no way to fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_of_json_whatever_a_client_named_its_request() {
        let long = "x".repeat(1000);
        let record = Record::new(1_700_000_000_042, "vllm", "refused")
            .with("request", "cmpl-1\n{\"event\":\"verified\"}")
            .with("event", "verified")
            .with("long", &long);
        let line = record.line();
        assert!(!line.contains('\n'));
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "1700000000.042");
        assert_eq!(read["event"], "refused");
        assert_eq!(read["request"], "cmpl-1?{\"event\":\"verified\"}");
        assert_eq!(read["long"].as_str().map(str::len), Some(FIELD_CHARS_MAX));
    }
}
