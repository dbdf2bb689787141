//! What Python prints of values (`repr`), as JSON: engines print their settings so.

use serde_json::{Map, Number, Value};

/// No value nests deeper.
const DEPTH_MAX: usize = 64;

/// What does not end, or nests too deep.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut;

/// The value that `text` begins with: `{'a': 1}`, `Settings(a=1)`.
pub(super) fn value(text: &str) -> Result<Value, Cut> {
    Reader { text, at: 0 }.value(0)
}

/// Names and values up to the end of `text`: `a=1, b='x'`. Without a last one that has no end of
/// its own: of a line that is cut nobody knows how it goes on.
pub(super) fn settings(text: &str) -> Result<Value, Cut> {
    let mut reader = Reader { text, at: 0 };
    let mut named = Map::new();
    while !reader.rest().is_empty() {
        let name = reader.entry(&mut named, 0)?;
        if !reader.eat(',') {
            let ends = text.trim_end().ends_with(['\'', '"', ')', ']', '}', '>']);
            if let Some(name) = name.filter(|_| !ends) {
                named.remove(name);
            }
            break;
        }
        reader.spaces();
    }
    match reader.rest().trim().is_empty() {
        true => Ok(Value::Object(named)),
        false => Err(Cut),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    fn spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// A value and, where more stands behind it than another could follow, all of that as text.
    fn whole(&mut self, depth: usize) -> Result<Value, Cut> {
        let start = self.at;
        let value = self.value(depth)?;
        let next = self.rest().trim_start().chars().next();
        if next.is_none_or(|it| ",:)]}".contains(it)) {
            self.spaces();
            return Ok(value);
        }
        while let Some(c) = self.peek().filter(|it| !",)]}".contains(*it)) {
            match c {
                '\'' | '"' => drop(self.quoted()?),
                '(' | '[' | '{' => drop(self.value(depth + 1)?),
                c => self.at += c.len_utf8(),
            }
        }
        Ok(Value::String(
            self.text[start..self.at].trim_end().to_owned(),
        ))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Cut> {
        if depth > DEPTH_MAX {
            return Err(Cut);
        }
        let start = self.at;
        match self.peek().ok_or(Cut)? {
            '\'' | '"' => self.quoted().map(Value::String),
            '{' => self.braces(depth),
            '[' => self.list(']', depth),
            '(' => self.list(')', depth),
            '<' => self.angles(),
            _ => {
                let word = self.word();
                match self.peek() {
                    Some('\'' | '"') if matches!(word, "b" | "r" | "u") => {
                        self.quoted().map(Value::String)
                    }
                    Some('(') => self.call(start, depth),
                    _ => Ok(plain(word)),
                }
            }
        }
    }

    /// What stands there up to a space, a bracket or a comma.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let ends = |c: char| c.is_whitespace() || ",:()[]{}".contains(c);
        let mut end = rest.find(ends).unwrap_or(rest.len());
        // An address: `tcp://host:1`. Behind a name of an object a space follows the colon.
        while rest[end..].starts_with(':') && !rest[end..].starts_with(": ") {
            let from = end + 1;
            end = rest[from..].find(ends).map_or(rest.len(), |it| from + it);
        }
        // `b'...'`: the quotes are not part of the word.
        if rest.len() > 1 && matches!(rest.as_bytes()[1], b'\'' | b'"') && rest.is_char_boundary(1)
        {
            end = end.min(1);
        }
        self.at += end;
        &rest[..end]
    }

    fn quoted(&mut self) -> Result<String, Cut> {
        let rest = self.rest();
        let mut chars = rest.char_indices();
        let (_, quote) = chars.next().ok_or(Cut)?;
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.at += at + c.len_utf8();
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            match chars.next().ok_or(Cut)?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                c @ ('\'' | '"' | '\\') => text.push(c),
                // What Python escapes by number stays as it is printed: it is only compared.
                c => text.extend(['\\', c]),
            }
        }
        Err(Cut)
    }

    fn braces(&mut self, depth: usize) -> Result<Value, Cut> {
        self.eat('{');
        let (mut named, mut set) = (Map::new(), Vec::new());
        self.items('}', |it| {
            let first = it.whole(depth + 1)?;
            if !it.eat(':') {
                set.push(first);
                return Ok(());
            }
            it.spaces();
            let name = match first {
                Value::String(name) => name,
                other => other.to_string(),
            };
            let value = it.whole(depth + 1)?;
            named.insert(name, value);
            Ok(())
        })?;
        if set.is_empty() {
            return Ok(Value::Object(named));
        }
        // Python prints a set in any order.
        set.sort_by_key(Value::to_string);
        Ok(Value::Array(set))
    }

    fn list(&mut self, close: char, depth: usize) -> Result<Value, Cut> {
        self.at += 1;
        let mut list = Vec::new();
        self.items(close, |it| {
            list.push(it.whole(depth + 1)?);
            Ok(())
        })?;
        Ok(Value::Array(list))
    }

    /// `Name(a=1, b=2)` as an object; with anything unnamed in it as the text that it is.
    fn call(&mut self, start: usize, depth: usize) -> Result<Value, Cut> {
        self.eat('(');
        let (mut named, mut unnamed) = (Map::new(), false);
        self.items(')', |it| {
            unnamed |= it.entry(&mut named, depth + 1)?.is_none();
            Ok(())
        })?;
        match unnamed {
            true => Ok(Value::String(self.text[start..self.at].to_owned())),
            false => Ok(Value::Object(named)),
        }
    }

    /// `name=value`: the name, if it has one.
    fn entry(
        &mut self,
        named: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<Option<&'a str>, Cut> {
        let rest = self.rest();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if end == 0 || !rest[end..].starts_with('=') {
            self.whole(depth)?;
            return Ok(None);
        }
        self.at += end + 1;
        let value = match self.peek() {
            None | Some(',' | ')') => Value::String(String::new()),
            Some(_) => self.whole(depth)?,
        };
        named.insert(rest[..end].to_owned(), value);
        Ok(Some(&rest[..end]))
    }

    fn items(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<(), Cut>,
    ) -> Result<(), Cut> {
        loop {
            self.spaces();
            if self.eat(close) {
                return Ok(());
            }
            item(self)?;
            self.spaces();
            if !self.eat(',') && self.peek() != Some(close) {
                return Err(Cut);
            }
        }
    }

    /// `<Mode.NONE: 0>`, `<function f at 0x7f>`: as text, without where it lies.
    fn angles(&mut self) -> Result<Value, Cut> {
        let start = self.at;
        let mut open = 0;
        while let Some(c) = self.peek() {
            match c {
                '\'' | '"' => drop(self.quoted()?),
                c => {
                    open += i32::from(c == '<') - i32::from(c == '>');
                    self.at += c.len_utf8();
                    if open == 0 {
                        let text = &self.text[start..self.at];
                        let text = text.split(" at 0x").next().unwrap_or(text);
                        return Ok(Value::String(text.to_owned()));
                    }
                }
            }
        }
        Err(Cut)
    }
}

