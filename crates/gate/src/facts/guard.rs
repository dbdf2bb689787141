//! Cofferdam's guard inside an engine that is not ours, known by the metric that it exports once it
//! is in effect.

use crate::facts::combine::{agreed, not_reported};
use crate::facts::figure::{Fact, Figure};
use crate::facts::json::absurd;
use crate::facts::prometheus::{Metrics, Sample};
use crate::facts::version::Version;

/// Labels that tell the engines and ranks of one server apart.
const KEYS: [&str; 2] = ["engine", "engine_type"];

/// The guard's version. Every series says that it is in effect, and all name the same version.
///
/// # Errors
/// No series: the guard is not there, or metrics were not read. A series that is not 1.
pub(crate) fn version(metrics: &Fact<Metrics>, name: &str, label: &str) -> Fact<Figure<Version>> {
    let metrics = metrics.as_ref().map_err(Clone::clone)?;
    let places: Vec<_> = metrics
        .of(name)
        .map(|it| in_effect(metrics, it, label))
        .collect();
    if places.is_empty() {
        return not_reported(&metrics.source(name.to_owned()).to_string());
    }
    // One rank without the guard is enough to be without it.
    let places = places.into_iter().collect::<Result<Vec<_>, _>>()?;
    agreed(places.into_iter().map(Ok).collect(), &mut Vec::new())
}

fn in_effect(metrics: &Metrics, sample: &Sample, label: &str) -> Fact<Figure<Version>> {
    let source = metrics.source(sample.describe(&KEYS));
    if sample.value.parse() != Ok(1.0) {
        let why = "not 1: the guard is not in effect";
        return Err(absurd(&sample.value, source, why));
    }
    let text = metrics.label_text(sample, label, &KEYS)?;
    match Version::read(&text.value) {
        Ok(version) => Ok(Figure::new(version, text.source)),
        Err(why) => Err(absurd(&text.value, text.source, &why.to_string())),
    }
}
