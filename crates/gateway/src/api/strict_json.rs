//! JSON as it must be to mean one thing: of two values of one name readers take the first, the last
//! or none, and so the client and whoever looked at the request on its way may mean different ones.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::fields::invalid;
use crate::engine::{Code, Fault};

/// Most values of a body: a small body of many would take thirty times its size. What a list and an object
/// take besides counts as so many more.
const VALUES_MAX: usize = 1 << 20;
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
    let (read, twice) = first(&mut reader);
    let read = read.and_then(|value| reader.end().map(|()| value));
    if let Some(name) = twice {
        return Err(invalid(name, "this name once; the body has it twice"));
    }
    // The parser's own words name a place, never content.
    read.map_err(|error| Fault::new(Code::InvalidJson, format!("the body is not JSON: {error}")))
}

/// Reads JSON that is text in a request (the schema of a form, what a tool was called with); none if it
/// is no JSON.
///
/// # Errors
/// It has a name twice in one object.
pub(super) fn within(param: &str, text: &str) -> Result<Option<Value>, Fault> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let (read, twice) = first(&mut reader);
    let read = read.and_then(|value| reader.end().map(|()| value));
    match twice {
        None => Ok(read.ok()),
        // Seen before the end.
        Some(_) if serde_json::from_str::<IgnoredAny>(text).is_err() => Ok(None),
        Some(name) => {
            let expected = format!("`{name}` once; the JSON in this text has it twice");
            Err(invalid(param, expected))
        }
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
            && let (_, Some(name)) = first(&mut reader)
        {
            let expected = format!("`{name}` once; the JSON in this grammar has it twice");
            return Err(invalid(param, expected));
        }
        at += 1 + piece.len();
    }
    Ok(())
}

/// The next value, and a name that stands twice in it.
fn first<'r, R: serde_json::de::Read<'r>>(
    reader: &mut serde_json::Deserializer<R>,
) -> (serde_json::Result<Value>, Option<String>) {
    let seen = Seen::default();
    let one = One {
        seen: &seen,
        path: None,
    };
    let read = one.deserialize(reader);
    (read, seen.twice.take())
}

#[derive(Default)]
struct Seen {
    values: Cell<usize>,
    twice: RefCell<Option<String>>,
}

impl Seen {
    fn count<E: Error>(&self, more: usize) -> Result<(), E> {
        let values = self.values.get() + more;
        self.values.set(values);
        match values > VALUES_MAX {
            true => {
                let problem = "values, of which a list counts for 4 and an object for 8";
                Err(E::custom(format!("more than {VALUES_MAX} {problem}")))
            }
            false => Ok(()),
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

impl<'de> DeserializeSeed<'de> for One<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.seen.count(1)?;
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
        self.seen.count(OF_A_LIST)?;
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
        self.seen.count(OF_AN_OBJECT)?;
        let mut map = Map::new();
        // As read: `"\u0061"` is the name `a`.
        while let Some(key) = object.next_key::<String>()? {
            let path = Some(Step::Key(&self.path, &key));
            if map.contains_key(&key) {
                let name = shown(&path).chars().take(SHOWN).collect();
                self.seen.twice.replace(Some(name));
                return Err(A::Error::custom("a name twice"));
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
            assert!(
                fault.message.contains("more than 1048576 values"),
                "{fault}"
            );
        }
    }
}
