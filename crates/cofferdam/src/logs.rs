//! Logs: lines for people or JSON, on standard error. Never prompt text at the default level:
//! what a part logs about a request is its numbers and ids.

use crate::args::LogFormat;
use crate::colour;
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging of this process. `RUST_LOG` chooses levels; the default is `info`.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second start (tests) changes nothing.
    let _ = match format {
        LogFormat::Text => logs
            .with_target(false)
            .with_ansi(colour::wanted(std::io::stderr().is_terminal()))
            .try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
}

/// A line that a part wrote, as the whole command writes it: with the part's name.
pub(crate) fn line_of_part(format: LogFormat, part: &str, line: &str) -> String {
    match format {
        LogFormat::Text => format!("{part} | {line}"),
        LogFormat::Json => {
            let mut object = match serde_json::from_str(line) {
                Ok(Value::Object(object)) => object,
                // A panic, say: not JSON, and still part of the log.
                _ => Map::from_iter([("message".into(), json!(line))]),
            };
            object.insert("part".into(), json!(part));
            Value::Object(object).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_its_part_and_json_stays_json() {
        let text = line_of_part(LogFormat::Text, "decode-0", "loaded");
        assert_eq!(text, "decode-0 | loaded");
        let line = r#"{"level":"INFO","message":"loaded"}"#;
        let parsed: Value =
            serde_json::from_str(&line_of_part(LogFormat::Json, "decode-0", line)).unwrap();
        assert_eq!(
            parsed,
            json!({"level": "INFO", "message": "loaded", "part": "decode-0"})
        );
        let line = line_of_part(LogFormat::Json, "gateway", "thread 'x' panicked: \"y\"");
        let parsed: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["message"], "thread 'x' panicked: \"y\"");
    }
}
