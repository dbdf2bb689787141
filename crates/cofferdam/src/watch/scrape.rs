//! Engines' own counters, read again and again. A coarse alarm: they name no request.

use crate::exit::Failure;
use ::watch::counters::{CounterReadings, Rise};
use anyhow::anyhow;
use gate::facts::Trouble;
use gate::facts::net::{Address, Tls, TlsFiles, get};
use gate::facts::prometheus::Metrics;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of one answer.
const ANSWER_MAX: usize = 8 << 20;
/// What one node may take.
const TIME_MAX: Duration = Duration::from_secs(5);

pub(super) struct Scraper {
    nodes: Vec<(String, Address)>,
    tls: Tls,
    counters: CounterReadings,
}

impl Scraper {
    pub(super) fn new(urls: &[String]) -> Result<Scraper, Failure> {
        let node = |url: &String| match Address::server(url) {
            Ok(address) => Ok((url.clone(), address.with_path("/metrics"))),
            Err(why) => Err(Failure::usage(anyhow!("--scrape {url}: {why}"))),
        };
        let tls = Tls::new(&TlsFiles::default());
        Ok(Scraper {
            nodes: urls.iter().map(node).collect::<Result<_, _>>()?,
            tls: tls.map_err(|error| Failure::usage(anyhow!(error)))?,
            counters: CounterReadings::default(),
        })
    }

    /// Reads every node; a node that cannot be read is said, with why.
    pub(super) async fn read(&mut self) -> (Vec<Rise>, Vec<(String, Trouble)>) {
        let (mut rises, mut troubles) = (Vec::new(), Vec::new());
        let end = Instant::now() + TIME_MAX;
        let (nodes, tls) = (&self.nodes, &self.tls);
        let asked = nodes
            .iter()
            .map(|(_, address)| get(address, None, tls, ANSWER_MAX, end));
        let answers = futures::future::join_all(asked).await;
        for ((name, _), answer) in nodes.iter().zip(answers) {
            let metrics = answer.and_then(|body| Metrics::parse(name, &body.into_bytes()));
            match metrics {
                Ok(metrics) => rises.extend(compare(&mut self.counters, name, &metrics)),
                Err(trouble) => troubles.push((name.clone(), trouble)),
            }
        }
        (rises, troubles)
    }
}

fn compare(counters: &mut CounterReadings, name: &str, metrics: &Metrics) -> Vec<Rise> {
    let samples = metrics.all().filter_map(|it| {
        let labels: Vec<_> = it
            .labels
            .iter()
            .map(|(k, v)| format!("{k}={v:?}"))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        Some((it.name.as_str(), labels, it.value.parse().ok()?))
    });
    counters.see(name, samples)
}
