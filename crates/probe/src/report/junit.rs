//! JUnit XML: one case for each suite.

use super::ProbeReport;
use gate::output::markup::escaped;
use std::fmt::Write;

/// The report as JUnit XML.
pub fn junit(report: &ProbeReport) -> String {
    let mut cases = String::new();
    let mut failed = 0;
    for (suite, stopped) in &report.suites {
        let name = suite.name();
        let found = report.counts.findings.iter();
        let found: Vec<_> = found
            .filter(|((kind, of), _)| *of == name && kind.convicts())
            .map(|((kind, _), n)| format!("{n} x {kind}"))
            .collect();
        let _ = write!(
            cases,
            "  <testcase classname=\"cofferdam.probe\" name=\"{name}\">"
        );
        if !found.is_empty() {
            failed += 1;
            let says = report.findings.iter().filter(|it| it.suite == name);
            let says: Vec<_> = says.map(|it| it.says.as_str()).collect();
            let (found, says) = (escaped(&found.join(", ")), escaped(&says.join("\n")));
            let _ = write!(cases, "<failure message=\"{found}\">{says}</failure>");
        } else if let Some(stopped) = stopped {
            let _ = write!(
                cases,
                "<skipped message=\"{}\"/>",
                escaped(&stopped.to_string())
            );
        }
        cases.push_str("</testcase>\n");
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"cofferdam probe\" \
         tests=\"{}\" failures=\"{failed}\">\n{cases}</testsuite>\n",
        report.suites.len()
    )
}
