//! One page for a browser, without scripts and without anything from elsewhere.

use super::table::answers;
use super::{ProbeReport, ProbeVerdict};
use gate::output::markup::escaped;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;\
    padding:0 1em;color:#1b1f24;background:#fff}h1{font-size:1.5em}h2{font-size:1.15em;\
    margin-top:2em}.clean{color:#116329}.found{color:#a40e26}.could_not_tell{color:#7d4e00}\
    table{border-collapse:collapse}td,th{text-align:left;padding:.2em 1.2em .2em 0;\
    border-bottom:1px solid #d0d7de}pre{background:#f6f8fa;padding:.8em;overflow-x:auto;\
    max-height:16em;white-space:pre-wrap;overflow-wrap:anywhere}mark{background:#fff1a8}";

/// The report as HTML.
pub fn html(report: &ProbeReport) -> String {
    let mut out = String::new();
    let verdict = report.verdict();
    let title = match verdict {
        ProbeVerdict::Clean => "Clean",
        ProbeVerdict::Found => "Found",
        ProbeVerdict::CouldNotTell => "Could not tell",
    };
    let counts = &report.counts;
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>cofferdam probe: \
         {title}</title><style>{STYLE}</style><h1 class=\"{}\">{title}: {} requests to \
         {}</h1>",
        verdict.name(),
        counts.requests,
        escaped(&report.url)
    );
    for why in report.why_not_told() {
        let _ = write!(out, "<p>{}</p>", escaped(&why));
    }
    let _ = write!(out, "<p>Answers: {}</p>", escaped(&answers(report)));
    suites(&mut out, report);
    findings(&mut out, report);
    let _ = writeln!(
        out,
        "<h2>What this is worth</h2><p>{}.</p><p>{}.</p><p>{}.</p>",
        escaped(&report.power()),
        escaped(&report.suspicions()),
        escaped(&report.threshold())
    );
    for (suite, says) in &report.notes {
        let _ = writeln!(out, "<p>{suite}: {}</p>", escaped(says));
    }
    let _ = writeln!(
        out,
        "<p>To repeat it: <code>--seed {}</code></p></html>",
        report.seed
    );
    out
}

fn suites(out: &mut String, report: &ProbeReport) {
    out.push_str("<h2>Suites</h2><table>");
    for (suite, stopped) in &report.suites {
        let stopped = stopped.as_ref().map(ToString::to_string);
        let how = stopped.unwrap_or_else(|| "ended".to_owned());
        let found = report.counts.findings.iter();
        let found: Vec<_> = found
            .filter(|((_, of), _)| *of == suite.name())
            .map(|((kind, _), n)| format!("{n} x {kind}"))
            .collect();
        let _ = write!(
            out,
            "<tr><th>{}<td>{}<td>{}",
            suite.name(),
            escaped(&how),
            found.join(", ")
        );
    }
    out.push_str("</table>");
}

fn findings(out: &mut String, report: &ProbeReport) {
    for finding in &report.findings {
        let _ = write!(
            out,
            "<h2>{} ({})</h2><p>{}</p>",
            finding.kind,
            finding.suite,
            escaped(&finding.says)
        );
        if let Some(quote) = &finding.quote {
            let _ = write!(out, "<p><mark>{}</mark></p>", escaped(quote));
        }
        for sent in &finding.shows {
            let _ = write!(out, "<pre>{}</pre>", escaped(&sent.curl()));
        }
    }
}
