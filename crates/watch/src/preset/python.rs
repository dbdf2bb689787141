//! What Python prints of a value (`repr`), as JSON: numbers, texts, `None`, lists, dictionaries and
//! `Name(field=value)`. What is none of them (`<object at 0x7f…>`, a text cut with ` ... `) is passed over.

use serde_json::{Map, Value};

/// Deeper than this nothing is looked for.
const DEEP_MAX: usize = 64;

/// How far the value at the beginning goes: to a comma or a closing bracket that is not its own.
pub(super) fn length(text: &str) -> usize {
    let mut reader = Reader { text, at: 0 };
    reader.skip();
    reader.at
}

/// The value at the beginning.
pub(super) fn value(text: &str) -> Value {
    Reader { text, at: 0 }.value(0)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let it = self.peek()?;
        self.at += it.len_utf8();
        Some(it)
    }

    fn spaces(&mut self) {
        while self.peek() == Some(' ') {
            self.at += 1;
        }
    }

    /// To the end of the value.
    fn skip(&mut self) {
        let mut open = 0_u32;
        while let Some(it) = self.peek() {
            match it {
                '\'' | '"' => {
                    self.quoted();
                    continue;
                }
                '(' | '[' | '{' => open += 1,
                ')' | ']' | '}' if open == 0 => return,
                ')' | ']' | '}' => open -= 1,
                ',' if open == 0 => return,
                _ => {}
            }
            self.next();
        }
    }

    fn value(&mut self, deep: usize) -> Value {
        self.spaces();
        let found = match self.peek() {
            _ if deep > DEEP_MAX => Value::Null,
            Some('\'' | '"') => Value::String(self.quoted()),
            Some('{') => self.members(deep, '}', ':'),
            Some('[') => self.list(deep, ']'),
            Some('(') => self.list(deep, ')'),
            _ => self.word(deep),
        };
        self.skip(); // what was cut, or is nothing that we know
        found
    }

    /// A number, a name, or `Name(field=value, …)`.
    fn word(&mut self, deep: usize) -> Value {
        let rest = &self.text[self.at..];
        let is_word = |it: char| it.is_alphanumeric() || matches!(it, '_' | '.' | '-' | '+');
        let end = rest.find(|it: char| !is_word(it)).unwrap_or(rest.len());
        let word = &rest[..end];
        self.at += end;
        match word {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            _ if self.peek() == Some('(') => self.members(deep, ')', '='),
            _ => word.parse().map_or(Value::Null, Value::Number),
        }
    }

    fn quoted(&mut self) -> String {
        let quote = self.next();
        let mut out = String::new();
        while let Some(it) = self.next() {
            match it {
                '\\' => out.extend(self.next()), // `\n` as n: no figure is written so
                it if Some(it) == quote => break,
                it => out.push(it),
            }
        }
        out
    }

    fn list(&mut self, deep: usize, close: char) -> Value {
        self.next();
        let mut out = Vec::new();
        while self.more(close) {
            out.push(self.value(deep + 1));
        }
        Value::Array(out)
    }

    fn members(&mut self, deep: usize, close: char, between: char) -> Value {
        self.next();
        let mut out = Map::new();
        while self.more(close) {
            let name = match self.peek() {
                Some('\'' | '"') => self.quoted(),
                _ => {
                    let rest = &self.text[self.at..];
                    let end = rest.find([between, ',', close]).unwrap_or(rest.len());
                    self.at += end;
                    rest[..end].trim().to_owned()
                }
            };
            self.spaces();
            if self.peek() == Some(between) {
                self.at += 1;
                let value = self.value(deep + 1);
                out.insert(name, value);
            } else {
                self.skip(); // an argument without a name
            }
        }
        Value::Object(out)
    }

    /// Whether another element begins; passes over what stands between two, and over the end.
    fn more(&mut self, close: char) -> bool {
        loop {
            match self.peek() {
                Some(' ' | ',') => self.at += 1,
                Some(it) if it == close => {
                    self.at += 1;
                    return false;
                }
                // The bracket of something else: the text is not what it seemed.
                Some(')' | ']' | '}') | None => return false,
                Some(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_python_prints() {
        for (text, is) in [
            (
                "{'a': 1, 'b': None, 'c': True, 'd': 1.5e-3}",
                json!({"a": 1, "b": null, "c": true, "d": 0.0015}),
            ),
            (
                "R(x='a', y=[1, (2, 'b')], z=Z(w=-3))",
                json!({"x": "a", "y": [1, [2, "b"]], "z": {"w": -3}}),
            ),
            ("{'t': 'ab' ... 'yz', 'n': 7}", json!({"t": "ab", "n": 7})),
            (
                "{'o': <Object at 0x7f>, 'f': f(1, 2), 'n': 7}",
                json!({"o": null, "f": {}, "n": 7}),
            ),
            (
                r#"{'t': "it's \" {'n': 1}", 'n': 7}"#,
                json!({"t": "it's \" {'n': 1}", "n": 7}),
            ),
        ] {
            assert_eq!(value(text), is, "{text}");
            assert_eq!(length(text), text.len());
            assert_eq!(length(&format!("{text}, more")), text.len());
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = value(&text);
            prop_assert!(length(&text) <= text.len());
        }

        #[test]
        fn no_brackets_panic(text in "[\\[\\](){}'\", :=a1é<.-]{0,200}") {
            let _ = value(&text);
            prop_assert!(length(&text) <= text.len());
        }
    }
}
