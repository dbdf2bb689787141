//! JSON in which a name that stands in one object twice, with two values, is not one of them.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use std::fmt;

/// The name of no field: it marks values that stood under one.
const TWICE: &str = "\u{0}twice";

/// A value in which nothing was overwritten.
pub(crate) struct Once(pub(crate) Value);

/// The values that stood under one name, if there were several.
pub(crate) fn twice(value: &Value) -> Option<&Vec<Value>> {
    value.as_object()?.get(TWICE)?.as_array()
}

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Once, D::Error> {
        from.deserialize_any(Any).map(Once)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, it: bool) -> Result<Value, E> {
        Ok(it.into())
    }

    fn visit_u64<E>(self, it: u64) -> Result<Value, E> {
        Ok(it.into())
    }

    fn visit_i64<E>(self, it: i64) -> Result<Value, E> {
        Ok(it.into())
    }

    fn visit_f64<E>(self, it: f64) -> Result<Value, E> {
        Ok(it.into())
    }

    fn visit_str<E>(self, it: &str) -> Result<Value, E> {
        Ok(it.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Once(it)) = from.next_element()? {
            list.push(it);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Once(it))) = from.next_entry::<String, Once>()? {
            match map.get_mut(&name) {
                None => {
                    map.insert(name, it);
                }
                Some(before) if *before != it => *before = json!({ TWICE: [before, it] }),
                Some(_) => {}
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Value {
        serde_json::from_str::<Once>(text).unwrap().0
    }

    #[test]
    fn what_stands_there_once_is_as_it_is() {
        let text = r#"{"a":[1,-2,3.5,"x",null,true,{"b":{}}],"c":18446744073709551615}"#;
        assert_eq!(
            read(text),
            serde_json::from_str::<Value>(text).unwrap(),
            "{text}"
        );
        assert_eq!(read(r#"{"a":7,"a":7}"#), json!({"a": 7}));
    }

    #[test]
    fn two_values_are_none_of_them() {
        let value = read(r#"{"a":{"b":3000,"b":8000},"c":1}"#);
        assert_eq!(
            twice(&value["a"]["b"]).unwrap()[..],
            [json!(3000), json!(8000)]
        );
        assert_eq!(value["a"]["b"].as_u64(), None);
        assert_eq!(twice(&value["c"]), None);
    }
}
