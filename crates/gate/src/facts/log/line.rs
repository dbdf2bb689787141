//! Lines of logs without their wrapping, and what can be taken out of one.

use super::source;
use crate::facts::figure::{Fact, Figure, TOKENS_MAX};
use crate::facts::json::absurd;
use serde_json::Value;

/// One message.
pub(super) struct Line<'a> {
    pub file: &'a str,
    /// From 1.
    pub number: u64,
    pub text: &'a str,
}

/// Keys under which collectors keep the message itself.
const MESSAGE: [&str; 7] = ["message", "msg", "log", "MESSAGE", "event", "text", "body"];

/// The messages in a line: colours taken off, and unwrapped from JSON, up to three times (a
/// container's log of a server that logs JSON).
pub(super) fn unwrapped(bytes: &[u8]) -> Vec<String> {
    let mut text = plain(&String::from_utf8_lossy(bytes));
    for _ in 0..3 {
        let Some(message) = message(&text) else { break };
        text = plain(&message);
    }
    text.lines().map(str::to_owned).collect()
}

fn message(text: &str) -> Option<String> {
    let text = text.trim();
    if !text.starts_with('{') {
        return None;
    }
    let object: Value = serde_json::from_str(text).ok()?;
    let mut keys = MESSAGE.iter().filter_map(|key| object.get(key)?.as_str());
    keys.next().map(str::to_owned)
}

/// Without terminal sequences (`ESC [ … letter`).
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            plain.push(c);
        } else if chars.next_if_eq(&'[').is_some() {
            // Parameters end with a byte from @ to ~.
            while chars.next().is_some_and(|it| !('@'..='~').contains(&it)) {}
        }
    }
    plain
}

impl Line<'_> {
    /// Whether the line has `key` in its own words: not in what it quotes, such as a prompt.
    pub(super) fn says(&self, key: &str) -> bool {
        let Some(before) = self.before(key) else {
            return false;
        };
        // Some collectors quote the whole message.
        let mut wrapped = MESSAGE
            .iter()
            .filter_map(|it| before.split_once(&format!("{it}=\"")));
        let (head, own) = wrapped.next().unwrap_or(("", before));
        closed(head) && !head.contains('\'') && closed(own) && !own.contains(['\'', '"'])
    }

    /// What follows `key`, if the line has it.
    pub(super) fn after(&self, key: &str) -> Option<&str> {
        let at = self.text.find(key)?;
        Some(&self.text[at + key.len()..])
    }

    /// What stands before `key`.
    pub(super) fn before(&self, key: &str) -> Option<&str> {
        self.text.find(key).map(|at| &self.text[..at])
    }

    /// The count that follows `key`: digits, with commas between thousands.
    pub(super) fn count(&self, key: &str) -> Option<Fact<Figure<u64>>> {
        let rest = self.after(key)?;
        let end = rest.find(|c: char| c.is_whitespace()).unwrap_or(rest.len());
        let word = rest[..end].trim_end_matches([',', '.', ')', '}', ';']);
        Some(self.number(word, key))
    }

    fn number(&self, word: &str, key: &str) -> Fact<Figure<u64>> {
        let value = thousands(word).filter(|it| (1..=TOKENS_MAX).contains(it));
        match value {
            Some(value) => Ok(Figure::new(value, source(self, key))),
            None => Err(absurd(
                word,
                source(self, key),
                "not a whole number from 1 to 2^40",
            )),
        }
    }
}

/// Whether nothing is open at the end of `text`.
fn closed(text: &str) -> bool {
    let count = |it: char| text.matches(it).count();
    [('(', ')'), ('[', ']'), ('{', '}')]
        .iter()
        .all(|(open, close)| count(*open) == count(*close))
}

/// `9,600` as 9600; commas only where they belong.
fn thousands(word: &str) -> Option<u64> {
    let mut parts = word.split(',');
    let first = parts.next()?;
    let grouped = word.contains(',');
    if first.is_empty() || (grouped && first.len() > 3) {
        return None;
    }
    let digits = |it: &str| it.bytes().all(|it| it.is_ascii_digit());
    let all = parts.clone().all(|it| it.len() == 3 && digits(it)) && digits(first);
    all.then(|| word.replace(',', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_wrapping_come_off() {
        let inner = r#"{"msg":"\u001b[32m#tokens: 5\u001b[0m, K","level":"info"}"#;
        let outer = serde_json::json!({"log": format!("{inner}\n"), "stream": "stdout"});
        assert_eq!(unwrapped(outer.to_string().as_bytes()), ["#tokens: 5, K"]);
        assert_eq!(unwrapped(b"\x1b[1;31mred\x1b[m plain\n"), ["red plain"]);
        assert_eq!(unwrapped(b"{not json"), ["{not json"]);
    }

    #[test]
    fn numbers_with_and_without_commas() {
        assert_eq!(thousands("9,600"), Some(9600));
        assert_eq!(thousands("1,048,576"), Some(1_048_576));
        assert_eq!(thousands("2000"), Some(2000));
        for bad in [
            "",
            ",",
            "9,60",
            "9600,000",
            "-5",
            "2000.5",
            "nan",
            "1e9",
            "99999999999999999999",
        ] {
            assert_eq!(thousands(bad), None, "{bad}");
        }
    }

    /// What clients wrote stands in quotes, and in something that is not closed before it.
    #[test]
    fn what_a_line_quotes_it_does_not_say() {
        for (text, says) in [
            ("server_args={'a': 1}", true),
            ("[t DP0 TP0] server_args={'a': 1}", true),
            ("(APIServer pid=1) INFO [a.py:2] server_args={}", true),
            ("time=\"t\" level=info msg=\"[t] server_args={}\"", true),
            (
                "[t] Receive: obj=GenerateReqInput(text='server_args={}')",
                false,
            ),
            (
                "[t] Receive: obj=GenerateReqInput(text=\"it's server_args={}\")",
                false,
            ),
            (
                "[t] Receive: obj=GenerateReqInput(text=\") server_args={'a'}\")",
                false,
            ),
            ("INFO Received request 1: prompt: 'server_args={}'", false),
            (
                "INFO Received request 1: prompt: \"server_args={'a'}\"",
                false,
            ),
            ("INFO something else", false),
        ] {
            let (file, number) = ("f", 1);
            assert_eq!(
                Line { file, number, text }.says("server_args="),
                says,
                "{text}"
            );
        }
    }
}
