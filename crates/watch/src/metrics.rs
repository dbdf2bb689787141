//! Counters and gauges of a running watch, for Prometheus.

use crate::watching::{Detector, Observation, Standing};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Standings {
    standing: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SeriesLabels {
    model: String,
    worker: String,
}

/// What is exported. No label comes from a client but the model's and worker's names, of which
/// there are at most as many as series.
pub struct ExportedMetrics {
    registry: Registry,
    requests: Family<Standings, Counter>,
    signals: Family<Kind, Counter>,
    suspected: Counter,
    notices: Family<Kind, Counter>,
    bad_lines: Counter,
    sees_from: Family<SeriesLabels, Gauge>,
    learned: Family<SeriesLabels, Gauge>,
    last: Gauge<f64, AtomicU64>,
}

impl Default for ExportedMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cofferdam_watch");
        let requests = Family::<Standings, Counter>::default();
        let signals = Family::<Kind, Counter>::default();
        let suspected = Counter::default();
        let notices = Family::<Kind, Counter>::default();
        let bad_lines = Counter::default();
        let sees_from = Family::<SeriesLabels, Gauge>::default();
        let learned = Family::<SeriesLabels, Gauge>::default();
        let last = Gauge::<f64, AtomicU64>::default();
        for kind in crate::Anomaly::KINDS {
            let _ = signals.get_or_create(&Kind { kind }); // 0 is an answer, absence is none
        }
        let r = &mut registry;
        r.register(
            "requests",
            "Requests read, by what may be said of their time",
            requests.clone(),
        );
        r.register("signals", "Signals that convict a request", signals.clone());
        r.register(
            "suspected",
            "Requests that are too fast, among others that took longer the longer they were",
            suspected.clone(),
        );
        r.register("notices", "Things said about a series", notices.clone());
        r.register(
            "bad_lines",
            "Lines that are not what the mapping says",
            bad_lines.clone(),
        );
        r.register(
            "sees_from_tokens",
            "Uncached tokens from which a skipped prefill would be seen; 0: nowhere yet (learning)",
            sees_from.clone(),
        );
        r.register(
            "learned_requests",
            "Requests that a series has learned from",
            learned.clone(),
        );
        r.register(
            "last_request_seconds",
            "Time of the last request read",
            last.clone(),
        );
        Self {
            registry,
            requests,
            signals,
            suspected,
            notices,
            bad_lines,
            sees_from,
            learned,
            last,
        }
    }
}

impl ExportedMetrics {
    /// Counts a request.
    pub fn saw(&self, time: f64, seen: &Observation) {
        let standing = match seen.judged.standing {
            Standing::NotMeasured => "not_measured",
            Standing::Learning => "learning",
            Standing::TooShort => "too_short",
            Standing::AllCached => "all_cached",
            Standing::Compared(_) => "compared",
        };
        self.requests.get_or_create(&Standings { standing }).inc();
        if seen.suspected {
            self.suspected.inc();
        }
        for signal in seen.judged.signals.iter().filter(|_| !seen.suspected) {
            let kind = signal.kind();
            self.signals.get_or_create(&Kind { kind }).inc();
        }
        for notice in &seen.notices {
            let kind = notice.kind();
            self.notices.get_or_create(&Kind { kind }).inc();
        }
        self.last.set(time);
    }

    /// Counts a line that could not be read.
    pub fn bad_line(&self) {
        self.bad_lines.inc();
    }

    /// The page, in OpenMetrics text.
    pub fn page(&self, watch: &mut Detector) -> String {
        let (tolerance, learn) = (watch.settings().tolerance, watch.settings().learn);
        for (key, series) in watch.series() {
            let labels = SeriesLabels {
                model: key.model.clone(),
                worker: key.worker.clone(),
            };
            let from = series.sees_from(learn, tolerance).unwrap_or(0);
            self.sees_from.get_or_create(&labels).set(from as i64);
            self.learned.get_or_create(&labels).set(series.n() as i64);
        }
        let mut page = String::new();
        let _ = encode(&mut page, &self.registry); // writing to a String cannot fail
        page
    }
}
