//! The five forms of a report, read as their readers do.

use crate::nodes::*;
use gate::Report;
use gate::facts::{Node, Role, Version};
use gate::output::{Style, json, junit, prometheus, sarif, table};
use serde_json::Value;
use std::collections::BTreeSet;

/// Violations, unknowns, advice, something allowed, and words of a server that wants to be more.
fn mixed() -> Report {
    let (mut prefill, mut decode) = good_pair();
    prefill.ranks = Ok(vec![rank("dp 0", 681_280)]);
    prefill.model = fig("a\u{1b}[2J<b attr=\"1\">&'\u{0}\n]]> evil".into());
    prefill.name = "http://10.0.0.1:30000".into();
    prefill.truncates = Err(not_reported());
    decode.checksum = fig(false);
    decode.version = fig(Version::parse("0.5.22").unwrap());
    let allow = [
        "length-compared=limits are equal & watched",
        "same-layout=not needed",
    ];
    let table = gate::advisories::Table::embedded();
    with_table(&table, pair(prefill, decode), &allow, false)
}

#[test]
fn the_table_is_for_a_person_at_3_a_m() {
    let text = table(&mixed(), Style::default());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("gate: VIOLATED "), "{text}");
    let first = lines
        .iter()
        .position(|it| it.starts_with("VIOLATED "))
        .unwrap();
    assert_eq!(
        lines[first], "VIOLATED  pool-holds-context",
        "the worst first\n{text}"
    );
    assert_eq!(lines[first + 1], "  http://10.0.0.1:30000");
    assert_eq!(lines[first + 2], "  pool 681,280 < context 1,048,576: 65 %");
    assert!(
        text.contains("  do    raise the pool to 1,310,720 tokens"),
        "{text}"
    );
    assert!(
        text.contains("  from  pool of dp 0: http://n/server_info measured"),
        "{text}"
    );
    assert!(
        text.contains("reason: limits are equal & watched"),
        "{text}"
    );
    assert!(
        text.contains("--allow same-layout=not needed covers nothing"),
        "{text}"
    );
    for line in lines {
        let is_word = line.trim().split(' ').count() == 1;
        assert!(line.chars().count() <= 80 || is_word, "{line}");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
    }
    let order =
        ["\nVIOLATED", "\nUNKNOWN", "\nallowed", "\nholds"].map(|it| text.find(it).unwrap());
    assert!(order.is_sorted(), "{order:?}\n{text}");
    let coloured = table(
        &mixed(),
        Style {
            colour: true,
            width: 80,
        },
    );
    assert!(coloured.contains("\u{1b}[1;31mVIOLATED"), "{coloured}");
}

#[test]
fn what_follows_from_a_silent_node_is_said_once() {
    let (prefill, _) = good_pair();
    let silent = Node::unknown("d0", not_reported());
    let text = table(&report(pair(prefill, silent)), Style::default());
    assert_eq!(
        text.matches("UNKNOWN   ").count(),
        3,
        "it, p0's way through it, and that p0 was compared with nobody\n{text}"
    );
    assert!(text.contains("UNKNOWN   node-answers\n  d0\n"), "{text}");
    assert!(text.contains("UNKNOWN   advertised-fits\n  p0\n"), "{text}");
    assert!(text.contains("UNKNOWN   pair-complete\n  p0\n"), "{text}");
    assert!(
        text.contains("  so    also unknown of silent nodes: "),
        "{text}"
    );
    for check in [
        "pool-holds-context",
        "same-page-size",
        "prompt-limits-equal",
    ] {
        assert!(text.contains(check), "{check} is named\n{text}");
    }
}

