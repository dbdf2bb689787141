//! `GET /metrics`: what the HTTP half counts, and what the engine says about its workers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::access_log::{Outcome, Record};
use super::config::Config;
use super::figures::{Asked, Labels, counter, gauge};
use crate::engine::{Count, Engine, EngineFacts, Readiness, TenantId, WorkerFacts};

/// Counters and histograms of one gateway; no globals, so that tests run side by side.
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    first_token: Histogram,
    inter_token: Histogram,
    latency: Histogram,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    cached_tokens: Counter,
    dropped_lines: Counter,
    limited: Family<TenantLabels, Counter>,
    /// Tenants that have a label of their own.
    named: Mutex<BTreeSet<TenantId>>,
    /// TLS handshakes that came to nothing.
    pub handshakes: Counter,
    /// Generations under way.
    pub running: Gauge,
    /// Open connections.
    pub connections: Gauge,
}

/// Every label has few values: routes, statuses and codes are lists in the code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: u16,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabels {
    tenant: String,
    limit: &'static str,
}

/// Tenants that have a label of their own, at most; behind them all are `(others)`, which is no
/// tenant's name.
const NAMED_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    what: &'static str,
    result: &'static str,
}

/// How often files were read again while the gateway ran, by what came of it.
#[derive(Clone, Debug, Default)]
pub struct Reloads(Family<ReloadLabels, Counter>);

impl Reloads {
    /// Read again: what it says counts from now on, or it is bad and nothing has changed.
    pub fn count(&self, what: &'static str, good: bool) {
        let result = if good { "taken" } else { "refused" };
        self.0.get_or_create(&ReloadLabels { what, result }).inc();
    }
}

/// From a small model on a fast machine to a long prompt on a slow one.
const SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Families of this module and of `Figures`, which the engine's and the workers' counters may be named like.
const OWN: &[&str] = &[
    "requests",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "prompt_tokens",
    "generation_tokens",
    "prompt_tokens_cached",
    "access_log_lines_dropped",
    "spans_sent",
    "spans_dropped",
    "tenant_limited",
    "reloads",
    "tls_handshakes_failed",
    "requests_running",
    "connections",
    "ready",
    "context_limit_tokens",
    "worker_ready",
    "pool_tokens",
    "pages",
    "quarantined",
    "quarantine_age_seconds",
    "worker_info",
    "incidents_open",
    "restricted",
    "signals",
    "journal_in_trouble",
    "journal_entries_pending",
    "journal_lost",
    "canaries",
    "canary_tokens",
    "canaries_exclude_one_in",
    "canaries_paused",
];

