//! Reading a request's JSON object field by field.
//!
//! A field that is read is taken out; what is left at the end is refused by name. `null` means
//! absent, everywhere: clients send it for "not set".

use serde_json::{Map, Value};

use super::strict_json;
use crate::engine::{Code, Fault};

/// The fields of one JSON object that were not read yet.
pub(super) struct Fields {
    map: Map<String, Value>,
    /// Where the object stands in the request, such as `stream_options.`; empty at the top.
    path: String,
}

/// A field's value is of the wrong type or out of range.
pub(super) fn invalid(param: impl Into<String>, expected: impl AsRef<str>) -> Fault {
    let param = param.into();
    Fault::new(
        Code::InvalidRequest,
        format!("`{param}`: expected {}", expected.as_ref()),
    )
    .on(param)
}

/// A field would change the answer and is not implemented.
pub(super) fn unsupported(param: impl Into<String>, why: &str) -> Fault {
    let param = param.into();
    Fault::new(
        Code::UnsupportedParameter,
        format!("`{param}` is not supported: {why}"),
    )
    .on(param)
}

impl Fields {
    /// Parses a body.
    ///
    /// # Errors
    /// The body is not a JSON object, or has a name twice.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Fault> {
        match strict_json::parse(body)? {
            Value::Object(map) => Ok(Self::of(map, "")),
            _ => Err(Fault::new(
                Code::InvalidJson,
                "expected the body to be a JSON object",
            )),
        }
    }

    /// The fields of an object that stands at `path` (ending in a dot, or empty).
    pub(super) fn of(mut map: Map<String, Value>, path: impl Into<String>) -> Self {
        map.retain(|_, value| !value.is_null());
        Self {
            map,
            path: path.into(),
        }
    }

    /// The full name of a field, for messages.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// Takes a field as it is.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key)
    }

    /// Looks at a field and leaves it.
    pub(super) fn look(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// Takes `true` or `false`.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, Fault> {
        self.convert(key, "true or false", |value| value.as_bool())
    }

    /// Takes text.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, Fault> {
        self.convert(key, "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// Takes a whole number in a range.
    ///
    /// # Errors
    /// It is something else, or outside.
    pub(super) fn whole(&mut self, key: &str, low: i64, high: i64) -> Result<Option<i64>, Fault> {
        // A bound that is only the machine's is nobody's business.
        let expected = match (low, high) {
            (i64::MIN, i64::MAX) => "a whole number".to_owned(),
            (low, i64::MAX) => format!("a whole number from {low}"),
            (low, high) => format!("a whole number from {low} to {high}"),
        };
        self.convert(key, &expected, |value| {
            whole(&value).filter(|n| (low..=high).contains(n))
        })
    }

    /// Takes a number in a range.
    ///
    /// # Errors
    /// It is something else, or outside.
    pub(super) fn number(&mut self, key: &str, low: f64, high: f64) -> Result<Option<f32>, Fault> {
        let expected = format!("a number from {low} to {high}");
        self.convert(key, &expected, |value| {
            value
                .as_f64()
                .filter(|n| (low..=high).contains(n))
                .map(|n| n as f32)
        })
    }

    /// Takes a nested object.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn object(&mut self, key: &str) -> Result<Option<Fields>, Fault> {
        let path = format!("{}{key}.", self.path);
        self.convert(key, "an object", |value| match value {
            Value::Object(map) => Some(Fields::of(map, path)),
            _ => None,
        })
    }

    fn convert<T>(
        &mut self,
        key: &str,
        expected: &str,
        into: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(value) => into(value)
                .map(Some)
                .ok_or_else(|| invalid(self.name(key), expected)),
        }
    }

    /// Refuses what is left, by name.
    ///
    /// # Errors
    /// A field is left.
    pub(super) fn finish(self) -> Result<(), Fault> {
        let Some(key) = self.map.keys().next() else {
            return Ok(());
        };
        // A hostile name may be a megabyte long; the client knows what it sent.
        let shown: String = self.name(key).chars().take(128).collect();
        let message = format!(
            "`{shown}` is not known here, and is not ignored because it could change the answer"
        );
        Err(Fault::new(Code::UnknownParameter, message).on(shown))
    }
}

/// A whole number, also when written as `5.0`.
pub(super) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        value
            .as_f64()
            .filter(|n| n.fract() == 0.0 && n.abs() < 9e15)
            .map(|n| n as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"))
    }

    #[test]
    fn what_was_not_read_is_refused_by_its_full_name() {
        let mut top = fields(r#"{"a": {"b": 1, "c": null}, "d": null}"#);
        let inner = top.object("a").unwrap().unwrap();
        let fault = inner.finish().unwrap_err();
        assert_eq!(
            (fault.code, fault.param.as_deref()),
            (Code::UnknownParameter, Some("a.b"))
        );
        assert!(top.finish().is_ok(), "null means absent");
    }

    #[test]
    fn wrong_types_and_ranges_name_the_field_and_what_was_expected() {
        let fault = fields(r#"{"n": 1.5}"#).whole("n", 1, 4).unwrap_err();
        assert_eq!(fault.message, "`n`: expected a whole number from 1 to 4");
        assert_eq!(fault.param.as_deref(), Some("n"));
        let said = |low| {
            fields(r#"{"n": "x"}"#)
                .whole("n", low, i64::MAX)
                .unwrap_err()
        };
        assert_eq!(said(1).message, "`n`: expected a whole number from 1");
        assert_eq!(said(i64::MIN).message, "`n`: expected a whole number");
        assert_eq!(fields(r#"{"n": 2.0}"#).whole("n", 1, 4).unwrap(), Some(2));
        assert!(
            fields(r#"{"n": 1e300}"#)
                .whole("n", i64::MIN, i64::MAX)
                .is_err()
        );
        assert!(fields(r#"{"n": "1"}"#).number("n", 0.0, 2.0).is_err());
        assert!(fields(r#"{"n": 2.1}"#).number("n", 0.0, 2.0).is_err());
        assert!(Fields::parse(b"[1]").is_err());
        assert!(Fields::parse(b"{").is_err());
    }
}
