//! For machines: everything, with a schema (`docs/gate.schema.json`) that only grows.

use crate::date::rfc3339;
use crate::facts::{Figure, FigureSource, Unknown};
use crate::finding::{Evidence, Finding};
use crate::judge::Member;
use crate::report::Report;
use serde_json::{Value, json};

/// The schema's name; its number changes when a field changes its meaning or goes away.
pub const SCHEMA: &str = "cofferdam-gate/1";

/// The report as JSON.
pub fn json(report: &Report) -> Value {
    let verdict = report.verdict();
    json!({
        "schema": SCHEMA,
        "verdict": verdict.word(),
        "exit_code": verdict.exit_code(),
        "at": rfc3339(report.at),
        "strict": report.strict,
        "headroom": {
            "default": report.headroom.thousandths as f64 / 1000.0,
            "refusing_engines": report.headroom.refusing_thousandths as f64 / 1000.0,
        },
        "context": report.context,
        "advisories_date": report.table_date.to_string(),
        "findings": report.findings.iter().map(|it| finding(report, it)).collect::<Vec<_>>(),
        "nodes": report.subjects.members.iter().map(node).collect::<Vec<_>>(),
        "unused_allow": report.unused.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn finding(report: &Report, it: &Finding) -> Value {
    json!({
        "check": it.check.id,
        "level": it.check.level.word(),
        "answer": it.answer.word(),
        "fails": report.fails(it),
        "subject": { "kind": it.subject.kind(), "name": it.subject.name() },
        "advisory": it.advisory,
        "says": it.says,
        "what_to_do": it.what_to_do(),
        "link": it.reference(),
        "allowed": it.allowed,
        "evidence": it.evidence.iter().map(evidence).collect::<Vec<_>>(),
    })
}

fn evidence(it: &Evidence) -> Value {
    json!({
        "what": it.what,
        "value": it.value.as_ref().ok(),
        "unknown": it.value.as_ref().err(),
        "source": it.source.as_ref().map(FigureSource::to_string),
    })
}

fn node(member: &Member) -> Value {
    let node = &member.node;
    let ranks = node.ranks.iter().flatten().map(|rank| {
        let mut fact = figure(rank.pool.as_deref(), |it| json!(it));
        fact["name"] = json!(rank.name);
        fact
    });
    json!({
        "name": node.name,
        "stated_role": member.stated.map(|it| it.word()),
        "engine": figure(node.engine.as_ref(), |it| json!(it.name())),
        "version": figure(node.version.as_ref(), |it| json!(it.text())),
        "role": figure(node.role.as_ref(), |it| json!(it.to_string())),
        "pools": ranks.collect::<Vec<_>>(),
        "pools_unknown": node.ranks.as_ref().err().map(ToString::to_string),
        "context": figure(node.context.as_deref(), |it| json!(it)),
        "advertised": figure(node.advertised.as_deref(), |it| json!(it)),
        "max_prompt": figure(node.max_prompt.as_deref(), |it| json!(it)),
        "page_size": figure(node.page_size.as_ref(), |it| json!(it)),
        "truncates": figure(node.truncates.as_ref(), |it| json!(it)),
        "checksum": figure(node.checksum.as_ref(), |it| json!(it)),
        "guard": figure(node.guard.as_ref(), |it| json!(it.text())),
        "deferred_release": figure(node.deferred_release.as_ref(), |it| json!(it)),
        "backend": figure(node.backend.as_ref(), |it| json!(it)),
        "kv_dtype": figure(node.kv_dtype.as_ref(), |it| json!(it)),
        "layout": figure(node.layout.as_ref(), |it| json!(it)),
        "model": figure(node.model.as_ref(), |it| json!(it)),
        "tokenizer": figure(node.tokenizer.as_ref(), |it| json!(it)),
        "weights": figure(node.weights.as_ref(), |it| json!(it)),
        "model_dtype": figure(node.model_dtype.as_ref(), |it| json!(it)),
        "chat_template": figure(node.template.as_ref(), |it| json!(it)),
        "transfers": figure(node.transfers.as_ref(), |it| json!(it)),
        "asides": node.asides.iter().flatten().map(|it| json!({
            "what": it.what,
            "tokens": it.tokens,
            "source": it.source.to_string(),
        })).collect::<Vec<_>>(),
        "asides_unknown": node.asides.as_ref().err().map(ToString::to_string),
        "probes": node.probes.iter().map(|probe| json!({
            "url": probe.url,
            "with_key": probe.with_key,
            "bytes": probe.outcome.as_ref().ok(),
            "trouble": probe.outcome.as_ref().err().map(ToString::to_string),
        })).collect::<Vec<_>>(),
        "warnings": node.warnings.iter().map(|it| json!({
            "text": it.text,
            "source": it.source.to_string(),
        })).collect::<Vec<_>>(),
    })
}

fn figure<T>(fact: Result<&Figure<T>, &Unknown>, value: impl Fn(&T) -> Value) -> Value {
    match fact {
        Ok(it) => json!({
            "value": value(&it.value),
            "unknown": null,
            "source": it.source.to_string(),
        }),
        Err(why) => json!({ "value": null, "unknown": why.to_string(), "source": null }),
    }
}
