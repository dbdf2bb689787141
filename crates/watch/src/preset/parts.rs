//! One line that is about many requests: OTLP nests spans in scopes in resources.

use serde_json::{Map, Value};

/// The members of the lists on the way, each with what stands beside those lists. Lists of
/// `{"key": …, "value": {"intValue": …}}` become objects.
pub(super) fn each(value: Value, lists: &[String]) -> Vec<Value> {
    let mut found = vec![plain(value)];
    for list in lists {
        found = found.into_iter().flat_map(|it| members(it, list)).collect();
    }
    found
}

fn members(value: Value, list: &str) -> Vec<Value> {
    let Value::Object(mut around) = value else {
        return Vec::new();
    };
    let Some(Value::Array(members)) = around.remove(list) else {
        return Vec::new();
    };
    let with_around = |member: Value| {
        let Value::Object(member) = member else {
            return Value::Null;
        };
        let mut all = around.clone();
        all.extend(member);
        Value::Object(all)
    };
    members.into_iter().map(with_around).collect()
}

fn plain(value: Value) -> Value {
    match value {
        Value::Array(list) if is_attributes(&list) => {
            let pair = |it: Value| Some((it["key"].as_str()?.to_owned(), scalar(&it["value"])));
            Value::Object(list.into_iter().filter_map(pair).collect())
        }
        Value::Array(list) => list.into_iter().map(plain).collect(),
        Value::Object(members) => {
            let plain = members.into_iter().map(|(name, it)| (name, plain(it)));
            Value::Object(plain.collect::<Map<_, _>>())
        }
        other => other,
    }
}

fn is_attributes(list: &[Value]) -> bool {
    let is = |it: &Value| it["key"].is_string() && it["value"].is_object();
    !list.is_empty() && list.iter().all(is)
}

/// `{"intValue": "44"}` is 44, whatever its type is called.
fn scalar(value: &Value) -> Value {
    let mut members = value.as_object().into_iter().flatten();
    members.next().map_or(Value::Null, |(_, it)| it.clone())
}
