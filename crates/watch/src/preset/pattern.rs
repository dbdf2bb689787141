//! How a line of text is taken apart: a pattern of literal text and of names in `<>`.
//!
//! `[<stamp>] Finish: obj=<obj:python>, out=<out:python>` finds the literal parts from left to right
//! and gives what stands between them the names. A name may say what is in it: `:json`, an object
//! whose members become the line's; `:pairs`, `key=value` with spaces or commas between; `:python`,
//! what Python prints of a value; `:19`, so many characters. What a client wrote can stand in a
//! `:json` or `:python` only, whose quotes are read as such: no text of a prompt is taken for a figure.

use super::python;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A pattern.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Pattern {
    /// May begin anywhere in the line: written as `...` at its start.
    anywhere: bool,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Name(String, Kind),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Text,
    Long(usize),
    Json,
    Pairs,
    Python,
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let anywhere = text.starts_with("...");
        let mut rest = text.trim_start_matches("...");
        let mut parts = Vec::new();
        while let Some(open) = rest.find('<') {
            let close = rest[open..].find('>').ok_or("a < without its >")? + open;
            if open > 0 {
                parts.push(Part::Text(rest[..open].to_owned()));
            } else if matches!(parts.last(), Some(Part::Name(_, kind)) if !matches!(kind, Kind::Long(_)))
            {
                return Err("two names with no text between them".to_owned());
            }
            let (name, kind) = rest[open + 1..close]
                .split_once(':')
                .unwrap_or((&rest[open + 1..close], ""));
            let kind = match kind {
                "" => Kind::Text,
                "json" => Kind::Json,
                "pairs" => Kind::Pairs,
                "python" => Kind::Python,
                n => Kind::Long(n.parse().map_err(|_| format!("{n:?} is no kind"))?),
            };
            parts.push(Part::Name(name.to_owned(), kind));
            rest = &rest[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self { anywhere, parts })
    }
}

impl Pattern {
    /// What the line has under the pattern's names; none if it is another kind of line.
    pub(super) fn take(&self, line: &str) -> Option<Value> {
        let mut rest = match self.parts.first() {
            Some(Part::Text(text)) if self.anywhere => &line[line.find(text)?..],
            _ => line,
        };
        let mut out = Map::new();
        let mut parts = self.parts.iter().peekable();
        while let Some(part) = parts.next() {
            let (name, kind) = match part {
                Part::Text(text) => {
                    rest = rest.strip_prefix(text.as_str())?;
                    continue;
                }
                Part::Name(name, kind) => (name, kind),
            };
            let found = match (kind, parts.peek()) {
                (Kind::Long(n), _) => rest.get(..*n)?,
                // Its own end is found by reading it: a quoted text may look like what comes next.
                (Kind::Python, _) => &rest[..python::length(rest)],
                (_, Some(Part::Text(next))) => &rest[..rest.find(next.as_str())?],
                _ => rest,
            };
            rest = &rest[found.len()..];
            put(&mut out, name, *kind, found)?;
        }
        rest.trim().is_empty().then_some(Value::Object(out))
    }
}

fn put(out: &mut Map<String, Value>, name: &str, kind: Kind, found: &str) -> Option<()> {
    match kind {
        Kind::Text | Kind::Long(_) => {
            out.insert(name.to_owned(), found.trim().into());
        }
        Kind::Json => match serde_json::from_str(found).ok()? {
            Value::Object(members) => out.extend(members),
            _ => return None,
        },
        Kind::Pairs => out.extend(pairs(found)),
        Kind::Python => {
            out.insert(name.to_owned(), python::value(found));
        }
    }
    Some(())
}

/// `a=1 b="two words" c=3ms`, with spaces or commas between.
fn pairs(text: &str) -> Map<String, Value> {
    let mut out = Map::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let quoted = after.strip_prefix('"').and_then(|it| it.split_once('"'));
        let (value, after) = quoted.unwrap_or_else(|| {
            let end = after.find([' ', ',']).unwrap_or(after.len());
            after.split_at(end)
        });
        out.insert(name.trim_matches([' ', ',']).to_owned(), value.into());
        rest = after;
    }
    out
}

/// Without the colours that a program gives its lines on a terminal.
pub(super) fn without_colours(line: &str) -> std::borrow::Cow<'_, str> {
    if !line.contains('\u{1b}') {
        return line.into();
    }
    let mut parts = line.split("\u{1b}[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|it: char| !it.is_ascii_digit() && it != ';');
        out.push_str(end.map_or("", |end| {
            part[end..].strip_prefix('m').unwrap_or(&part[end..])
        }));
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pattern(text: &str) -> Pattern {
        Pattern::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn names_take_what_stands_between_the_text() {
        let it = pattern("[<stamp>] Stats(<a:pairs>): <b:pairs>");
        assert_eq!(
            it.take("[noon] Stats(rid=r, n=7): t=1.5ms, u=\"two words\""),
            Some(json!({"stamp": "noon", "rid": "r", "n": "7", "t": "1.5ms", "u": "two words"}))
        );
        assert_eq!(it.take("[noon] Other(rid=r): t=1"), None);
        let it = pattern("... got <id>: <rest>");
        assert_eq!(
            it.take("INFO got x: y"),
            Some(json!({"id": "x", "rest": "y"}))
        );
        let it = pattern("<at:4> <body:json>");
        assert_eq!(
            it.take("noon {\"n\":1}"),
            Some(json!({"at": "noon", "n": 1}))
        );
        assert_eq!(it.take("noon {\"n\":1} and more"), None);
        for wrong in ["<a", "<a><b>", "<a:hex>"] {
            assert!(Pattern::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    /// What a client wrote ends no value, and is none.
    #[test]
    fn quoted_text_is_no_figure() {
        let it = pattern("Finish: obj=<obj:python>, out=<out:python>");
        let line =
            r#"Finish: obj=R(text="it's), out={'n': 1}", n=5), out={'n': 2, 'text': ', \'n\': 3'}"#;
        assert_eq!(
            it.take(line),
            Some(json!({
                "obj": {"text": "it's), out={'n': 1}", "n": 5},
                "out": {"n": 2, "text": ", 'n': 3"},
            }))
        );
    }

    #[test]
    fn colours_are_no_part_of_a_line() {
        assert_eq!(
            without_colours("\u{1b}[2m2026\u{1b}[0m \u{1b}[31;1mERROR\u{1b}[0m x"),
            "2026 ERROR x"
        );
    }
}
