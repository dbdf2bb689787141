//! Whether a value that a schema asks for can ever end.
//!
//! A part that refers to itself and must be there (`{"$ref": "#/$defs/a"}` as `a`, a list's node that
//! must have a next one) has no finite value. A grammar made from it compiles, and an answer that has
//! once begun such a part can neither end it nor go on: so it is refused where the request comes in.

use crate::NoForm;
use crate::schema::step;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Different places that a schema's `$ref`s may name.
const REFS_MAX: usize = 500;

/// Refuses a part that is asked for, or may be chosen, and has no value that ends.
pub(crate) fn judge(schema: &Value) -> Result<(), NoForm> {
    let mut parts = BTreeMap::new();
    reach(schema, schema, "#".to_owned(), &mut parts)?;
    let ended = ended(schema, &parts);
    // The innermost is where it is wrong: whatever must have it is as endless.
    let endless = { parts.iter() }.filter(|(_, part)| !ends(part, &ended));
    match endless.max_by_key(|(at, _)| at.matches('/').count()) {
        None => Ok(()),
        Some((at, _)) => Err(NoForm {
            at: Some(at.clone()),
            problem: "no value of it ever ends, for it must have itself within itself; give it an end \
                      (a property that may be left out, a list that may be empty, `anyOf` with null)"
                .to_owned(),
        }),
    }
}

/// All parts that a value may have, by their places, behind `$ref`s too.
fn reach<'a>(
    root: &'a Value,
    part: &'a Value,
    at: String,
    parts: &mut BTreeMap<String, &'a Value>,
) -> Result<(), NoForm> {
    if !part.is_object() || parts.contains_key(&at) {
        return Ok(());
    }
    for (name, child) in children(part) {
        reach(root, child, format!("{at}/{name}"), parts)?;
    }
    parts.insert(at, part);
    if let Some((to, target)) = referred(root, part) {
        let refs: BTreeSet<_> = parts.values().filter_map(|part| reference(part)).collect();
        if refs.len() > REFS_MAX {
            let problem = format!("its `$ref`s name more than {REFS_MAX} places");
            return Err(NoForm::whole(problem));
        }
        reach(root, target, to.to_owned(), parts)?;
    }
    Ok(())
}

/// The places named by `$ref`s of which some value ends: the least set that follows from itself.
fn ended<'a>(root: &'a Value, parts: &BTreeMap<String, &'a Value>) -> BTreeSet<&'a str> {
    let mut open: BTreeMap<&str, &Value> = parts
        .values()
        .filter_map(|part| referred(root, part))
        .collect();
    // What names nothing is the compiler's to refuse.
    let named = parts.values().filter_map(|part| reference(part));
    let mut ended: BTreeSet<&str> = named.filter(|to| !open.contains_key(to)).collect();
    loop {
        let found: Vec<_> = { open.iter() }
            .filter(|(_, target)| ends(target, &ended))
            .map(|(to, _)| *to)
            .collect();
        if found.is_empty() {
            return ended;
        }
        open.retain(|to, _| !found.contains(to));
        ended.extend(found);
    }
}

/// Whether a part has a value that ends, if those in `ended` have one.
fn ends(part: &Value, ended: &BTreeSet<&str>) -> bool {
    let all = |parts: &[Value]| parts.iter().all(|part| ends(part, ended));
    let list = |name: &str| part.get(name).and_then(Value::as_array).map(Vec::as_slice);
    if list("enum").is_some() || part.get("const").is_some() {
        return true;
    }
    let refers = reference(part).is_none_or(|to| ended.contains(to));
    let any = |name| list(name).is_none_or(|any| any.iter().any(|part| ends(part, ended)));
    let within = match part.get("type").and_then(only) {
        Some("object") => list("required").is_none_or(|names| {
            let property = |name: &Value| part.get("properties")?.get(name.as_str()?);
            { names.iter().filter_map(property) }.all(|part| ends(part, ended))
        }),
        Some("array") => {
            let least = part.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
            let first = list("prefixItems").unwrap_or(&[]);
            let others = part.get("items").filter(|_| least > first.len());
            all(&first[..least.min(first.len())]) && others.is_none_or(|part| ends(part, ended))
        }
        _ => true,
    };
    refers && within && any("anyOf") && any("oneOf") && list("allOf").is_none_or(all)
}

/// The type, where there is only one.
fn only(kinds: &Value) -> Option<&str> {
    match kinds.as_array().map(Vec::as_slice) {
        Some([one]) => one.as_str(),
        Some(_) => None,
        None => kinds.as_str(),
    }
}

fn reference(part: &Value) -> Option<&str> {
    part.get("$ref").and_then(Value::as_str)
}

/// What a part's `$ref` names, if that is there.
fn referred<'a>(root: &'a Value, part: &'a Value) -> Option<(&'a str, &'a Value)> {
    let to = reference(part)?;
    Some((to, root.pointer(to.strip_prefix('#')?)?))
}

/// Schemas within a schema that values of it may have, with their names from there.
fn children(part: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for name in ["items", "additionalItems", "additionalProperties"] {
        found.extend(part.get(name).map(|child| (name.to_owned(), child)));
    }
    for name in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        let list = part.get(name).and_then(Value::as_array).into_iter();
        let named = list.flatten().enumerate();
        found.extend(named.map(|(n, child)| (format!("{name}/{n}"), child)));
    }
    for name in ["properties", "patternProperties"] {
        let map = part.get(name).and_then(Value::as_object).into_iter();
        let named = map.flatten();
        found.extend(named.map(|(key, child)| (format!("{name}/{}", step(key)), child)));
    }
    found
}