impl Metrics {
    /// Metrics of a gateway in front of this engine.
    pub(super) fn new(engine: Arc<dyn Engine>, config: &Config) -> Self {
        let mut registry = Registry::with_prefix("cofferdam");
        let seconds = || Histogram::new(SECONDS);
        let metrics = Self {
            requests: Family::default(),
            first_token: seconds(),
            inter_token: seconds(),
            latency: seconds(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            dropped_lines: Counter::default(),
            limited: Family::default(),
            named: Mutex::default(),
            handshakes: Counter::default(),
            running: Gauge::default(),
            connections: Gauge::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        r.register("requests", "HTTP requests ended", metrics.requests.clone());
        r.register(
            "time_to_first_token_seconds",
            "From the head of a request to its first token",
            metrics.first_token.clone(),
        );
        r.register(
            "inter_token_latency_seconds",
            "Between deliveries of tokens of a request",
            metrics.inter_token.clone(),
        );
        r.register(
            "e2e_request_latency_seconds",
            "From the head of a generation request to its end, if it ended well",
            metrics.latency.clone(),
        );
        r.register(
            "prompt_tokens",
            "Prompt tokens of requests that workers took on",
            metrics.prompt_tokens.clone(),
        );
        r.register(
            "generation_tokens",
            "Tokens sampled",
            metrics.generation_tokens.clone(),
        );
        r.register(
            "prompt_tokens_cached",
            "Prompt tokens not computed again",
            metrics.cached_tokens.clone(),
        );
        r.register(
            "access_log_lines_dropped",
            "Access log lines lost to a slow sink",
            metrics.dropped_lines.clone(),
        );
        if let Some(spans) = config.spans.counts() {
            r.register(
                "spans_sent",
                "Spans that a collector took",
                spans.sent.clone(),
            );
            r.register(
                "spans_dropped",
                "Spans for which there was no room, or that the collector did not take",
                spans.dropped.clone(),
            );
        }
        r.register(
            "tenant_limited",
            "Requests refused by a tenant's limit of a minute",
            metrics.limited.clone(),
        );
        r.register(
            "reloads",
            "Files read again while running",
            config.reloads.0.clone(),
        );
        r.register(
            "tls_handshakes_failed",
            "TLS handshakes that came to nothing",
            metrics.handshakes.clone(),
        );
        r.register(
            "requests_running",
            "Generations under way",
            metrics.running.clone(),
        );
        r.register(
            "connections",
            "Open HTTP connections",
            metrics.connections.clone(),
        );
        registry.register_collector(Box::new(EngineCollector(engine)));
        for figures in &config.figures {
            registry.register_collector(Box::new(Asked(figures.clone())));
        }
        Self {
            registry,
            ..metrics
        }
    }

    /// The page, in OpenMetrics text.
    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a String cannot fail; a collector's own error leaves a page without "# EOF",
        // which a scraper refuses.
        let _ = encode(&mut page, &self.registry);
        page
    }

    /// The same page in Prometheus' older text form, in which a counter's family has the name of its
    /// series.
    pub(super) fn plain_page(&self) -> String {
        let mut plain = String::new();
        let mut help: Option<&str> = None;
        let page = self.page();
        for line in page.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some("HELP"), Some(_), _) => help = Some(line),
                (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                    let suffix = if kind == "counter" { "_total" } else { "" };
                    if let Some(text) = help.take().and_then(|line| line.splitn(4, ' ').nth(3)) {
                        plain += &format!("# HELP {name}{suffix} {text}\n");
                    }
                    plain += &format!("# TYPE {name}{suffix} {kind}\n");
                }
                (Some("#"), ..) => {} // units and the end: not in this form
                _ => {
                    plain += line;
                    plain.push('\n');
                }
            }
        }
        plain
    }

    /// A first token came this long after its request.
    pub(super) fn first_token(&self, wait: Duration) {
        self.first_token.observe(wait.as_secs_f64());
    }

    /// A further delivery of tokens came this long after the one before.
    pub(super) fn next_token(&self, wait: Duration) {
        self.inter_token.observe(wait.as_secs_f64());
    }

    /// An access log line was lost.
    pub(super) fn log_line_dropped(&self) {
        self.dropped_lines.inc();
    }

    /// A tenant's limit of a minute has refused a request.
    pub(super) fn limited(&self, tenant: &TenantId, limit: &'static str) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let own =
            named.contains(tenant) || (named.len() < NAMED_MAX && named.insert(tenant.clone()));
        let tenant = if own { tenant.as_str() } else { "(others)" }.to_owned();
        self.limited
            .get_or_create(&TenantLabels { tenant, limit })
            .inc();
    }

    /// A request ended.
    pub(super) fn request_ended(&self, record: &Record, outcome: Outcome) {
        let labels = RequestLabels {
            route: record.route,
            status: record.status,
            outcome: outcome.as_str(),
        };
        self.requests.get_or_create(&labels).inc();
        if record.provenance.is_some() {
            self.prompt_tokens.inc_by(record.usage.prompt.into());
            self.generation_tokens
                .inc_by(record.usage.completion.into());
            self.cached_tokens.inc_by(record.usage.cached.into());
            if outcome == Outcome::Ok {
                self.latency.observe(record.start.elapsed().as_secs_f64());
            }
        }
    }
}

