//! SARIF 2.1.0, for code-scanning viewers.
//!
//! Only what does not hold becomes a result: viewers show every result as a problem. What is
//! unknown and fails is a `fail` like a violation, because the gate is shut by it; the message says
//! which of the two it is.

use crate::check::CHECKS;
use crate::finding::{Answer, Finding};
use crate::report::Report;
use serde_json::{Value, json};

/// The report as SARIF. `artifact` is the file that results are shown beside, relative to the
/// repository: the fleet file, if there is one.
pub fn sarif(report: &Report, artifact: Option<&str>) -> Value {
    let rules = CHECKS.iter().map(|check| {
        json!({
            "id": check.id,
            "shortDescription": { "text": check.title },
            "fullDescription": { "text": check.why },
            "help": { "text": check.what_to_do },
            "helpUri": check.link,
            "defaultConfiguration": { "level": match check.level {
                crate::check::Level::Required => "error",
                crate::check::Level::Advisory => "warning",
            } },
        })
    });
    let failing = report
        .findings
        .iter()
        .filter(|it| it.answer != Answer::Holds);
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "cofferdam gate",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules.collect::<Vec<_>>(),
            } },
            "invocations": [{
                "executionSuccessful": true,
                "exitCode": report.verdict().exit_code(),
                "endTimeUtc": crate::date::rfc3339(report.at),
            }],
            "columnKind": "unicodeCodePoints",
            "results": failing.map(|it| result(report, it, artifact)).collect::<Vec<_>>(),
        }],
    })
}

fn result(report: &Report, it: &Finding, artifact: Option<&str>) -> Value {
    let index = CHECKS.iter().position(|check| *check == it.check);
    let level = match (report.fails(it) || it.allowed.is_some(), it.answer) {
        (true, _) => "error",
        (false, Answer::Violated) => "warning",
        (false, _) => "note",
    };
    let name = it.subject.name();
    let advisory = it
        .advisory
        .as_ref()
        .map(|id| format!(" [{id}]"))
        .unwrap_or_default();
    let text = format!(
        "{name}: {} {}{advisory}: {}. To do: {}",
        it.check.id,
        it.answer,
        it.says,
        it.what_to_do()
    );
    let uri = uri(artifact.unwrap_or(name));
    let mut result = json!({
        "ruleId": it.check.id,
        "ruleIndex": index,
        "kind": "fail",
        "level": level,
        "message": { "text": super::tame(&text) },
        "locations": [{
            "physicalLocation": {
                "artifactLocation": { "uri": uri },
                "region": { "startLine": 1 },
            },
            "logicalLocations": [{
                "name": super::tame(name),
                "fullyQualifiedName": super::tame(&format!("{}:{name}", it.subject.kind())),
                "kind": "resource",
            }],
        }],
        "partialFingerprints": {
            "checkAndSubject/v1": format!("{}|{name}{advisory}", it.check.id),
        },
        "properties": { "answer": it.answer.word(), "what": it.check.title },
    });
    if let Some(reason) = &it.allowed {
        result["suppressions"] = json!([{ "kind": "external", "justification": reason }]);
    }
    result
}

/// A name as a valid relative or absolute URI: what is not allowed in one is percent-encoded.
fn uri(name: &str) -> String {
    let mut uri = String::new();
    for byte in name.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/:?=&@!$'()*+,;[]".contains(&byte);
        match plain {
            true => uri.push(char::from(byte)),
            false => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    // "a:b" would be read as a scheme.
    let has_scheme = uri.starts_with("http://") || uri.starts_with("https://");
    match !has_scheme && uri.split('/').next().is_some_and(|part| part.contains(':')) {
        true => format!("./{uri}"),
        false => uri,
    }
}