/// Whether `value` is as `schema` says: the part of JSON Schema that ours uses.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root
            .pointer(reference.trim_start_matches('#'))
            .expect(reference);
        return check(root, target, value, at);
    }
    let known = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "description",
        "$schema",
        "$id",
        "title",
        "$defs",
        "pattern",
    ];
    for key in schema.as_object().unwrap().keys() {
        assert!(
            known.contains(&key.as_str()),
            "{at}: the test does not know {key}"
        );
    }
    let of_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    match &schema["type"] {
        Value::String(name) => assert!(of_type(name), "{at}: {value} is no {name}"),
        Value::Array(names) => {
            let any = names.iter().any(|it| of_type(it.as_str().unwrap()));
            assert!(any, "{at}: {value} is none of {names:?}");
        }
        _ => {}
    }
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{at}: {value}");
    }
    if !schema["const"].is_null() {
        assert_eq!(&schema["const"], value, "{at}");
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        list.iter()
            .for_each(|it| check(root, items, it, &format!("{at}[]")));
    }
    if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object())
    {
        assert_eq!(schema["additionalProperties"], false, "{at} is closed");
        let required = schema["required"].as_array().unwrap();
        for name in required.iter().map(|it| it.as_str().unwrap()) {
            assert!(object.contains_key(name), "{at}: {name} is missing");
        }
        for (name, value) in object {
            let property = properties.get(name);
            let property = property.unwrap_or_else(|| panic!("{at}: {name} is not documented"));
            check(root, property, value, &format!("{at}.{name}"));
        }
    }
}

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gate.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn json_is_as_the_schema_says() {
    let schema = schema();
    let mut lone = Node::unknown("x", not_reported());
    lone.role = fig(Role::Whole);
    let others = [
        mixed(),
        report(fleet(vec![reading(gate::judge::Stated::Server, lone)])),
    ];
    for report in others {
        check(&schema, &schema, &json(&report), "$");
    }
    assert_eq!(
        schema["properties"]["schema"]["const"],
        gate::output::JSON_SCHEMA
    );
    let found = json(&mixed());
    assert_eq!(
        (&found["verdict"], &found["exit_code"]),
        (&"violated".into(), &1.into())
    );
    let first = &found["findings"][0];
    assert_eq!(first["check"], "pool-holds-context");
    assert_eq!(first["evidence"][0]["value"], 681_280);
    assert_eq!(
        first["evidence"][0]["source"],
        "http://n/server_info measured"
    );
}

#[test]
fn sarif_follows_the_rules_that_viewers_rely_on() {
    let report = mixed();
    let log = sarif(&report, Some("ops/fleet.toml"));
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let ids: BTreeSet<_> = rules.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), gate::check::CHECKS.len(), "rule ids are unique");
    let results = run["results"].as_array().unwrap();
    let not_holding = report
        .findings
        .iter()
        .filter(|it| it.answer.word() != "holds")
        .count();
    assert_eq!(results.len(), not_holding);
    let mut prints = BTreeSet::new();
    for result in results {
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(
            rules[index]["id"], result["ruleId"],
            "the index is that of the rule"
        );
        let level = result["level"].as_str().unwrap();
        assert!(["error", "warning", "note"].contains(&level));
        assert!(!result["message"]["text"].as_str().unwrap().is_empty());
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "ops/fleet.toml");
        let print = result["partialFingerprints"]["checkAndSubject/v1"]
            .as_str()
            .unwrap();
        assert!(prints.insert(print.to_owned()), "{print} is there twice");
    }
    let suppressed: Vec<_> = results
        .iter()
        .filter(|it| !it["suppressions"].is_null())
        .collect();
    assert_eq!(suppressed.len(), 2, "length-compared of both");
    assert_eq!(suppressed[0]["suppressions"][0]["kind"], "external");
    let failing = results
        .iter()
        .filter(|it| it["level"] == "error" && it["suppressions"].is_null());
    assert_eq!(
        failing.count(),
        report.findings.iter().filter(|it| report.fails(it)).count()
    );
}

#[test]
fn junit_is_well_formed_and_counts_right() {
    let report = mixed();
    let xml = junit(&report);
    let mut open: Vec<String> = Vec::new();
    let mut elements: Vec<String> = Vec::new();
    let body = xml
        .strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")
        .unwrap();
    for part in body.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("every < has its >");
        assert!(!text.contains('>'), "{text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap().to_owned();
        elements.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty());
    let forbidden = |c: char| c.is_control() && c != '\n';
    assert!(!xml.contains(forbidden), "{xml}");
    let count = |name: &str| elements.iter().filter(|it| *it == name).count();
    assert_eq!(count("testcase"), report.findings.len());
    let failures = report.findings.iter().filter(|it| report.fails(it)).count();
    assert_eq!((count("failure"), count("skipped")), (failures, 2));
    assert!(xml.contains(&format!(
        "failures=\"{failures}\" errors=\"0\" skipped=\"2\""
    )));
    assert!(
        xml.contains("&lt;b attr=&quot;1&quot;&gt;&amp;&apos;"),
        "{xml}"
    );
}

#[test]
fn gauges_are_in_the_text_format() {
    let text = prometheus(&mixed());
    let mut typed = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.split(' ');
            let (kind, name) = (words.next().unwrap(), words.next().unwrap());
            if kind == "TYPE" {
                assert!(typed.insert(name), "{name} has two types");
            }
            continue;
        }
        let (head, value) = line.rsplit_once(' ').unwrap();
        value.parse::<i64>().unwrap();
        let name = head.split('{').next().unwrap();
        assert!(typed.contains(name), "{name} has no type before it");
    }
    assert!(text.contains("cofferdam_gate_verdict 0\n"));
    let pool = "cofferdam_gate_pool_tokens{node=\"http://10.0.0.1:30000\",rank=\"dp 0\"} 681280\n";
    assert!(text.contains(pool), "{text}");
}
