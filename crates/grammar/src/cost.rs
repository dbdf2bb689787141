//! What costs too much to compile, refused by what it says. The compiler's own limits count states and
//! steps, and a step can cost without bound: regular expressions that must all hold of one text are put
//! together as the product of what each may be in, so that sixteen in 370 bytes took 16 seconds.

use crate::{NoForm, schema};
use serde_json::Value;

/// Bytes of a regular expression, or of all those in a schema: time grows with their square.
const REGEX_BYTES_MAX: usize = 4 << 10;
/// Regular expressions that may have to hold of one text.
const MEET_MAX: usize = 8;
/// Properties of all objects of a schema together: time grows with their square.
const PROPERTIES_MAX: usize = 1_000;
/// All `multipleOf` of a schema together: each is as many states. Two of one number are their product.
const STEPS_MAX: f64 = 10_000.0;
/// Bytes of a grammar.
const GRAMMAR_BYTES_MAX: usize = 8 << 10;

/// Keywords whose schemas hold of the same value as what stands beside them.
const BESIDE: [&str; 4] = ["anyOf", "oneOf", "allOf", "$ref"];
/// Keywords that are a regular expression or a step, lead to one, or to other values that may have one.
const LEADS: [&str; 8] = [
    "pattern",
    "multipleOf",
    "patternProperties",
    "properties",
    "additionalProperties",
    "items",
    "prefixItems",
    "additionalItems",
];

/// A regular expression.
pub(crate) fn of_regex(text: &str) -> Result<(), NoForm> {
    at_most(text.len(), REGEX_BYTES_MAX, "bytes of a regular expression")
}

/// A grammar. What `&` joins meets, and so may patterns of the schemas in it, under whatever name an
/// escape hides.
pub(crate) fn of_grammar(text: &str) -> Result<(), NoForm> {
    at_most(text.len(), GRAMMAR_BYTES_MAX, "bytes of a grammar")?;
    if text.contains("%json") && text.contains("\\u") {
        let problem = "a grammar with `%json` has no `\\u` in it; write the character itself";
        return Err(NoForm::whole(problem));
    }
    let meet = text.matches('&').count() + text.matches("attern").count();
    at_most(meet, MEET_MAX, "`&` and patterns of a grammar")
}

/// A schema.
pub(crate) fn of_schema(whole: &Value) -> Result<(), NoForm> {
    let (mut properties, mut expressions, mut bytes) = (0, 0, 0);
    let (mut steps, mut states, mut meets) = (0, 0.0_f64, false);
    schema::walk(whole, "#", &mut |part, _| {
        let Some(map) = part.as_object() else {
            return true;
        };
        let of = |key: &str| map.get(key).and_then(Value::as_object);
        properties += of("properties").map_or(0, |named| named.len());
        let named = of("patternProperties").into_iter().flatten();
        let named = named.map(|(name, _)| name.as_str());
        let pattern = map.get("pattern").and_then(Value::as_str);
        for expression in named.chain(pattern) {
            expressions += 1;
            bytes += expression.len();
        }
        if let Some(step) = map.get("multipleOf").and_then(Value::as_f64) {
            steps += 1;
            states += step.abs();
        }
        meets |= map
            .get("allOf")
            .and_then(Value::as_array)
            .is_some_and(|all| all.len() > 1);
        meets |= of("patternProperties").is_some_and(|named| named.len() > 1);
        let beside = BESIDE.iter().filter(|key| map.contains_key(**key)).count();
        meets |= beside > 1 || beside == 1 && LEADS.iter().any(|key| map.contains_key(*key));
        true
    });
    at_most(properties, PROPERTIES_MAX, "properties of all objects")?;
    at_most(bytes, REGEX_BYTES_MAX, "bytes of all patterns")?;
    if states > STEPS_MAX {
        let problem =
            format!("`multipleOf` of {states} together, at most {STEPS_MAX} are compiled");
        return Err(NoForm::whole(problem));
    }
    if meets {
        at_most(
            expressions,
            MEET_MAX,
            "patterns where several may hold of one text",
        )?;
        at_most(
            steps,
            1,
            "`multipleOf` where several may hold of one number",
        )?;
    }
    Ok(())
}

fn at_most(got: usize, most: usize, what: &str) -> Result<(), NoForm> {
    match got <= most {
        true => Ok(()),
        false => Err(NoForm::whole(format!(
            "{got} {what}, at most {most} are compiled"
        ))),
    }
}
