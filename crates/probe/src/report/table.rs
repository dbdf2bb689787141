//! For people.

use super::{ProbeReport, ProbeVerdict};
use crate::finding::Kind;
use std::fmt::Write;

/// The report as text; reproductions are commands for a shell.
pub fn table(report: &ProbeReport) -> String {
    let mut out = String::new();
    let counts = &report.counts;
    let all: u64 = counts
        .findings
        .iter()
        .filter(|((kind, _), _)| kind.convicts())
        .map(|(_, n)| n)
        .sum();
    let _ = match report.verdict() {
        ProbeVerdict::Clean => {
            writeln!(out, "CLEAN: {} requests to {}", counts.requests, report.url)
        }
        ProbeVerdict::Found => writeln!(
            out,
            "FOUND: {all} findings in {} requests to {}",
            counts.requests, report.url
        ),
        ProbeVerdict::CouldNotTell => writeln!(
            out,
            "COULD NOT TELL: {} requests to {}",
            counts.requests, report.url
        ),
    };
    for why in report.why_not_told() {
        let _ = writeln!(out, "  {why}");
    }
    let _ = writeln!(out, "  answers: {}", answers(report));
    for (suite, stopped) in &report.suites {
        let how = stopped.as_ref().map_or("ended", |_| "did not end");
        let _ = writeln!(out, "  {:<10} {how}", suite.name());
    }
    findings(&mut out, report);
    let _ = writeln!(out, "\nWhat this is worth");
    let _ = writeln!(out, "  {}", report.power());
    let _ = writeln!(out, "  {}", report.suspicions());
    let _ = writeln!(out, "  {}", report.threshold());
    for (suite, says) in &report.notes {
        let _ = writeln!(out, "  {suite}: {says}");
    }
    let _ = writeln!(out, "  to repeat it: --seed {}", report.seed);
    out
}

/// How many of each kind came back.
pub(super) fn answers(report: &ProbeReport) -> String {
    let counts = &report.counts;
    let by_status = counts.by_status.iter();
    let mut parts: Vec<_> = by_status
        .map(|(status, n)| format!("{n} x {status}"))
        .collect();
    let others = [
        (counts.refusals, "of them refusals that were wanted"),
        (counts.left, "left by their clients"),
        (counts.hung, "without an answer in time"),
        (counts.broken, "broken off"),
    ];
    let others = others.into_iter().filter(|(n, _)| *n > 0);
    parts.extend(others.map(|(n, what)| format!("{n} {what}")));
    parts.join(", ")
}

fn findings(out: &mut String, report: &ProbeReport) {
    if report.counts.findings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nFindings");
    for ((kind, suite), n) in &report.counts.findings {
        let _ = writeln!(out, "  {n:>6}  {kind} ({suite})");
    }
    for finding in &report.findings {
        let _ = writeln!(
            out,
            "\n{} ({}): {}",
            finding.kind, finding.suite, finding.says
        );
        if let Some(quote) = &finding.quote {
            let _ = writeln!(out, "    \"{quote}\"");
        }
        if finding.kind == Kind::Suspect {
            continue;
        }
        let shows = match &finding.shrunk {
            Some(shrunk) if shrunk.shows.is_empty() => {
                let tried = shrunk.tried;
                let _ = writeln!(out, "    (did not show again in {tried} requests)");
                &finding.shows
            }
            Some(shrunk) => {
                let tried = shrunk.tried;
                let _ = writeln!(out, "    (shrunk, in {tried} requests)");
                &shrunk.shows
            }
            None => &finding.shows,
        };
        for sent in shows {
            let _ = writeln!(out, "    {}", short(&sent.curl()));
        }
    }
}

/// Long prompts are whole in JSON only.
fn short(curl: &str) -> String {
    const MAX: usize = 400;
    match curl.chars().count() {
        n if n <= MAX => curl.to_owned(),
        n => {
            let head: String = curl.chars().take(MAX).collect();
            format!("{head}... ({n} characters; whole with --format json)")
        }
    }
}
