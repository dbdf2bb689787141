//! What vLLM keeps beside its pool, and what shows that its layers are of several kinds.

use super::{CONFIG, KEYS};
use crate::facts::answers::Page;
use crate::facts::figure::{Fact, Figure, Unknown};
use crate::facts::json::Doc;
use crate::facts::node::Aside;
use crate::facts::prometheus::{Metrics, Sample};
use serde_json::Value;

/// Something that a setting says other than that there is nothing.
fn is_on(says: &str) -> bool {
    !matches!(says, "" | "none" | "None" | "0" | "false" | "False")
}

/// A setting of the cache that only models with windows or recurrent layers have, or without any
/// attention. Such layers are counted by `kv_cache_size_tokens`, and by nothing else.
pub(super) fn kinds(read: impl Fn(&str) -> Option<Figure<String>>) -> Option<Figure<String>> {
    let fields = [
        "is_attention_free",
        "mamba_block_size",
        "mamba_page_size_padded",
        "mamba_cache_mode",
        "sliding_window",
    ];
    let found = fields.into_iter().filter_map(|field| {
        let figure = read(field).filter(|it| is_on(&it.value))?;
        let value = format!("{field} {}", figure.value);
        Some(Figure::new(value, figure.source))
    });
    found.into_iter().next()
}

/// Tiers, stores and drafts, from metrics or a development server: from one of them it must be
/// known that there are none.
pub(super) fn read(info: &Page, metrics: &Fact<Metrics>) -> Fact<Vec<Aside>> {
    let mut asides = Vec::new();
    let told = match metrics {
        Ok(metrics) => from_metrics(metrics, &mut asides),
        Err(why) => Err(why.clone()),
    };
    match (told, from_settings(info, &mut asides)) {
        (Err(one), Err(other)) => return Err(crate::facts::combine::worst(vec![one, other])),
        // Settings name the connector, a mover has series of its own.
        (_, Err(_)) => asides.extend(metrics.as_ref().ok().and_then(asked)),
        (_, Ok(())) => {}
    }
    Ok(asides)
}

/// What shows that a connector is there of which nothing tells what it is.
fn asked(metrics: &Metrics) -> Option<Aside> {
    if super::mover(metrics).is_some() {
        return None;
    }
    let queries = metrics.of("vllm:external_prefix_cache_queries_total");
    let unspecified = metrics
        .of(CACHED)
        .filter(|it| it.label("source") == Some("external_unspecified"));
    let some = |it: &&Sample| it.value.parse().is_ok_and(|n: f64| n > 0.0);
    let sample = queries.chain(unspecified).find(some)?;
    Some(Aside {
        what: CONNECTOR.to_owned(),
        tokens: None,
        source: metrics.source(sample.describe(&["source"])),
    })
}

/// Tokens of prompts that were found in a cache, by where it is.
pub(super) const CACHED: &str = "vllm:prompt_tokens_cached_by_source_total";
const CONNECTOR: &str = "what a connector keeps or brings";

fn from_metrics(metrics: &Metrics, asides: &mut Vec<Aside>) -> Fact<()> {
    const MARKS: [(&str, &str); 4] = [
        ("vllm:spec_decode_", "drafts of speculative decoding"),
        ("vllm:kv_offload_", "KV that is offloaded to the host"),
        ("lmcache", "LMCache"),
        ("vllm:lmcache", "LMCache"),
    ];
    for (prefix, what) in MARKS {
        if metrics.has_prefix(prefix) {
            asides.push(Aside {
                what: what.to_owned(),
                tokens: None,
                source: metrics.source(format!("{prefix}*")),
            });
        }
    }
    for sample in metrics.of(CACHED) {
        let tier = match sample.label("source") {
            Some("host") => "KV that is offloaded to the host",
            Some("disk") => "KV that is offloaded to a disk",
            _ => continue,
        };
        if sample.value.parse().is_ok_and(|n: f64| n > 0.0) {
            asides.push(Aside {
                what: tier.to_owned(),
                tokens: None,
                source: metrics.source(sample.describe(&["source"])),
            });
        }
    }
    let Some(sample) = metrics.of(CONFIG).next() else {
        return crate::facts::combine::not_reported(&metrics.source(CONFIG.into()).to_string());
    };
    if let Ok(size) = metrics.label_text(sample, "kv_offloading_size", &KEYS)
        && is_on(&size.value)
    {
        asides.push(Aside {
            what: format!("KV that is offloaded to the host: {} GB", size.value),
            tokens: None,
            source: size.source,
        });
    }
    Ok(())
}

/// Connectors that only move KV between prefill and decode; any other may keep it.
const MOVERS: [&str; 8] = [
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "GuardedNixlConnector",
    "MooncakeConnector",
    "MoRIIOConnector",
    "P2pNcclConnector",
    "none",
];

/// Settings that some versions do not have; each names a further place.
const FURTHER: [(&str, &str); 3] = [
    (
        "cache_config.kv_offloading_size",
        "KV that is offloaded to the host",
    ),
    (
        "ec_transfer_config",
        "embeddings of images that are kept or shared",
    ),
    (
        "attention_config.hisparse_config",
        "a sparse tier (HiSparse)",
    ),
];

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(it) => it.as_f64() != Some(0.0),
        Value::String(it) => is_on(it),
        Value::Object(it) => !it.is_empty(),
        Value::Array(it) => !it.is_empty(),
        Value::Bool(true) => true,
    }
}

/// Further places that settings name, which stand where `at` says.
pub(crate) fn further(doc: &Doc, at: impl Fn(&str) -> String, asides: &mut Vec<Aside>) {
    for (field, what) in FURTHER {
        let field = at(field);
        if doc.at(&field).is_some_and(is_set) {
            asides.push(Aside {
                what: what.to_owned(),
                tokens: None,
                source: doc.source(&field),
            });
        }
    }
}

fn from_settings(info: &Page, asides: &mut Vec<Aside>) -> Fact<()> {
    let doc = info.doc()?;
    further(doc, |field| format!("vllm_config.{field}"), asides);
    let connector = info.text("vllm_config.kv_transfer_config.kv_connector");
    asides.extend(store(&connector));
    if let Err(why @ (Unknown::Absurd(_) | Unknown::Contradiction(_))) = connector {
        return Err(why);
    }
    let speculative = info.setting("vllm_config.speculative_config")?;
    if is_on(&speculative.value) {
        asides.push(Aside {
            what: "drafts of speculative decoding".to_owned(),
            tokens: None,
            source: speculative.source,
        });
    }
    Ok(())
}

/// Whether tokens that the scheduler calls external may come from a place of this process.
pub(super) fn keeps(asides: &Fact<Vec<Aside>>) -> bool {
    let keeps = |it: &&Aside| !it.what.starts_with("drafts") && it.what != CONNECTOR;
    asides.iter().flatten().any(|it| keeps(&it))
}

/// A connector that may keep what it moves.
pub(crate) fn store(connector: &Fact<Figure<String>>) -> Option<Aside> {
    let it = connector.as_ref().ok()?;
    let keeps = !MOVERS.contains(&it.value.as_str());
    keeps.then(|| Aside {
        what: format!("KV that a connector keeps or shares: {}", it.value),
        tokens: None,
        source: it.source.clone(),
    })
}
