//! What tells this process from another under the same name: an epoch where there is one, or else
//! figures that are different for every start.

use crate::facts::answers::{Page, ServerAnswers};
use crate::facts::figure::{Fact, Figure, Unknown};
use crate::facts::prometheus::Metrics;

/// Where a process says when it began, in seconds since 1970.
const BEGAN: &str = "process_start_time_seconds";
/// Prometheus' Python client says of each counter when it was made; the oldest was made at the start.
const MADE: &str = "_created";
/// What SGLang says of its start: a seed that is drawn unless it was set, and how long loading took.
const STARTS: [&str; 5] = [
    "random_seed",
    "internal_states[0].startup_time.scheduler_e2e",
    "internal_states[0].startup_time.load_weight",
    "internal_states[0].startup_time.kv_cache_allocation",
    "internal_states[0].random_seed",
];

/// Of the metrics, or of what is said about the start.
pub(crate) fn read(answers: &ServerAnswers, info: &Page) -> Fact<Figure<String>> {
    let metrics = answers.metrics();
    if let Some(began) = metrics.as_ref().ok().and_then(began) {
        return Ok(began);
    }
    let doc = info.doc()?;
    let said = STARTS.iter().filter_map(|field| {
        let value = doc.at(field)?;
        Some((*field, value.to_string()))
    });
    let said: Vec<(&str, String)> = said.collect();
    let looked = || {
        let mut looked = vec![BEGAN.to_owned(), format!("*{MADE}")];
        looked.extend(STARTS.map(str::to_owned));
        Unknown::NotReported { looked }
    };
    let (field, _) = said.first().ok_or_else(looked)?;
    let words: Vec<String> = said
        .iter()
        .map(|(field, it)| format!("{field}={it}"))
        .collect();
    Ok(Figure {
        value: words.join(" "),
        source: doc.source(field),
    })
}

fn began(metrics: &Metrics) -> Option<Figure<String>> {
    if let Some(sample) = metrics.of(BEGAN).next() {
        return Some(Figure {
            value: format!("began={}", sample.value),
            source: metrics.source(BEGAN.to_owned()),
        });
    }
    let made = metrics.all().filter(|it| it.name.ends_with(MADE));
    let made = made.filter_map(|it| Some((it.value.parse::<f64>().ok()?, it)));
    let (_, oldest) = made.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Figure {
        value: format!("made={}", oldest.value),
        source: metrics.source(oldest.name.clone()),
    })
}
