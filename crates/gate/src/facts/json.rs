//! Reading fields of JSON answers: a value is taken only if it is of the type that it must be.

use crate::facts::figure::{Absurd, Fact, Figure, FigureSource, TOKENS_MAX, Unknown};
use crate::facts::once::{Once, twice};
use crate::facts::trouble::Trouble;
use serde_json::Value;

/// One JSON answer, or what a line of a log says in another notation.
#[derive(Clone, Debug)]
pub struct Doc {
    place: Place,
    root: Value,
}

#[derive(Clone, Debug)]
enum Place {
    Url(String),
    Line { file: String, line: u64 },
}

impl Doc {
    /// Parses an answer of `url`.
    ///
    /// # Errors
    /// It is HTML, or not JSON (nested deeper than 128 levels is not JSON for us).
    pub fn parse(url: &str, body: &[u8]) -> Result<Self, Trouble> {
        let root = serde_json::from_slice(body).map_err(|error| not_json(body, &error))?;
        let (place, Once(root)) = (Place::Url(url.to_owned()), root);
        Ok(Self { place, root })
    }

    /// What line `line` (from 1) of a log says.
    pub(crate) fn of_line(file: &str, line: u64, root: Value) -> Self {
        let file = file.to_owned();
        let place = Place::Line { file, line };
        Self { place, root }
    }

    /// The whole of it.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// Where `field` would stand.
    pub fn source(&self, field: &str) -> FigureSource {
        match &self.place {
            Place::Url(url) => FigureSource::Field {
                url: url.clone(),
                field: field.to_owned(),
            },
            Place::Line { file, line } => FigureSource::Line {
                file: file.clone(),
                line: *line,
                // Logs print names without what they stand in.
                field: field.rsplit('.').next().unwrap_or(field).to_owned(),
            },
        }
    }

    /// The value at `a.b[0].c`; `None` if there is none or it is null.
    pub fn at(&self, field: &str) -> Option<&Value> {
        at(&self.root, field).filter(|it| !it.is_null())
    }

    /// A count from 1 to [`TOKENS_MAX`].
    ///
    /// # Errors
    /// Missing, null, or not such a number: text, fractions, negatives and zero are absurd.
    pub fn count(&self, field: &str) -> Fact<Figure<u64>> {
        self.number(field, 1, TOKENS_MAX)
    }

    /// A whole number from `low` to `high`.
    ///
    /// # Errors
    /// As [`Doc::count`].
    pub fn number(&self, field: &str, low: u64, high: u64) -> Fact<Figure<u64>> {
        let value = self.required(field)?;
        let number = value.as_u64().filter(|_| value.is_u64());
        match number.filter(|it| (low..=high).contains(it)) {
            Some(number) => Ok(self.figure(field, number)),
            None => Err(self.absurd(field, &format!("not a whole number from {low} to {high}"))),
        }
    }

    /// A text that is not empty, of at most 4096 bytes and without control characters.
    ///
    /// # Errors
    /// Missing, null, or not such a text.
    pub fn text(&self, field: &str) -> Fact<Figure<String>> {
        let value = self.required(field)?;
        let good =
            |it: &&str| !it.is_empty() && it.len() <= 4096 && !it.chars().any(char::is_control);
        match value.as_str().filter(good) {
            Some(text) => Ok(self.figure(field, text.to_owned())),
            None => Err(self.absurd(field, "not a text of 1 to 4096 bytes")),
        }
    }

    /// What a setting says, as text. It must be there: null, an empty text and an empty list or
    /// object are `none`, which is another thing than not being told.
    ///
    /// # Errors
    /// Missing, or a number, or longer than 4096 bytes.
    pub fn setting(&self, field: &str) -> Fact<Figure<String>> {
        let found = at(&self.root, field).ok_or_else(|| Unknown::NotReported {
            looked: vec![self.source(field).to_string()],
        })?;
        let text = match found {
            _ if twice(found).is_some() => return Err(self.absurd(field, "no setting")),
            Value::Null => String::new(),
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                // An object that was given as text, whatever its spaces and the order of its keys.
                Ok(object) if object.is_object() => brief(&object),
                _ => text.trim().to_owned(),
            },
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => brief(found),
            Value::Number(_) => return Err(self.absurd(field, "a number is no such setting")),
        };
        if text.len() > 4096 || text.chars().any(char::is_control) {
            return Err(self.absurd(field, "not a text of at most 4096 bytes"));
        }
        let text = if text.is_empty() { "none".into() } else { text };
        Ok(self.figure(field, text))
    }

    /// What a setting says, whatever its type, as text; `None` if it is not there.
    pub fn plain(&self, field: &str) -> Option<Figure<String>> {
        match self.setting(field) {
            Ok(figure) => Some(figure),
            Err(_) => self.at(field).map(|it| self.figure(field, brief(it))),
        }
    }

    /// True or false.
    ///
    /// # Errors
    /// Missing, null, or anything else.
    pub fn switch(&self, field: &str) -> Fact<Figure<bool>> {
        match self.required(field)?.as_bool() {
            Some(value) => Ok(self.figure(field, value)),
            None => Err(self.absurd(field, "neither true nor false")),
        }
    }

    /// How many entries the list at `field` has; 0 if there is no list.
    pub fn len(&self, field: &str) -> usize {
        self.at(field).and_then(Value::as_array).map_or(0, Vec::len)
    }

    /// Says that what stands at `field` cannot be.
    pub fn absurd(&self, field: &str, why: &str) -> Unknown {
        let found = self.at(field);
        if let Some(values) = found.and_then(twice) {
            let each: Vec<_> = values.iter().map(Value::to_string).collect();
            let why = "two values under one name";
            return absurd(&each.join(" and "), self.source(field), why);
        }
        let found = found.map_or("nothing".to_owned(), Value::to_string);
        absurd(&found, self.source(field), why)
    }

    fn required(&self, field: &str) -> Fact<&Value> {
        self.at(field).ok_or_else(|| Unknown::NotReported {
            looked: vec![self.source(field).to_string()],
        })
    }

    fn figure<T>(&self, field: &str, value: T) -> Figure<T> {
        Figure::new(value, self.source(field))
    }
}

