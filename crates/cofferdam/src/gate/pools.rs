//! Figures of the `[[pool]]` entries.

use super::plan::{Plan, text_of};
use super::read::Asker;
use gate::config::{Access, AmountEntry, PoolEntry};
use gate::facts::Figure;
use gate::facts::json::Doc;
use gate::facts::prometheus::{Metrics, Sample};
use gate::shared_pool::{AMOUNT_MAX, Amount, PoolReading, from_log};
use std::path::Path;

/// Bytes of a log that are read.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Headroom over the largest request, in thousandths.
const HEADROOM: u64 = 1250;

/// What an entry asks over the network.
pub(super) fn asked(entry: &PoolEntry) -> impl Iterator<Item = (&str, &Access)> {
    let amounts = [&entry.size, &entry.largest];
    amounts.into_iter().filter_map(|amount| match amount {
        AmountEntry::Json { url, access, .. } | AmountEntry::Metric { url, access, .. } => {
            Some((url.as_str(), &**access))
        }
        AmountEntry::Log { .. } | AmountEntry::Constant { .. } => None,
    })
}

/// Reads one entry; what cannot be read says why.
pub(super) async fn read(entry: &PoolEntry, plan: &Plan, asker: &Asker) -> PoolReading {
    let amount = |amount| amount_of(amount, &plan.defaults, asker);
    let (size, largest) = tokio::join!(amount(&entry.size), amount(&entry.largest));
    PoolReading {
        name: entry.name.clone(),
        unit: entry.unit.clone(),
        headroom_thousandths: entry.headroom.map_or(HEADROOM, |it| it.0),
        size,
        largest,
        reject_ends_first: entry.attested.reject_ends_first.clone(),
        receiver_compares: entry.attested.receiver_compares.clone(),
    }
}

async fn amount_of(entry: &AmountEntry, defaults: &Access, asker: &Asker) -> Amount {
    Amount::Read(match entry {
        AmountEntry::Constant { value, by } => {
            return Amount::Declared {
                value: *value,
                by: by.clone(),
            };
        }
        AmountEntry::Log { file, pattern } => {
            let text = text_of(Path::new(file), LOG_BYTES_MAX).map_err(|it| format!("{it:#}"));
            text.and_then(|text| from_log(file, &text, pattern))
        }
        AmountEntry::Json { url, field, access } => {
            let body = asker.body(url, &access.or(defaults)).await;
            body.and_then(|body| in_json(url, &body, field))
        }
        AmountEntry::Metric {
            url,
            metric,
            access,
        } => {
            let body = asker.body(url, &access.or(defaults)).await;
            body.and_then(|body| in_metrics(url, &body, metric))
        }
    })
}

fn in_json(url: &str, body: &[u8], field: &str) -> Result<Figure<u64>, String> {
    let doc = Doc::parse(url, body).map_err(|it| format!("{url}: {it}"))?;
    doc.number(field, 1, AMOUNT_MAX)
        .map_err(|it| it.to_string())
}

fn in_metrics(url: &str, body: &[u8], metric: &str) -> Result<Figure<u64>, String> {
    let metrics = Metrics::parse(url, body).map_err(|it| format!("{url}: {it}"))?;
    let (name, labels) = selector(metric).ok_or_else(|| {
        format!("{metric:?} is no metric: name{{label=\"value\"}}, with or without labels")
    })?;
    let has = |sample: &&Sample| {
        let mut labels = labels.iter();
        labels.all(|(name, value)| sample.label(name) == Some(value))
    };
    let found: Vec<&Sample> = metrics.of(name).filter(has).collect();
    let [sample] = found[..] else {
        let count = found.len();
        return Err(format!(
            "{url}: {count} series match {metric}: it must be one"
        ));
    };
    let value: f64 = sample.value.parse().unwrap_or(f64::NAN);
    let is_whole = value.fract() == 0.0 && value >= 1.0 && value <= AMOUNT_MAX as f64;
    match is_whole {
        true => Ok(Figure::new(value as u64, metrics.source(metric.to_owned()))),
        false => Err(format!(
            "{url} {metric}: {} is no whole number from 1",
            sample.value
        )),
    }
}

/// Name and labels of `name{a="b",c="d"}`.
fn selector(metric: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let Some((name, rest)) = metric.split_once('{') else {
        return Some((metric, Vec::new()));
    };
    let labels = rest.strip_suffix('}')?.split(',').map(str::trim);
    let mut found = Vec::new();
    for label in labels.filter(|it| !it.is_empty()) {
        let (name, value) = label.split_once('=')?;
        let value = value.trim().strip_prefix('"')?.strip_suffix('"')?;
        found.push((name.trim(), value));
    }
    Some((name, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_series_must_match() {
        let body = b"# HELP x\npool_slots{pool=\"a\",zone=\"1\"} 64\npool_slots{pool=\"b\"} 1e3\nodd 1.5\n";
        let of = |metric| in_metrics("http://a/metrics", body, metric).map(|it| it.value);
        assert_eq!(of("pool_slots{pool=\"a\"}"), Ok(64));
        assert_eq!(of("pool_slots{pool = \"b\"}"), Ok(1000));
        for wrong in [
            "pool_slots",
            "pool_slots{pool=\"c\"}",
            "none",
            "odd",
            "pool_slots{pool=a}",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_json_figure_is_a_whole_number() {
        let of = |body: &str| in_json("http://a", body.as_bytes(), "a.b[0]").map(|it| it.value);
        assert_eq!(of("{\"a\":{\"b\":[7]}}"), Ok(7));
        for wrong in [
            "{\"a\":{\"b\":[\"7\"]}}",
            "{\"a\":{\"b\":[-7]}}",
            "{\"a\":{\"b\":[7.5]}}",
            "{\"a\":{\"b\":[0]}}",
            "{\"a\":{}}",
            "<html>",
            "{\"a\":{\"b\":[1e400]}}",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
