//! Everything, for machines.

use super::ProbeReport;
use crate::chance::Depth;
use serde_json::{Value, json};

/// The report as one object.
pub fn json(report: &ProbeReport) -> Value {
    let counts = &report.counts;
    let suites = report.suites.iter().map(|(suite, stopped)| {
        json!({"suite": suite.name(), "hurts": suite.hurts(),
               "stopped": stopped.as_ref().map(ToString::to_string)})
    });
    let findings = report.findings.iter().map(|it| {
        json!({"kind": it.kind, "suite": it.suite, "says": it.says, "quote": it.quote,
               "requests": it.shows, "shrunk": it.shrunk,
               "curl": it.shows.iter().map(|it| it.curl()).collect::<Vec<_>>()})
    });
    let by_kind = counts
        .findings
        .iter()
        .map(|((kind, suite), n)| json!({"kind": kind, "suite": suite, "n": n}));
    let telling = counts.telling.iter().map(|(tenant, it)| {
        let seen = json!({"answers": it.answers, "own_canary": it.own});
        (tenant.to_string(), seen)
    });
    let notes = report.notes.iter();
    let notes = notes.map(|(suite, says)| json!({"suite": suite, "says": says}));
    json!({
        "probe": env!("CARGO_PKG_VERSION"), "url": report.url, "seed": report.seed,
        "verdict": report.verdict().name(),
        "why_not_told": report.why_not_told(),
        "requests": counts.requests, "answered": counts.answered, "tokens": counts.tokens,
        "positive_control": telling.collect::<serde_json::Map<_, _>>(),
        "by_status": counts.by_status, "left": counts.left, "hung": counts.hung,
        "broken": counts.broken,
        "chance_of_a_false_leak": report.chance,
        "looked_at": {"canary_places": report.looked_at[0].canaries,
                      "text_places": report.looked_at[0].texts},
        "words_that_convict": report.looked_at[0].alone(Depth::Plain),
        "notes": notes.collect::<Vec<_>>(),
        "power": report.power(), "suspicions": report.suspicions(),
        "suites": suites.collect::<Vec<_>>(),
        "findings_by_kind": by_kind.collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
    })
}
