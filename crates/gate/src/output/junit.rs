//! JUnit XML, for CI viewers: a suite, a test case for each check and subject.

use crate::date::rfc3339;
use crate::finding::{Answer, Finding};
use crate::output::markup::escaped;
use crate::report::Report;
use std::fmt::Write;

/// The report as JUnit XML.
pub fn junit(report: &Report) -> String {
    let findings = &report.findings;
    let failures = findings.iter().filter(|it| report.fails(it)).count();
    let skipped = findings.iter().filter(|it| it.allowed.is_some()).count();
    let counts = format!(
        "tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\" time=\"0\"",
        findings.len()
    );
    let at = rfc3339(report.at);
    let at = at.trim_end_matches('Z');
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(text, "<testsuites name=\"cofferdam gate\" {counts}>");
    let _ = writeln!(
        text,
        "  <testsuite name=\"cofferdam gate\" timestamp=\"{at}\" {counts}>"
    );
    for finding in findings {
        case(&mut text, report, finding);
    }
    text + "  </testsuite>\n</testsuites>\n"
}

fn case(text: &mut String, report: &Report, it: &Finding) {
    let advisory = it
        .advisory
        .as_ref()
        .map(|id| format!(" [{id}]"))
        .unwrap_or_default();
    let name = escaped(&format!("{}{advisory}", it.subject.name()));
    let class = escaped(&format!("gate.{}", it.check.id));
    let _ = write!(
        text,
        "    <testcase classname=\"{class}\" name=\"{name}\" time=\"0\""
    );
    let says = escaped(&it.says);
    let details = escaped(&format!(
        "{}\nto do: {}\nsee: {}",
        it.says.replace('\n', " "),
        it.what_to_do(),
        it.reference()
    ));
    let _ = match (&it.allowed, report.fails(it), it.answer) {
        (_, _, Answer::Holds) => writeln!(text, "/>"),
        (Some(reason), ..) => {
            let why = escaped(&format!("{} but allowed: {reason}", it.answer));
            writeln!(
                text,
                ">\n      <skipped message=\"{why}\"/>\n    </testcase>"
            )
        }
        (None, true, answer) => writeln!(
            text,
            ">\n      <failure type=\"{answer}\" message=\"{says}\">{details}</failure>\n    \
             </testcase>"
        ),
        (None, false, answer) => writeln!(
            text,
            ">\n      <system-out>advisory, {answer}: {details}</system-out>\n    </testcase>"
        ),
    };
}
