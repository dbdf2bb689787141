//! Everything that an answer holds and that may hold a text: strings, names of fields, bytes and
//! token ids, joined by the path at which they stand, piece by piece.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Values nested deeper are not looked into: the reader of JSON takes no more.
const DEPTH_MAX: usize = 128;
/// Numbers that are looked at in one place.
const NUMBERS_MAX: usize = 1 << 20;
/// Bytes that may be a text.
const BYTES_LEAST: usize = 8;

/// Texts and numbers that come in pieces, by the path at which they stand.
#[derive(Default)]
pub(crate) struct Pieces {
    /// Each with its number, in the order in which they began.
    texts: BTreeMap<String, (usize, String)>,
    /// Paths whose last name is in its object's text already.
    named: BTreeSet<String>,
    numbers: BTreeMap<String, Vec<u64>>,
}

impl Pieces {
    /// Adds what an answer, or an event of one, holds.
    pub(crate) fn take(&mut self, value: &Value) {
        self.at(String::new(), value, 0);
    }

    /// The text at a path.
    pub(crate) fn text(&self, path: &str) -> Option<&String> {
        self.texts.get(path).map(|it| &it.1)
    }

    fn at(&mut self, path: String, value: &Value, depth: usize) {
        match value {
            Value::String(text) => self.add(path, text),
            Value::Number(number) => {
                // Alone it is a figure; in a row it may be a token or a byte.
                let number = number.as_u64().filter(|_| path.contains("/*"));
                if let Some(number) = number {
                    let all = self.numbers.entry(path).or_default();
                    if all.len() < NUMBERS_MAX {
                        all.push(number);
                    }
                }
            }
            Value::Array(items) if depth < DEPTH_MAX => {
                for (n, item) in items.iter().enumerate() {
                    let path = format!("{path}/{}", step(&path, n, item));
                    self.at(path, item, depth + 1);
                }
            }
            Value::Object(fields) if depth < DEPTH_MAX => {
                if is_ranking(&path, fields) {
                    self.ranking(&path, fields);
                }
                if is_alternatives(&path, fields) {
                    let mut all: Vec<_> = fields.values().collect();
                    let likely = |it: &Value| it["logprob"].as_f64().unwrap_or(f64::NEG_INFINITY);
                    all.sort_by(|a, b| likely(b).total_cmp(&likely(a)));
                    for (rank, token) in all.into_iter().enumerate() {
                        self.at(format!("{path}/#{rank}"), token, depth + 1);
                    }
                    return;
                }
                for (name, field) in fields {
                    let field_path = format!("{path}/{name}");
                    if self.named.insert(field_path.clone()) {
                        self.add(format!("{path}/#"), &format!("{name} "));
                    }
                    self.at(field_path, field, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, path: String, text: &str) {
        let is_so_far = path == "/text";
        let n = self.texts.len();
        let joined = &mut self.texts.entry(path).or_insert((n, String::new())).1;
        // SGLang may send the whole text so far each time; others send what is new.
        match is_so_far && text.starts_with(joined.as_str()) {
            true => text.clone_into(joined),
            false => joined.push_str(text),
        }
    }

    /// Tokens that are names of fields, with their log-probabilities: the likeliest of each place
    /// are one text, the second ones another.
    fn ranking(&mut self, path: &str, fields: &Map<String, Value>) {
        let mut tokens: Vec<_> = fields.iter().collect();
        let value = |it: &Value| it.as_f64().unwrap_or(f64::NEG_INFINITY);
        tokens.sort_by(|a, b| value(b.1).total_cmp(&value(a.1)));
        for (rank, (token, _)) in tokens.into_iter().enumerate() {
            self.add(format!("{path}/#{rank}"), token);
        }
    }

    /// Texts of the same name in several choices or calls, and of one object's fields, as one text each:
    /// a word here and a word there.
    fn together(&self) -> Vec<String> {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut all: Vec<_> = self
            .texts
            .iter()
            .filter(|it| !it.0.ends_with("/#"))
            .collect();
        all.sort_by_key(|it| it.1.0);
        for (path, (_, text)) in all {
            let parts = path.split('/');
            let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
            let alike: Vec<_> = parts
                .map(|it| if is_number(it) { "*" } else { it })
                .collect();
            let above = path.rsplit_once('/').map_or("", |it| it.0);
            for group in [alike.join("/"), format!("{above} ")] {
                groups.entry(group).or_default().push(text);
            }
        }
        let several = groups.into_values().filter(|it| it.len() > 1);
        several.map(|it| it.join(" ")).collect()
    }

    /// All texts, those of bytes too; and all rows of numbers that may be token ids.
    pub(crate) fn into_all(self) -> (Vec<String>, Vec<Vec<u64>>) {
        let mut texts = self.together();
        texts.extend(self.texts.into_values().map(|it| it.1));
        let mut ids = Vec::new();
        for (path, numbers) in self.numbers {
            let bytes: Option<Vec<u8>> = numbers.iter().map(|it| u8::try_from(*it).ok()).collect();
            if let Some(bytes) = bytes.filter(|it| it.len() >= BYTES_LEAST) {
                texts.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            // Where tokens stand in the text is alike in many texts.
            if !path.contains("offset") {
                ids.push(numbers);
            }
        }
        (texts, ids)
    }
}

/// The last part of an item's path: items of one text have the same.
fn step(path: &str, n: usize, item: &Value) -> String {
    // Choices and calls are not one text, and neither are the alternatives of one place.
    let own = item.get("index").and_then(Value::as_u64);
    let own = || own.unwrap_or(n as u64).to_string();
    match path.rsplit_once('/').unwrap_or(("", path)) {
        (_, "choices" | "tool_calls") => own(),
        (_, "top_logprobs") if item.get("token").is_some() => n.to_string(),
        (above, "*") if above.ends_with("top_logprobs") && item.is_array() => n.to_string(),
        _ => "*".to_owned(),
    }
}

/// Whether names of these fields are tokens.
fn is_ranking(path: &str, fields: &Map<String, Value>) -> bool {
    let named = path.contains("logprobs");
    named && !fields.contains_key("token") && fields.values().all(Value::is_number)
}

/// Whether these are tokens of one place by their ids, as in vLLM's `prompt_logprobs`.
fn is_alternatives(path: &str, fields: &Map<String, Value>) -> bool {
    let is_id = |it: &String| it.bytes().all(|it| it.is_ascii_digit());
    path.contains("logprobs") && !fields.is_empty() && fields.keys().all(is_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(value: &Value) -> Vec<String> {
        let mut pieces = Pieces::default();
        pieces.take(value);
        pieces.into_all().0
    }

    #[test]
    fn the_second_likeliest_tokens_are_one_text_in_every_dialect() {
        for value in [
            json!({"choices": [{"logprobs": {"top_logprobs":
                [{"own": -0.1, "aban": -2.0}, {"don ": -3.0, "zone": -0.1}]}}]}),
            json!({"choices": [{"logprobs": {"content": [
                {"token": "own", "top_logprobs": [{"token": "own"}, {"token": "aban"}]},
                {"token": "zone", "top_logprobs": [{"token": "zone"}, {"token": "don "}]}]}}]}),
            json!({"meta_info": {"output_top_logprobs": [
                [[-0.1, 5, "own"], [-2.0, 6, "aban"]],
                [[-0.1, 7, "zone"], [-3.0, 8, "don "]]]}}),
        ] {
            let texts = texts(&value);
            assert!(texts.iter().any(|it| it == "abandon "), "{texts:?}");
        }
    }

    #[test]
    fn bytes_are_a_text_and_ids_are_kept() {
        let mut pieces = Pieces::default();
        for word in ["aban", "don a"] {
            let bytes: Vec<u8> = word.bytes().collect();
            pieces.take(
                &json!({"choices": [{"logprobs": {"content": [{"bytes": bytes}]},
                                             "token_ids": [17, 4_000]}]}),
            );
        }
        let (texts, ids) = pieces.into_all();
        assert!(texts.contains(&"abandon a".to_owned()), "{texts:?}");
        assert!(ids.contains(&vec![17, 4_000, 17, 4_000]), "{ids:?}");
    }

    #[test]
    fn names_of_fields_may_be_texts() {
        for fields in [
            json!({"abandon ability": 1}),
            json!({"abandon": 1, "ability": {"able": 2}}),
        ] {
            let found = texts(&json!({ "debug": fields }));
            assert!(
                found.iter().any(|it| it.trim() == "abandon ability"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_word_here_and_a_word_there_are_one_text() {
        let call = |n: usize, word: &str| json!({"index": n, "function": {"arguments": word}});
        let words = ["abandon", "ability", "able"];
        let calls: Vec<_> = words
            .iter()
            .enumerate()
            .map(|it| call(it.0, it.1))
            .collect();
        for value in [
            json!({"choices": [{"message": {"tool_calls": calls}}]}),
            json!({"choices": words.map(|it| json!({"text": it}))}),
            json!({"debug": {"z": "abandon", "y": "ability", "x": "able"}}),
        ] {
            let found = texts(&value);
            assert!(
                found.iter().any(|it| it == "abandon ability able"),
                "{found:?}"
            );
        }
    }
}