/// A word without quotes: a number, one of Python's constants, or text.
fn plain(word: &str) -> Value {
    let number = || {
        let digit = word
            .trim_start_matches('-')
            .starts_with(|c: char| c.is_ascii_digit());
        let whole = word.parse::<u64>().map(Number::from).ok();
        let whole = whole.or_else(|| word.parse::<i64>().map(Number::from).ok());
        let real = || word.parse().ok().and_then(Number::from_f64);
        // Digits of a revision that begin with 0 are no number.
        let whole = whole.filter(|it| it.to_string() == word);
        let digits = word.bytes().all(|it| it.is_ascii_digit());
        digit
            .then(|| whole.or_else(|| real().filter(|_| !digits)))
            .flatten()
    };
    match word {
        "None" => Value::Null,
        "True" => true.into(),
        "False" => false.into(),
        _ => number().map_or_else(|| word.into(), Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_as_python_prints_them() {
        for (text, expected) in [
            ("None", json!(null)),
            ("-7", json!(-7)),
            ("18446744073709551615", json!(u64::MAX)),
            ("1e-05", json!(1e-5)),
            ("torch.bfloat16", json!("torch.bfloat16")),
            ("0.5.19", json!("0.5.19")),
            ("0123", json!("0123")),
            (r#"'it\'s, "so"}'"#, json!(r#"it's, "so"}"#)),
            (r#""it's""#, json!("it's")),
            (r"'C:\\x\x00'", json!(r"C:\x\x00")),
            ("b'x'", json!("x")),
            ("{}", json!({})),
            ("()", json!([])),
            (
                "{'a': {'b': [1, (2, 'c')], 3: None}}",
                json!({"a": {"b": [1, [2, "c"]], "3": null}}),
            ),
            ("{'b', 'a'}", json!(["a", "b"])),
            (
                "{'mode': <Mode.NONE: 0>, 'x': True}",
                json!({"mode": "<Mode.NONE: 0>", "x": true}),
            ),
            ("<function <lambda> at 0x7f00>", json!("<function <lambda>")),
            (
                "Config(a='x', b=Other(c=[1]), d=None)",
                json!({"a": "x", "b": {"c": [1]}, "d": null}),
            ),
            ("PosixPath('/a, b')", json!("PosixPath('/a, b')")),
            ("[tcp://h:1, x]", json!(["tcp://h:1", "x"])),
            (
                "{'a': 1 if x else 2, 'b': 3}",
                json!({"a": "1 if x else 2", "b": 3}),
            ),
        ] {
            assert_eq!(value(text), Ok(expected.clone()), "{text}");
            assert_eq!(
                value(&format!("{text}, 'more': 1")),
                Ok(expected),
                "{text} and more"
            );
        }
    }

    #[test]
    fn settings_up_to_the_end_of_a_line() {
        let text = "model='/m', name=a b, dtype=auto, c=Config(a={'x': 1}), empty=, last=None";
        let expected = json!({
            "model": "/m", "name": "a b", "dtype": "auto", "c": {"a": {"x": 1}}, "empty": "",
        });
        assert_eq!(settings(text), Ok(expected));
        assert_eq!(settings(""), Ok(json!({})));
        assert_eq!(settings("a=1, n=25"), Ok(json!({"a": 1})));
        assert_eq!(settings("a=1, n='25'"), Ok(json!({"a": 1, "n": "25"})));
    }

    /// Wherever a line is cut, what is read of it is not taken for the whole.
    #[test]
    fn what_is_cut_is_no_value() {
        let text =
            r#"{'a': 'x\'y', 'b': [1, {'c': <M: 'q'>}], 'd': C(e=(1, 2), f="z"), 'g': None}"#;
        assert!(value(text).is_ok());
        for (end, _) in text.char_indices() {
            assert_eq!(value(&text[..end]), Err(Cut), "{}", &text[..end]);
        }
        let deep = "[".repeat(100_000);
        assert_eq!(value(&deep), Err(Cut));
        assert_eq!(settings("a=1, b={'c': 2"), Err(Cut));
        assert_eq!(settings("a=1, b='c"), Err(Cut));
    }
}