/// Asks the engine on every scrape.
struct EngineCollector(Arc<dyn Engine>);

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let facts = self.0.facts();
        let e = &mut encoder;
        let ready = u64::from(facts.readiness == Readiness::Ready);
        gauge(
            e,
            "ready",
            "Whether a request sent now would be taken",
            [(vec![], ready)],
        )?;
        if let Some(limit) = facts.limit() {
            gauge(
                e,
                "context_limit_tokens",
                "Largest prompt, and largest sum of prompt and output, of the pair that takes most",
                [
                    (
                        vec![("of", "prompt".to_owned())],
                        u64::from(limit.max_prompt_tokens),
                    ),
                    (
                        vec![("of", "prompt_plus_output".to_owned())],
                        u64::from(limit.max_model_len),
                    ),
                ],
            )?;
        }
        let each = |value: fn(&WorkerFacts) -> u64| {
            facts
                .workers
                .iter()
                .map(move |w| (worker_labels(w), value(w)))
        };
        gauge(
            e,
            "worker_ready",
            "Whether the worker takes work",
            each(|w| u64::from(w.readiness == Readiness::Ready)),
        )?;
        gauge(
            e,
            "pool_tokens",
            "Measured size of the worker's KV pool",
            each(|w| w.pool_tokens),
        )?;
        gauge(
            e,
            "pages",
            "Pages of the worker's KV pool by state",
            pages(&facts),
        )?;
        let held = || {
            facts.workers.iter().flat_map(move |worker| {
                worker.quarantine.by_reason().map(|(reason, held)| {
                    let mut labels = worker_labels(worker);
                    labels.push(("reason", reason.to_owned()));
                    (labels, held)
                })
            })
        };
        gauge(
            e,
            "quarantined",
            "Pages, and for the reason arenas landing arenas, that are held back",
            held().map(|(labels, held)| (labels, held.count)),
        )?;
        gauge(
            e,
            "quarantine_age_seconds",
            "For how long the oldest of them has been held back",
            held().map(|(labels, held)| (labels, held.oldest_ms as f64 / 1000.0)),
        )?;
        gauge(
            e,
            "worker_info",
            "The worker's present life",
            facts.workers.iter().map(|w| {
                let mut labels = worker_labels(w);
                labels.push(("epoch", w.epoch.clone()));
                (labels, 1)
            }),
        )?;
        counters(e, &facts)
    }
}

fn worker_labels(worker: &WorkerFacts) -> Labels {
    vec![
        ("role", worker.role.as_str().to_owned()),
        ("worker", worker.name.clone()),
    ]
}

fn pages(facts: &EngineFacts) -> impl Iterator<Item = (Labels, u64)> {
    facts.workers.iter().flat_map(|worker| {
        worker.pages.by_state().map(|(state, count)| {
            let mut labels = worker_labels(worker);
            labels.push(("state", state.to_owned()));
            (labels, count)
        })
    })
}

/// Each counter's name once, with a series for every worker that has it; a name that workers and
/// the engine share would be two counters, so the engine's own stand under role `gateway`.
fn counters(encoder: &mut DescriptorEncoder, facts: &EngineFacts) -> fmt::Result {
    let own = facts
        .counters
        .iter()
        .map(|c| (c, vec![("role", "gateway".to_owned())]));
    let workers = facts
        .workers
        .iter()
        .flat_map(|w| w.counters.iter().map(|c| (c, worker_labels(w))));
    let mut names = std::collections::BTreeMap::<&str, Vec<(&Count, Labels)>>::new();
    for (count, labels) in own.chain(workers) {
        names.entry(count.name).or_default().push((count, labels));
    }
    for (name, series) in names {
        // A family has one type and stands once, and these names are already others'.
        let name = if OWN.contains(&name) {
            Cow::Owned(format!("engine_{name}"))
        } else {
            Cow::Borrowed(name)
        };
        let help = series[0].0.help;
        let series = series
            .into_iter()
            .map(|(count, labels)| (labels, count.value));
        counter(encoder, &name, help, series)?;
    }
    Ok(())
}
