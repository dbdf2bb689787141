//! Gauges in the text format of Prometheus.

use crate::finding::{Answer, Finding};
use crate::judge::Member;
use crate::report::{Report, Verdict};
use std::fmt::Write;

/// The report as gauges.
pub fn prometheus(report: &Report) -> String {
    let mut text = String::new();
    let verdict = match report.verdict() {
        Verdict::Holds => 1,
        Verdict::Violated => 0,
        Verdict::Unknown => -1,
    };
    gauge(&mut text, "verdict", "1: holds, 0: violated, -1: unknown.");
    let _ = writeln!(text, "cofferdam_gate_verdict {verdict}");
    gauge(
        &mut text,
        "read_timestamp_seconds",
        "When the nodes were read.",
    );
    let _ = writeln!(text, "cofferdam_gate_read_timestamp_seconds {}", report.at);
    gauge(&mut text, "check", "1: holds, 0: violated, -1: unknown.");
    for finding in &report.findings {
        check(&mut text, finding);
    }
    gauge(
        &mut text,
        "check_fails",
        "1 where the finding shuts the gate.",
    );
    for finding in report.findings.iter().filter(|it| report.fails(it)) {
        let _ = writeln!(text, "cofferdam_gate_check_fails{} 1", labels(finding));
    }
    gauge(
        &mut text,
        "pool_tokens",
        "KV pool of a rank, as measured by the node.",
    );
    for member in &report.subjects.members {
        for rank in member.node.ranks.iter().flatten() {
            if let Ok(pool) = &rank.pool {
                let (node, rank, pool) = (name(member), escaped(&rank.name), pool.value);
                let labels = format!("node=\"{node}\",rank=\"{rank}\"");
                let _ = writeln!(text, "cofferdam_gate_pool_tokens{{{labels}}} {pool}");
            }
        }
    }
    let figures = [
        ("context_tokens", "Context of the node."),
        ("max_prompt_tokens", "Longest prompt that the node accepts."),
        ("advertised_tokens", "What the node tells clients."),
    ];
    for (place, (metric, help)) in figures.into_iter().enumerate() {
        gauge(&mut text, metric, help);
        for member in &report.subjects.members {
            let node = &member.node;
            let fact = [&node.context, &node.max_prompt, &node.advertised][place];
            if let Ok(fact) = fact {
                let (node, value) = (name(member), fact.value);
                let _ = writeln!(text, "cofferdam_gate_{metric}{{node=\"{node}\"}} {value}");
            }
        }
    }
    text
}

fn gauge(text: &mut String, metric: &str, help: &str) {
    let _ = writeln!(text, "# HELP cofferdam_gate_{metric} {help}");
    let _ = writeln!(text, "# TYPE cofferdam_gate_{metric} gauge");
}

fn check(text: &mut String, finding: &Finding) {
    let value = match finding.answer {
        Answer::Holds => 1,
        Answer::Violated => 0,
        Answer::Unknown => -1,
    };
    let _ = writeln!(text, "cofferdam_gate_check{} {value}", labels(finding));
}

fn labels(finding: &Finding) -> String {
    let allowed = finding.allowed.is_some().to_string();
    prometheus_labels(&[
        ("check", finding.check.id),
        ("level", finding.check.level.word()),
        ("subject", finding.subject.name()),
        ("kind", finding.subject.kind()),
        ("advisory", finding.advisory.as_deref().unwrap_or("")),
        ("allowed", &allowed),
    ])
}

/// `{name="value",...}`, with values escaped.
pub fn prometheus_labels(labels: &[(&str, &str)]) -> String {
    let each = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

fn name(member: &Member) -> String {
    escaped(&member.node.name)
}

fn escaped(text: &str) -> String {
    let text = super::tame(text);
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
