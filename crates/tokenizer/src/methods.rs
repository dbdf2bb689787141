//! Python's methods and formatting for templates, paid for before they work. What the engine itself
//! makes is charged before it is made; these few can make much of little before anybody counts.

use std::fmt::{self, Write};

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::{FUEL_BYTES, TEMPLATE_FUEL};

/// What a byte of a list as text costs, as the engine has it.
const WALKED: u64 = 16;

pub(crate) fn add(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("format", format);
    environment.add_filter("tojson", tojson);
}

fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let first = arguments.first();
    let text = value.as_str().map_or(0, |text| text.len() as u64);
    let given = first.and_then(Value::as_str).map_or(0, str::len) as u64;
    let items = |list: Option<&Value>| list.and_then(Value::len).unwrap_or(0) as u64;
    let items = |list| u64::saturating_mul(items(list), FUEL_BYTES);
    match (value.as_str(), method) {
        (Some(separator), "join") => return join(state, separator, first),
        (Some(format), "format") => charge(state, format_bytes(format, '{', arguments))?,
        // Every character is looked for among all of these.
        (Some(_), "strip" | "lstrip" | "rstrip") => {
            charge(state, text.saturating_mul(given.max(1)))?
        }
        (Some(_), "startswith" | "endswith") => charge(state, items(first))?,
        (Some(_), _) => charge(state, text)?,
        (None, "count") => charge(state, items(Some(value)))?,
        (None, _) => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

fn format(
    state: &mut State,
    format: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let values: Vec<Value> = arguments.0.iter().map(|value| (**value).clone()).collect();
    let bytes = format
        .as_str()
        .map_or(0, |format| format_bytes(format, '%', &values));
    charge(state, bytes)?;
    minijinja::filters::format(state, format, arguments)
}

/// As Hugging Face's templates have it, which is `json.dumps(value, ensure_ascii=False)`: the engine's
/// own is made for pages, and escapes what HTML would take for its own.
fn tojson(
    state: &mut State,
    value: &Value,
    indent: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let named_indent = named.peek::<Option<Value>>("indent").ok().flatten();
    let width = |indent: &Value| indent.as_i64().map_or(0, i64::unsigned_abs);
    let widest = indent.iter().chain(&named_indent).map(width).max();
    let bytes = shown_bytes(value);
    charge(
        state,
        bytes.saturating_mul(widest.unwrap_or(0).saturating_add(1)),
    )?;
    // Only what it says by itself: characters as they are.
    if named.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        let problem = "tojson(ensure_ascii=true) is not computed: what is no ASCII stays as it is";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    let json = minijinja::filters::tojson(value, indent, named)?;
    Ok(Value::from(unescaped(json.as_str().unwrap_or_default())))
}

/// JSON with the characters themselves that the engine escapes for HTML.
fn unescaped(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut pieces = json.split('\\');
    plain.push_str(pieces.next().unwrap_or_default());
    while let Some(piece) = pieces.next() {
        let html = ["u003c", "u003e", "u0026", "u0027"];
        match html.iter().position(|it| piece.starts_with(it)) {
            Some(at) => {
                plain.push(['<', '>', '&', '\''][at]);
                plain.push_str(&piece[html[at].len()..]);
            }
            // A backslash before a backslash is text, and so is what follows.
            None if piece.is_empty() => {
                plain.push_str("\\\\");
                plain.push_str(pieces.next().unwrap_or_default());
            }
            None => {
                plain.push('\\');
                plain.push_str(piece);
            }
        }
    }
    plain
}

/// As Python's, but that each item is paid for before the next.
fn join(state: &State, separator: &str, list: Option<&Value>) -> Result<Value, Error> {
    let Some(list) = list else {
        return Err(Error::from(minijinja::ErrorKind::MissingArgument));
    };
    let mut joined = String::new();
    for (at, item) in list.try_iter()?.enumerate() {
        let separator = if at == 0 { "" } else { separator };
        let bytes = FUEL_BYTES + separator.len() as u64;
        charge(state, bytes.saturating_add(shown_bytes(&item)))?;
        joined.push_str(separator);
        // A String takes all.
        let _ = write!(joined, "{item}");
    }
    Ok(Value::from(joined))
}

fn charge(state: &State, bytes: u64) -> Result<(), Error> {
    state.consume_fuel(bytes / FUEL_BYTES)
}

/// No less than the bytes that formatting makes: every number in the format may be a width, as may
/// every argument where widths are fields themselves, and every field may be all of the arguments.
fn format_bytes(format: &str, field: char, arguments: &[Value]) -> u64 {
    let numbers = format.split(|c: char| !c.is_ascii_digit());
    let widths = numbers
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(u64::MAX))
        .fold(0, u64::saturating_add);
    let opened = |(open, deepest): (u32, u32), c| match c {
        '{' => (open + 1, deepest.max(open + 1)),
        '}' => (open.saturating_sub(1), deepest),
        _ => (open, deepest),
    };
    let (_, depth) = format.chars().fold((0, 0), opened);
    let fields = format.matches(field).count() as u64;
    let given = |value: &Value| match value.as_i64() {
        Some(number) if depth > 1 => number.unsigned_abs(),
        _ => shown_bytes(value),
    };
    let given = arguments.iter().map(given).fold(0, u64::saturating_add);
    widths.saturating_add(given.saturating_mul(fields))
}

/// Bytes of a value as text, those of lists and maps many times over, because walking through them is
/// slow; or more than there is fuel for.
fn shown_bytes(value: &Value) -> u64 {
    if let Some(text) = value.as_str() {
        return text.len() as u64;
    }
    if value.kind() == ValueKind::Number {
        return 40;
    }
    let mut counted = Counted(0);
    match write!(counted, "{value}") {
        Ok(()) => counted.0,
        Err(fmt::Error) => u64::MAX,
    }
}

/// Counts what is written, and ends it when it is more than any template may make.
struct Counted(u64);

impl Write for Counted {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.0 += WALKED * piece.len() as u64;
        if self.0 > TEMPLATE_FUEL * FUEL_BYTES {
            return Err(fmt::Error);
        }
        Ok(())
    }
}
