//! Forms, walked along by tokens that are drawn at random from what they allow.
#![forbid(unsafe_code)]

use grammar::{Grammars, Walk};
use serde_json::{Value, json};
use std::sync::LazyLock;
use testkit::weights;
use tokenizer::Tokenizer;
use wire::Form;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let metadata = gguf::Metadata::open(&weights::path()).unwrap();
    Tokenizer::from_gguf(&metadata).unwrap()
});
static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(&TOKENIZER).unwrap());

fn of_schema(schema: &Value) -> Form {
    Form::Json(schema.to_string())
}

/// An answer, each token drawn among all that may come; none if it has not ended by `most`.
fn any(form: &Form, seed: u64, most: usize) -> Option<Vec<u32>> {
    let mut walk = GRAMMARS
        .begin(form)
        .unwrap_or_else(|error| panic!("{form:?}: {error}"));
    let mut dice = seed;
    let mut said = Vec::new();
    while said.len() < most {
        let mask = walk.mask().unwrap();
        let mut allowed = Vec::with_capacity(mask.count());
        for (at, word) in mask
            .words()
            .iter()
            .enumerate()
            .filter(|(_, word)| **word != 0)
        {
            let bits = (0..32).filter(|bit| word >> bit & 1 == 1);
            allowed.extend(bits.map(|bit| at as u32 * 32 + bit));
        }
        assert_eq!(allowed.len(), mask.count());
        assert!(mask.allows(allowed[0]));
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let token = allowed[(dice >> 33) as usize % allowed.len()];
        if TOKENIZER.is_end(token) {
            return Some(said);
        }
        walk.take(&[token]).unwrap();
        said.push(token);
    }
    None
}

fn text(tokens: &[u32]) -> String {
    let bytes = tokens
        .iter()
        .flat_map(|id| TOKENIZER.token_bytes(*id).unwrap());
    String::from_utf8(bytes.copied().collect()).unwrap()
}

/// Where this answer may end, after each of its tokens.
fn ends(form: &Form, said: &str) -> Vec<bool> {
    let mut walk = GRAMMARS.begin(form).unwrap();
    let mut ends = vec![walk.may_end()];
    for token in TOKENIZER.encode(said, false) {
        walk.take(&[token]).unwrap();
        ends.push(walk.may_end());
    }
    ends
}

#[test]
fn whatever_is_drawn_is_valid_by_its_schema() {
    let mut unended = 0;
    for (n, schema) in testkit::schemas(1).take(200).enumerate() {
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let Some(said) = any(&of_schema(&schema), n as u64, 2_000) else {
            unended += 1;
            continue;
        };
        let said = text(&said);
        let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| {
            panic!("{n}: {error}: {said:?} of {schema}");
        });
        let problem = validator.validate(&value).err();
        assert!(problem.is_none(), "{n}: {problem:?}: {said:?} of {schema}");
    }
    assert_eq!(unended, 0, "each was to end");
}

#[test]
fn an_answer_ends_exactly_where_its_form_is_complete() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
                        "required": ["a"], "additionalProperties": false});
    let all = ends(&of_schema(&schema), "{\"a\": 12}");
    assert_eq!(all.iter().filter(|end| **end).count(), 1, "{all:?}");
    assert_eq!(all.last(), Some(&true));
    let form = Form::Regex("[ab]{2,3}".into());
    assert_eq!(ends(&form, "ab").last(), Some(&true));
    assert_eq!(ends(&form, "a").last(), Some(&false));
    // All ends of the model's are the same end.
    let mut walk = GRAMMARS.begin(&form).unwrap();
    walk.take(&TOKENIZER.encode("aba", false)).unwrap();
    let mask = walk.mask().unwrap();
    let ends: Vec<u32> = TOKENIZER.ends().collect();
    assert!(ends.len() > 1, "two at least, or this proves little");
    assert_eq!(mask.count(), ends.len());
    assert!(ends.iter().all(|end| mask.allows(*end)));
}

