//! JSON as it must be to mean one thing: of two values of one name readers take the first, the last
//! or none, and so the client and whoever looked at the request on its way may mean different ones.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};

use super::fields::invalid;
use crate::engine::{Code, Fault};

/// Most values of a body, which are lists of tokens then: they take forty times its size.
const VALUES_MAX: usize = 1 << 20;
const OF_TOKENS: [&str; 2] = ["prompt", "tokens"];
/// Most of a conversation, and of the texts in it that are JSON themselves.
const TALK_VALUES_MAX: usize = 1 << 18;
const OF_TALK: [&str; 2] = ["messages", "input"];
/// Most of any other field: tools are held several times over.
const FIELD_VALUES_MAX: usize = 1 << 17;
/// What a list and an object take besides counts as so many more values.
const OF_A_LIST: usize = 3;
const OF_AN_OBJECT: usize = 7;
/// Most of a name that is repeated in an error.
const SHOWN: usize = 128;

/// Reads a body.
///
/// # Errors
/// It is not JSON, has a name twice in one object, or too many values.
pub(super) fn parse(body: &[u8]) -> Result<Value, Fault> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let seen = Seen {
        body: true,
        ..Seen::of(VALUES_MAX)
    };
    let read = seen.next(&mut reader);
    let read = read.and_then(|value| reader.end().map(|()| value));
    match seen.wrong.take() {
        Some(Wrong::Twice(name)) => Err(invalid(name, "this name once; the body has it twice")),
        Some(Wrong::Many(most, Some(field))) => Err(invalid(field, at_most(most))),
        Some(Wrong::Many(most, None)) => {
            let problem = format!("expected the body to have {}", at_most(most));
            Err(Fault::new(Code::InvalidJson, problem))
        }
        // The parser's own words name a place, never content.
        None => read.map_err(|error| {
            Fault::new(Code::InvalidJson, format!("the body is not JSON: {error}"))
        }),
    }
}

fn at_most(values: usize) -> String {
    format!("at most {values} values, of which a list counts for 4 and an object for 8")
}

/// Reads the texts of one request that are JSON themselves: what tools were called with, the schema of a
/// form.
pub(super) struct Texts {
    /// So many values may come in all of them.
    left: usize,
}

impl Default for Texts {
    fn default() -> Self {
        let left = TALK_VALUES_MAX;
        Self { left }
    }
}

impl Texts {
    /// Reads the next; none if it is no JSON.
    ///
    /// # Errors
    /// It has a name twice in one object, or a value too many.
    pub(super) fn read(&mut self, param: &str, text: &str) -> Result<Option<Value>, Fault> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let seen = Seen::of(self.left);
        let read = seen.next(&mut reader);
        let read = read.and_then(|value| reader.end().map(|()| value));
        self.left = seen.left.get();
        match seen.wrong.take() {
            None => Ok(read.ok()),
            // Seen before the end.
            Some(_) if serde_json::from_str::<IgnoredAny>(text).is_err() => Ok(None),
            Some(Wrong::Twice(name)) => {
                let expected = format!("`{name}` once; the JSON in this text has it twice");
                Err(invalid(param, expected))
            }
            Some(Wrong::Many(..)) => {
                let most = at_most(TALK_VALUES_MAX);
                Err(invalid(
                    param,
                    format!("{most}, in all texts that are JSON"),
                ))
            }
        }
    }
}

/// JSON in what a model says, which has no name twice either.
pub(super) struct Said(pub Value);

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let seen = &Seen::of(TALK_VALUES_MAX);
        One { seen, path: None }.deserialize(reader).map(Self)
    }
}

/// Looks at every piece of JSON in a grammar, each behind a `%json` or another such word.
///
/// # Errors
/// One has a name twice in one object.
pub(super) fn within_grammar(param: &str, text: &str) -> Result<(), Fault> {
    let behind = text.split('%').skip(1);
    let mut at = text.len() - behind.clone().map(|it| it.len() + 1).sum::<usize>();
    for piece in behind {
        let word = piece.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let mut reader = serde_json::Deserializer::from_str(&text[at + 1 + word..]);
        if word > 0
            && let seen = Seen::of(TALK_VALUES_MAX)
            && seen.next(&mut reader).is_err()
            && let Some(Wrong::Twice(name)) = seen.wrong.take()
        {
            let expected = format!("`{name}` once; the JSON in this grammar has it twice");
            return Err(invalid(param, expected));
        }
        at += 1 + piece.len();
    }
    Ok(())
}

