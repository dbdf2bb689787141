//! What a JSON schema may say here, and where it says what is not implemented.

use crate::{DEPTH_MAX, NoForm};
use serde_json::{Map, Value, json};

/// Keywords that `llguidance` does not implement, and that would change what is valid.
const NOT_IMPLEMENTED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// Keywords whose value is a schema, a list of schemas, or an object of them.
const ONE: &[&str] = &["items", "additionalItems", "additionalProperties"];
const LISTS: &[&str] = &["anyOf", "oneOf", "allOf", "prefixItems", "items"];
const OBJECTS: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];

/// White space between two tokens of JSON: as much as indented JSON needs, and an end to it.
const SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";
/// Parts of a schema that are compiled alone to find what is wrong with it, at most.
const PARTS_MAX: usize = 200;

/// Reads a schema's text, which is not too deep.
pub(crate) fn read(text: &str) -> Result<Value, NoForm> {
    let schema = serde_json::from_str(shallow(text)?);
    schema.map_err(|error| NoForm::whole(format!("it is no JSON: {error}")))
}

/// The same text, if its brackets are not too deep. (Those in strings are counted too: it is a limit.)
pub(crate) fn shallow(text: &str) -> Result<&str, NoForm> {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    match deepest <= DEPTH_MAX {
        true => Ok(text),
        false => {
            let problem = format!("it is {deepest} brackets deep, at most {DEPTH_MAX} are read");
            Err(NoForm::whole(problem))
        }
    }
}

/// Refuses what is not implemented, by its place.
pub(crate) fn judge(schema: &Value) -> Result<(), NoForm> {
    let mut found = None;
    walk(schema, "#", &mut |part, at| {
        let Some(map) = part.as_object() else {
            let known = part.is_boolean();
            let problem = (!known).then(|| "a schema is an object, true or false".to_owned());
            found = problem.map(|problem| (at.to_owned(), problem));
            return found.is_none();
        };
        let unknown = map
            .keys()
            .find(|key| NOT_IMPLEMENTED.contains(&key.as_str()));
        // What says that nothing is asked is no question.
        let unknown = unknown.filter(|key| !(*key == "uniqueItems" && map[*key] == false));
        let remote = map.get("$ref").and_then(Value::as_str);
        let remote = remote.filter(|to| !to.starts_with('#'));
        let problem = match (unknown, remote) {
            (Some(key), _) => Some(format!("`{key}` is not implemented; leave it out")),
            (_, Some(_)) => Some("`$ref` leads out of this schema; put what it names here".into()),
            _ => None,
        };
        found = problem.map(|problem| (at.to_owned(), problem));
        found.is_none()
    });
    if let Some((at, problem)) = found {
        let at = Some(at);
        return Err(NoForm { at, problem });
    }
    crate::ends::judge(schema)
}

/// Where the innermost part stands that alone is as bad as the whole is.
pub(crate) fn place(schema: &Value, is_bad: impl Fn(&Value) -> bool) -> Option<String> {
    let mut at = None;
    let mut tried = 0;
    let defs: Map<String, Value> = ["$defs", "definitions"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), schema.get(name)?.clone())))
        .collect();
    // In order, outside first: the last that is bad is within all others that are.
    walk(schema, "#", &mut |part, here| {
        tried += 1;
        let inside = at
            .as_ref()
            .is_none_or(|at: &String| here.starts_with(at.as_str()));
        let Some(map) = part.as_object().filter(|_| inside && tried <= PARTS_MAX) else {
            return tried <= PARTS_MAX;
        };
        let mut alone = map.clone();
        alone.extend(defs.clone());
        if is_bad(&Value::Object(alone)) {
            at = Some(here.to_owned());
        }
        true
    });
    at
}

/// Shows `look` each schema in this one with its place, outside first; until it says false.
pub(crate) fn walk(schema: &Value, at: &str, look: &mut impl FnMut(&Value, &str) -> bool) -> bool {
    if !look(schema, at) {
        return false;
    }
    let Some(map) = schema.as_object() else {
        return true;
    };
    for (key, value) in map {
        let key = key.as_str();
        let goes_on = match value {
            Value::Array(list) if LISTS.contains(&key) => {
                let mut parts = list.iter().enumerate();
                parts.all(|(i, part)| walk(part, &format!("{at}/{key}/{i}"), look))
            }
            Value::Object(parts) if OBJECTS.contains(&key) => {
                let mut parts = parts.iter();
                parts.all(|(name, part)| walk(part, &format!("{at}/{key}/{}", step(name)), look))
            }
            value if ONE.contains(&key) => walk(value, &format!("{at}/{key}"), look),
            _ => true,
        };
        if !goes_on {
            return false;
        }
    }
    true
}

/// A name as a step of a JSON pointer; a long one is cut.
pub(crate) fn step(name: &str) -> String {
    let name: String = name.chars().take(64).collect();
    name.replace('~', "~0").replace('/', "~1")
}

/// The schema as it is compiled, with how JSON is to be written. Grammars that have a schema in them
/// (`%json`) name it like this.
pub fn written(schema: &Value) -> Value {
    let mut map = match schema {
        Value::Object(map) => map.clone(),
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    // A client's own would be options of the compiler.
    map.insert("x-guidance".into(), json!({"whitespace_pattern": SPACE}));
    Value::Object(map)
}