#[test]
fn what_was_said_is_where_a_walk_goes_on() {
    let schema = json!({"type": "object", "properties": {"ab": {"enum": ["x", "y"]}},
                        "required": ["ab"], "additionalProperties": false});
    let form = of_schema(&schema);
    let said = TOKENIZER.encode("{\"ab\": \"x\"}", false);
    let mut along = GRAMMARS.begin(&form).unwrap();
    for at in 0..said.len() {
        let mut again = GRAMMARS.begin(&form).unwrap();
        again.take(&said[..at]).unwrap();
        let mut cloned: Walk = along.clone();
        assert_eq!(again.mask().unwrap().words(), along.mask().unwrap().words());
        assert_eq!(
            cloned.mask().unwrap().words(),
            along.mask().unwrap().words()
        );
        along.take(&said[at..=at]).unwrap();
    }
    let mut other = GRAMMARS.begin(&form).unwrap();
    let error = other.take(&TOKENIZER.encode("{\"ac\"", false)).unwrap_err();
    assert!(error.to_string().contains("is not in it"), "{error}");
    let mut done = along.clone();
    assert!(
        done.take(&TOKENIZER.encode("}", false)).is_err(),
        "nothing behind the end"
    );
}

#[test]
fn white_space_has_an_end() {
    let form = of_schema(&json!({"type": "object"}));
    let mut walk = GRAMMARS.begin(&form).unwrap();
    walk.take(&TOKENIZER.encode("{", false)).unwrap();
    let space = TOKENIZER.encode(" ", false);
    let spaces = (0..200).take_while(|_| walk.take(&space).is_ok()).count();
    assert_eq!(spaces, 40);
}