/// What JSON has that cannot be served.
enum Wrong {
    /// A name, with its path.
    Twice(String),
    /// More values than so many, in this field or in all.
    Many(usize, Option<String>),
}

/// What was seen of JSON, and what may still come.
struct Seen {
    /// Its fields have limits of their own.
    body: bool,
    left: Cell<usize>,
    /// In the field that is read: how many may still come, and came at most.
    field: Cell<(usize, usize)>,
    wrong: Cell<Option<Wrong>>,
}

impl Seen {
    fn of(values: usize) -> Self {
        Self {
            body: false,
            left: Cell::new(values),
            field: Cell::new((values, values)),
            wrong: Cell::default(),
        }
    }

    fn next<'r, R: serde_json::de::Read<'r>>(
        &self,
        reader: &mut serde_json::Deserializer<R>,
    ) -> serde_json::Result<Value> {
        let (seen, path) = (self, None);
        One { seen, path }.deserialize(reader)
    }

    fn wrong<E: Error>(&self, wrong: Wrong) -> E {
        self.wrong.set(Some(wrong));
        E::custom("JSON that cannot be served")
    }

    /// A field of the body begins.
    fn field(&self, name: &str) {
        let most = match name {
            name if OF_TOKENS.contains(&name) => VALUES_MAX,
            name if OF_TALK.contains(&name) => TALK_VALUES_MAX,
            _ => FIELD_VALUES_MAX,
        };
        self.field.set((most, most));
    }

    fn count<E: Error>(&self, path: &Path<'_>, more: usize) -> Result<(), E> {
        let (field, most) = self.field.get();
        let left = (self.left.get().checked_sub(more), field.checked_sub(more));
        match left {
            (Some(all), Some(field)) => {
                self.left.set(all);
                self.field.set((field, most));
                Ok(())
            }
            (_, None) => Err(self.wrong(Wrong::Many(most, top(path)))),
            (None, Some(_)) => Err(self.wrong(Wrong::Many(VALUES_MAX, None))),
        }
    }
}

/// Where a value stands.
#[derive(Clone, Copy)]
enum Step<'p> {
    Key(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

type Path<'p> = Option<Step<'p>>;

/// The next value.
struct One<'s> {
    seen: &'s Seen,
    path: Path<'s>,
}

fn shown(path: &Path<'_>) -> String {
    match path {
        None => String::new(),
        Some(Step::Key(None, key)) => (*key).to_owned(),
        Some(Step::Key(above, key)) => format!("{}.{key}", shown(above)),
        Some(Step::Index(above, index)) => format!("{}[{index}]", shown(above)),
    }
}

/// The field of the body in which this stands.
fn top(path: &Path<'_>) -> Option<String> {
    match path {
        None => None,
        Some(Step::Key(None, key)) => Some((*key).chars().take(SHOWN).collect()),
        Some(Step::Key(above, _) | Step::Index(above, _)) => top(above),
    }
}