/// A list or object as text, empty if it is; the same text for what is worded in two ways.
fn brief(value: &Value) -> String {
    let empty = match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match empty {
        true => String::new(),
        false => canonical(value).to_string(),
    }
}

/// Keys of objects in their order, 4.0 as 4, and without what each process makes up for itself:
/// SGLang gives every adapter that it loads an id.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(canonical).collect(),
        Value::Object(map) => {
            let mut kept: Vec<_> = map.iter().filter(|(key, _)| *key != "lora_id").collect();
            kept.sort_by_key(|(key, _)| *key);
            let kept = kept.into_iter();
            kept.map(|(key, it)| (key.clone(), canonical(it))).collect()
        }
        Value::Number(number) => match number.as_f64() {
            Some(it) if it.fract() == 0.0 && it.abs() < 9e15 => Value::from(it as i64),
            _ => value.clone(),
        },
        other => other.clone(),
    }
}

/// What stands at `source` cannot be.
pub(crate) fn absurd(found: &str, source: FigureSource, why: &str) -> Unknown {
    let found = found
        .chars()
        .filter(|it| !it.is_control())
        .take(80)
        .collect();
    let why = why.to_owned();
    Unknown::Absurd(Box::new(Absurd { found, source, why }))
}

/// Steps of `a.b[0].c`; a key may hold anything but dots and brackets.
fn at<'a>(root: &'a Value, field: &str) -> Option<&'a Value> {
    let mut here = root;
    for part in field.split('.') {
        let (key, indexes) = part
            .split_once('[')
            .map_or((part, ""), |(key, rest)| (key, rest));
        if !key.is_empty() {
            here = here.as_object()?.get(key)?;
        }
        for index in indexes.split('[').filter(|it| !it.is_empty()) {
            let index: usize = index.strip_suffix(']')?.parse().ok()?;
            here = here.as_array()?.get(index)?;
        }
    }
    Some(here)
}

/// What to say of bytes that are not JSON.
fn not_json(body: &[u8], error: &serde_json::Error) -> Trouble {
    if is_html(body) {
        return Trouble::Html;
    }
    let place = format!("line {}, column {}", error.line(), error.column());
    Trouble::Garbage {
        why: format!("not JSON at {place}"),
    }
}

/// Whether this looks like a web page.
pub(crate) fn is_html(body: &[u8]) -> bool {
    let start: Vec<u8> = body
        .iter()
        .copied()
        .skip_while(u8::is_ascii_whitespace)
        .take(15)
        .collect();
    let start = start.to_ascii_lowercase();
    start.starts_with(b"<!doctype html") || start.starts_with(b"<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(text: &str) -> Doc {
        Doc::parse("http://a/x", text.as_bytes()).unwrap()
    }

    #[test]
    fn paths_lead_through_objects_and_lists() {
        let doc = doc(r#"{"a":{"b":[{"c":7},[8,9]]},"n":null}"#);
        assert_eq!(doc.count("a.b[0].c").unwrap().value, 7);
        assert_eq!(doc.count("a.b[1][1]").unwrap().value, 9);
        assert_eq!(doc.len("a.b"), 2);
        for nowhere in ["a.b[2]", "a.c", "a.b.c", "n", "", "a.b[x]", "a.b[0", "[0]"] {
            let unknown = doc.count(nowhere).unwrap_err();
            assert!(!matches!(unknown, Unknown::Contradiction(_)), "{nowhere}");
        }
    }

    #[test]
    fn only_plain_whole_numbers_are_counts() {
        for absurd in [
            "\"2000\"",
            "-1",
            "0",
            "2000.0",
            "1e3",
            "9223372036854775808",
            "true",
            "[]",
            "1099511627777",
            "1e999",
        ] {
            let Ok(doc) = Doc::parse("http://a/x", format!(r#"{{"n":{absurd}}}"#).as_bytes())
            else {
                continue; // 1e999 is no JSON number for the parser
            };
            let unknown = doc.count("n").unwrap_err();
            assert!(matches!(unknown, Unknown::Absurd(_)), "{absurd}: {unknown}");
        }
        assert_eq!(
            doc(r#"{"n":1099511627776}"#).count("n").unwrap().value,
            TOKENS_MAX
        );
    }

    #[test]
    fn pages_and_rubbish_are_told_apart() {
        let parse = |text: &str| Doc::parse("u", text.as_bytes()).unwrap_err();
        assert_eq!(parse("\n <!DOCTYPE HTML><p>"), Trouble::Html);
        assert!(matches!(parse("{\"a\":NaN}"), Trouble::Garbage { .. }));
        assert!(matches!(
            parse(&"[".repeat(100_000)),
            Trouble::Garbage { .. }
        ));
    }
}
