//! What a part says about itself: one line of JSON on its standard output.
//!
//! ```text
//! {"ready":{"role":"decode","epoch":"5f…","addr":"unix:/…","pool_tokens":10240,…}}
//! {"refused":{"message":"a pool of …","exit":2}}
//! ```

use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Bytes of a line that are read from a part.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The one line that ends a part's start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It serves.
    Ready(Ready),
    /// It will not serve, whatever is tried again: settings or memory must change first.
    Refused(Refused),
}

/// What a part is able to do: measured, after it has allocated what it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// `prefill`, `decode` or `gateway`.
    pub role: String,
    /// Names this life of the process; another in every life.
    pub epoch: String,
    /// Where it can be reached: control address of a worker, `host:port` of a gateway.
    pub addr: String,
    /// Token slots of its pool, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_tokens: Option<u64>,
    /// Token slots in a page, if it has a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u32>,
    /// Largest sum of prompt and output, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_context: Option<u32>,
    /// Longest prompt, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u32>,
    /// Name of the model in the API (gateway).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Why a part does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// What is wrong and what would be accepted.
    pub message: String,
    /// The exit code that the whole command should have.
    pub exit: u8,
}

impl Report {
    /// Reads one line; `None` if it is no report.
    pub fn parse(line: &str) -> Option<Report> {
        serde_json::from_str(line).ok()
    }

    /// Writes the line to standard output, at once.
    pub fn say(&self) -> io::Result<()> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_that_the_page_shows() {
        let ready = Ready {
            role: "decode".into(),
            epoch: "5f".into(),
            addr: "unix:/d".into(),
            pool_tokens: Some(10_240),
            ..Ready::default()
        };
        let line = serde_json::to_string(&Report::Ready(ready.clone())).unwrap();
        assert_eq!(
            line,
            r#"{"ready":{"role":"decode","epoch":"5f","addr":"unix:/d","pool_tokens":10240}}"#
        );
        assert_eq!(Report::parse(&line), Some(Report::Ready(ready)));
        let refused = r#"{"refused":{"message":"too small","exit":2}}"#;
        let message = "too small".into();
        assert_eq!(
            Report::parse(refused),
            Some(Report::Refused(Refused { message, exit: 2 }))
        );
    }

    #[test]
    fn other_lines_are_no_reports() {
        for line in [
            "",
            "ready",
            "{}",
            r#"{"ready":{}}"#,
            r#"{"ready":null}"#,
            "[1]",
        ] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }
}