impl<'de> DeserializeSeed<'de> for One<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.seen.count(&self.path, 1)?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for One<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.seen.count(&self.path, OF_A_LIST)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(One {
            seen: self.seen,
            path: Some(Step::Index(&self.path, values.len())),
        })? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        self.seen.count(&self.path, OF_AN_OBJECT)?;
        let mut map = Map::new();
        // As read: `"\u0061"` is the name `a`.
        while let Some(key) = object.next_key::<String>()? {
            let path = Some(Step::Key(&self.path, &key));
            if map.contains_key(&key) {
                let name = shown(&path).chars().take(SHOWN).collect();
                return Err(self.seen.wrong(Wrong::Twice(name)));
            }
            if self.seen.body && self.path.is_none() {
                self.seen.field(&key);
            }
            let value = object.next_value_seed(One {
                seen: self.seen,
                path,
            })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_twice_is_refused_by_name_at_every_depth() {
        for (body, name) in [
            (r#"{"n": 1, "n": 2}"#, "n"),
            (r#"{"n": 1, "n": 1}"#, "n"),
            (r#"{"n": null, "n": 1}"#, "n"),
            (r#"{"n": 1, "\u006e": 2}"#, "n"),
            (r#"{"a": {"b": 1, "c": 0, "b": 1}}"#, "a.b"),
            (
                r#"{"m": [{}, {"role": "user", "role": "system"}]}"#,
                "m[1].role",
            ),
            (r#"{"m": [{"c": [{"t": 1, "t": 1}]}]}"#, "m[0].c[0].t"),
            (r#"{"\ud83e\udd80": 1, "🦀": 2}"#, "🦀"),
            (r#"{"": 1, "": 2}"#, ""),
            // Before what is wrong behind it.
            (r#"{"n": 1, "n": 2, oops"#, "n"),
        ] {
            let fault = parse(body.as_bytes()).unwrap_err();
            assert_eq!(fault.code, Code::InvalidRequest, "{body}");
            assert_eq!(fault.param.as_deref(), Some(name), "{body}");
            let message = format!("`{name}`: expected this name once; the body has it twice");
            assert_eq!(fault.message, message);
        }
        let long = format!(r#"{{"{0}": 1, "{0}": 1}}"#, "a".repeat(1000));
        assert!(parse(long.as_bytes()).unwrap_err().message.len() < 300);
    }

    #[test]
    fn one_name_in_two_objects_is_two_names() {
        let body = r#"{"a": {"n": 1}, "b": [{"n": 1}, {"n": 2}], "n": -1, "N": 1.5e3, "f": 18446744073709551615}"#;
        let expected: Value = serde_json::from_str(body).unwrap();
        assert_eq!(parse(body.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn what_is_no_json_is_refused_as_before() {
        for body in [
            "",
            "{",
            "{} {}",
            "nan",
            "{\"a\": 1,}",
            "[1, 2",
            "\"\\ud800\"",
            "\u{feff}{}",
        ] {
            assert_eq!(
                parse(body.as_bytes()).unwrap_err().code,
                Code::InvalidJson,
                "{body:?}"
            );
        }
        let deep = "[".repeat(10_000);
        assert_eq!(parse(deep.as_bytes()).unwrap_err().code, Code::InvalidJson);
        // As many as are read, and one more.
        for (one, count) in [
            ("1", 1),
            ("[]", 4),
            ("[1]", 5),
            ("{}", 8),
            (r#"{"a":1}"#, 9),
        ] {
            let fit = (VALUES_MAX - 4) / count;
            let many = |n| format!("[{}]", vec![one; n].join(","));
            assert!(parse(many(fit).as_bytes()).is_ok(), "{one}");
            let fault = parse(many(fit + 1).as_bytes()).unwrap_err();
            assert_eq!(fault.code, Code::InvalidJson, "{one}");
            assert!(
                fault
                    .message
                    .contains("the body to have at most 1048576 values"),
                "{fault}"
            );
        }
    }

    #[test]
    fn each_field_has_so_many_values_and_no_more() {
        for (field, most) in [
            ("prompt", VALUES_MAX - 9),
            ("tokens", VALUES_MAX - 9),
            ("messages", TALK_VALUES_MAX),
            ("input", TALK_VALUES_MAX),
            ("tools", FIELD_VALUES_MAX),
            ("metadata", FIELD_VALUES_MAX),
            ("stop", FIELD_VALUES_MAX),
        ] {
            // The list itself counts for 4; of the whole, the body for 8 and `n` for one.
            let body = |ones: usize| {
                let list = vec!["1"; ones].join(",");
                format!(r#"{{"n": 1, "{field}": [{list}]}}"#)
            };
            assert!(parse(body(most - 4).as_bytes()).is_ok(), "{field}");
            let fault = parse(body(most - 3).as_bytes()).unwrap_err();
            if OF_TOKENS.contains(&field) {
                assert_eq!(fault.code, Code::InvalidJson, "{field}");
                continue;
            }
            assert_eq!(fault.param.as_deref(), Some(field));
            let most = format!("`{field}`: expected at most {most} values");
            assert!(fault.message.starts_with(&most), "{fault}");
        }
        // However deep, and under a name that has a dot or is none of ours.
        let deep = vec![r#"{"a.b": [[1]]}"#; FIELD_VALUES_MAX / 17 + 1].join(",");
        let fault = parse(format!(r#"{{"x.y": {{"z": [{deep}]}}}}"#).as_bytes()).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("x.y"));
    }

    #[test]
    fn texts_of_one_request_share_what_they_may_have() {
        let list = |ones: usize| format!("[{}]", vec!["1"; ones].join(","));
        let mut texts = Texts::default();
        // A list in another field than `tools` has no less.
        let half = list(TALK_VALUES_MAX / 2 - 4);
        for _ in 0..2 {
            assert!(texts.read("a", &half).unwrap().is_some());
        }
        let fault = texts.read("b[1]", "1").unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("b[1]"));
        let most = format!("expected at most {TALK_VALUES_MAX} values");
        assert!(fault.message.contains(&most), "{fault}");
        let named = format!(r#"{{"tools": {}}}"#, list(FIELD_VALUES_MAX + 1));
        assert!(Texts::default().read("a", &named).unwrap().is_some());
    }
}
