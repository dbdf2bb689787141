//! OTLP in JSON (opentelemetry-proto, `trace/v1`): ids in hexadecimal, 64-bit numbers as text.

use serde_json::{Value, json};

use super::Span;

/// The body of one export.
pub(super) fn body(spans: &[Span]) -> String {
    let spans: Vec<_> = spans.iter().map(span).collect();
    let resource = [
        word("service.name", "cofferdam"),
        word("service.version", env!("CARGO_PKG_VERSION")),
    ];
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "cofferdam.gateway"}, "spans": spans}],
    }]})
    .to_string()
}

fn span(it: &Span) -> Value {
    let words = it.what.words.iter().map(|(name, value)| word(name, value));
    let figures = it.what.figures.iter();
    let figures =
        figures.map(|(name, n)| json!({"key": name, "value": {"intValue": n.to_string()}}));
    let parent = match it.parent {
        0 => String::new(),
        parent => format!("{parent:016x}"),
    };
    json!({
        "traceId": format!("{:032x}", it.trace), "spanId": format!("{:016x}", it.span),
        "parentSpanId": parent, "name": it.name, "kind": it.kind as u8,
        "startTimeUnixNano": it.start.to_string(), "endTimeUnixNano": it.end.to_string(),
        "attributes": words.chain(figures).collect::<Vec<_>>(),
        "status": if it.what.failed { json!({"code": 2}) } else { json!({}) },
    })
}

fn word(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}
