//! Figures on `/metrics` that are somebody else's than this half's and the engine's.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;

/// Labels of one series.
pub type Labels = Vec<(&'static str, String)>;

/// Who has figures. Asked on every scrape: must be cheap, and must not wait.
pub trait Figures: Send + Sync {
    /// What they are now.
    fn figures(&self) -> Vec<Gauged>;
}

/// One family.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauged {
    /// Snake case, without the product's prefix and without `_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Whether it only ever grows, while the process is there.
    pub grows: bool,
    /// Its samples, each with other labels.
    pub samples: Vec<(Labels, u64)>,
}

/// Asks on every scrape.
pub(super) struct Asked(pub(super) Arc<dyn Figures>);

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asked")
    }
}

impl Collector for Asked {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for it in self.0.figures() {
            match it.grows {
                true => counter(&mut encoder, it.name, it.help, it.samples)?,
                false => gauge(&mut encoder, it.name, it.help, it.samples)?,
            }
        }
        Ok(())
    }
}

/// A family of figures that go up and down.
pub(super) fn gauge(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (Labels, impl EncodeGaugeValue)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// A family of figures that only grow.
pub(super) fn counter(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    let none: Option<&prometheus_client::metrics::exemplar::Exemplar<Labels, u64>> = None;
    for (labels, value) in series {
        family
            .encode_family(&labels)?
            .encode_counter(&value, none)?;
    }
    Ok(())
}