#[test]
fn a_refusal_names_the_place() {
    let refused = |form: Form| {
        let compiled = grammar::compiles(&GRAMMARS, &form);
        compiled.expect_err(form.text()).to_string()
    };
    let of = |schema: Value| refused(of_schema(&schema));
    let inside = |part: Value| json!({"type": "object", "properties": {"a": {"type": "array", "items": part}}});
    for (part, expected) in [
        (json!({"not": {"type": "null"}}), "`not` is not implemented"),
        (json!({"if": true, "then": false}), "is not implemented"),
        (
            json!({"type": "array", "uniqueItems": true}),
            "`uniqueItems`",
        ),
        (json!({"type": "strin"}), "Invalid type"),
        (json!({"type": "string", "pattern": "("}), "regex"),
        (json!({"type": "string", "format": "no-such"}), "format"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (
            json!({"$ref": "https://example.com/a"}),
            "leads out of this schema",
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "oneOf",
        ),
    ] {
        let said = of(inside(part.clone()));
        assert!(said.contains(expected), "{part}: {said}");
        assert!(said.contains("at `#/properties/a/items"), "{part}: {said}");
    }
    assert!(of(json!({"properties": {"a": 3}})).contains("at `#/properties/a`"));
    let said = of(json!({"type": "integer", "minimum": 3, "maximum": 2}));
    assert!(
        said.contains("minimum (3) is greater than maximum"),
        "{said}"
    );
    assert!(refused(Form::Json("{".into())).contains("no JSON"));
    assert!(refused(Form::Json("3".into())).contains("at `#`"));
    assert!(!refused(Form::Regex("(".into())).is_empty());
    assert!(refused(Form::Lark("start: nothing".into())).contains("nothing"));
}

/// What a hostile client or peer may send is refused, and nothing panics or overflows a stack.
#[test]
fn garbage_is_an_error() {
    let deep = |n: usize| format!("{}1{}", r#"{"allOf":["#.repeat(n), "]}".repeat(n));
    for form in [
        Form::Json(deep(30_000 / 12)),
        Form::Regex("(".repeat(60_000)),
        Form::Lark(format!("start: {}", "(".repeat(30_000))),
        Form::Lark("start: start".to_owned()),
        Form::Lark("\u{0}\u{ffff}%%%".to_owned()),
        Form::Json(json!({"type": "string", "minLength": u64::MAX}).to_string()),
        Form::Json(json!({"type": format!("{}é", "x".repeat(98))}).to_string()),
        Form::Json(json!({"enum": []}).to_string()),
        Form::Json(json!(false).to_string()),
    ] {
        let begun = std::time::Instant::now();
        let refused = grammar::compiles(&GRAMMARS, &form);
        let text: String = form.text().chars().take(60).collect();
        assert!(refused.is_err(), "{text}");
        println!("{:?} {text} {}", begun.elapsed(), refused.unwrap_err());
    }
    // What is compiled costs what it may at most.
    for regex in [
        "(a{1,1000}){1,1000}",
        "((((a{0,99}){0,99}){0,99}){0,99}){0,99}",
        "(.*a){40}",
    ] {
        let begun = std::time::Instant::now();
        let compiled = grammar::compiles(&GRAMMARS, &Form::Regex(regex.into()));
        println!("{:?} {regex} {compiled:?}", begun.elapsed());
    }
    for n in [1, 10, 31] {
        let schema = format!(
            "{}{{\"type\":\"null\"}}{}",
            r#"{"allOf":["#.repeat(n),
            "]}".repeat(n)
        );
        grammar::compiles(&GRAMMARS, &Form::Json(schema)).unwrap();
    }
}

/// The order in which properties stand is the schema's.
#[test]
fn properties_keep_their_order() {
    let schema = r#"{"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}},
                     "required":["a","z"],"additionalProperties":false}"#;
    let said = any(&Form::Json(schema.into()), 3, 400).unwrap();
    let said: String = text(&said).split_whitespace().collect();
    assert_eq!(said, r#"{"z":null,"a":null}"#);
}

#[test]
fn what_never_ends_is_refused_by_its_place() {
    let place = |schema: Value| match GRAMMARS.begin(&of_schema(&schema)) {
        Ok(_) => None,
        Err(error) => {
            assert!(error.to_string().contains("ever ends"), "{error}");
            error.at
        }
    };
    let node = |next: Value, required: Value| {
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": required,
               "properties": {"next": next}, "additionalProperties": false}}})
    };
    let again = json!({"$ref": "#/$defs/n"});
    assert_eq!(place(node(again.clone(), json!([]))), None);
    let may = json!({"anyOf": [again, {"type": "null"}]});
    assert_eq!(place(node(may, json!(["next"]))), None);
    let list = |least: u32| json!({"type": "array", "items": again, "minItems": least});
    assert_eq!(place(node(list(0), json!(["next"]))), None);
    let inner = Some("#/$defs/n/properties/next".to_owned());
    let items = inner.as_ref().map(|at| format!("{at}/items"));
    assert_eq!(place(node(list(1), json!(["next"]))), items);
    assert_eq!(place(node(again.clone(), json!(["next"]))), inner);
    // One that need not be there: an answer that begins it is as lost.
    let itself = json!({"n": {"$ref": "#/$defs/n"}});
    let may = json!({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": itself});
    assert_eq!(place(may), Some("#/properties/a".to_owned()));
    let circle = json!({"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}});
    let one_of = json!({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": circle});
    assert!(place(one_of).is_some());
    // Nobody asks for it.
    assert_eq!(place(json!({"type": "null", "$defs": itself})), None);
}

fn listed(n: usize, one: impl Fn(usize) -> String) -> String {
    (0..n).map(one).collect::<Vec<_>>().join(",")
}

/// A small text that took seconds, or minutes, to compile is refused by what it says: the compiler counts
/// states, and one of them can cost without bound.
#[test]
fn what_costs_too_much_is_refused_before_it_is_compiled() {
    let pattern = |i: usize| format!(r#"{{"pattern":".*{i}a.*"}}"#);
    let all_of = |n: usize| format!(r#"{{"type":"string","allOf":[{}]}}"#, listed(n, pattern));
    let nested = (0..9).fold("{}".to_owned(), |inner, i| {
        format!(r#"{{"type":"string","pattern":".*{i}a.*","anyOf":[{inner}]}}"#)
    });
    let chain = |i: usize| {
        let next = (i + 1) % 16;
        format!(r##""d{i}":{{"pattern":".*{i}a.*","$ref":"#/$defs/d{next}"}}"##)
    };
    let chained = format!(
        r##"{{"$defs":{{{}}},"$ref":"#/$defs/d0"}}"##,
        listed(16, chain)
    );
    let (any, one) = (listed(5, pattern), listed(4, pattern));
    let both = format!(r#"{{"type":"string","anyOf":[{any}],"oneOf":[{one}]}}"#);
    let merged = |i: usize| format!(r#"{{"properties":{{"a":{}}}}}"#, pattern(i));
    let named = |i: usize| format!(r#"".*{i}a.*":{{}}"#);
    let long = "(.*a.*b)?".repeat(6_000);
    for (form, why) in [
        (Form::Json(all_of(9)), "9 patterns where"),
        (Form::Json(all_of(900)), "patterns"),
        (Form::Json(nested), "9 patterns where"),
        (Form::Json(chained), "16 patterns where"),
        (Form::Json(both), "9 patterns where"),
        (
            Form::Json(format!(r#"{{"allOf":[{}]}}"#, listed(9, merged))),
            "9 patterns where",
        ),
        (
            Form::Json(format!(
                r#"{{"patternProperties":{{{}}}}}"#,
                listed(9, named)
            )),
            "9 patterns",
        ),
        (
            Form::Json(format!(r#"{{"pattern":"{long}"}}"#)),
            "54000 bytes of all patterns",
        ),
        (
            Form::Json(format!(
                r#"{{"properties":{{{}}}}}"#,
                listed(1_001, |i| format!(r#""{i}":{{}}"#))
            )),
            "1001 properties",
        ),
        (
            Form::Json(json!({"type": "integer", "multipleOf": 99_991}).to_string()),
            "`multipleOf` of 99991 together",
        ),
        (
            Form::Json(json!({"allOf": [{"multipleOf": 3}, {"multipleOf": 5}]}).to_string()),
            "2 `multipleOf`",
        ),
        (
            Form::Regex(long.clone()),
            "54000 bytes of a regular expression",
        ),
        (Form::Lark(format!("start: /{long}/")), "bytes of a grammar"),
        (
            Form::Lark(format!("start: T\nT: {}/a/", "/.*a.*/ & ".repeat(9))),
            "9 `&` and patterns",
        ),
        (
            Form::Lark(format!("start: %json {}", all_of(9))),
            "9 `&` and patterns",
        ),
        (
            Form::Lark(format!(
                "start: %json {}",
                all_of(9).replace("patt", "p\\u0061tt")
            )),
            "write the character",
        ),
    ] {
        let refused = GRAMMARS.begin(&form).map(drop).unwrap_err().to_string();
        assert!(refused.contains(why), "{why}: {refused}");
    }
    // What people write is none of this: many patterns of different values, and one base of many.
    let field = |i: usize| format!(r#""f{i}":{{"type":"string","pattern":"^[a-z]{{1,9}}$"}}"#);
    let many = format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        listed(60, field)
    );
    grammar::compiles(&GRAMMARS, &Form::Json(many)).unwrap();
    let union = (0..12).map(|i| format!(r#"{{"type":"string","pattern":"^{i}[a-z]$"}}"#));
    let union = union.collect::<Vec<_>>().join(",");
    grammar::compiles(&GRAMMARS, &Form::Json(format!(r#"{{"anyOf":[{union}]}}"#))).unwrap();
}
