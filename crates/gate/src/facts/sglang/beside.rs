//! What is kept beside the pool of whole attention: windows, states, tiers, drafts.

use super::{RANKS_MAX, Said};
use crate::facts::answers::Page;
use crate::facts::figure::{Fact, Figure, TOKENS_MAX, Unknown};
use crate::facts::json::Doc;
use crate::facts::node::Aside;
use crate::facts::prometheus::Metrics;

/// Settings of which each names a further place for KV, and what it is. The first must be told:
/// every version has it.
const TIERS: [(&str, &str); 13] = [
    (
        "enable_hierarchical_cache",
        "a hierarchical cache (HiCache)",
    ),
    ("hicache_storage_backend", "a storage tier of the cache"),
    ("radix_cache_backend", "a prefix cache of another kind"),
    ("enable_lmcache", "LMCache"),
    ("enable_flexkv", "FlexKV"),
    ("enable_hisparse", "a sparse tier (HiSparse)"),
    (
        "disaggregation_decode_enable_offload_kvcache",
        "KV that decode offloads",
    ),
    ("kv_store_backend", "a store of KV"),
    (
        "enable_unified_cache_external_linker",
        "a cache that is linked to others",
    ),
    (
        "enable_unified_memory",
        "one memory for pools of several kinds",
    ),
    ("enable_mm_global_cache", "a store of images' embeddings"),
    ("enable_prefix_mm_cache", "a cache of images' embeddings"),
    (
        "decoupled_spec_role",
        "drafts of speculative decoding in another process",
    ),
];

const SPECULATIVE: &str = "speculative_algorithm";
const STATES: &str = "states of recurrent layers (Mamba)";
/// Settings that only models with such states have.
const RECURRENT: [(&str, &str); 2] = [
    ("max_mamba_cache_size", STATES),
    ("uses_mamba_radix_cache", STATES),
];

pub(super) fn read(said: &Said) -> Fact<Vec<Aside>> {
    let info = &said.info;
    let mut asides = settings(info)?;
    for page in [info, &said.loads] {
        sizes(page, &mut asides)?;
    }
    told(said)?;
    if let Ok(metrics) = said.metrics {
        let seen = asides.len();
        gauges(metrics, "sglang:mamba_", STATES, &mut asides);
        if !asides[..seen].iter().any(|it| it.tokens.is_some()) {
            gauges(metrics, "sglang:swa_", "a sliding-window pool", &mut asides);
        }
        gauges(
            metrics,
            "sglang:hicache_host_",
            "a hierarchical cache (HiCache)",
            &mut asides,
        );
        other_gauges(metrics, &mut asides);
    }
    Ok(asides)
}

/// By settings, which are the same in an answer and in a log.
pub(crate) fn settings(info: &Page) -> Fact<Vec<Aside>> {
    let mut asides = Vec::new();
    for (n, (field, what)) in TIERS.into_iter().enumerate() {
        switched(info, field, what, n == 0, &mut asides)?;
    }
    let drafts = "drafts of speculative decoding";
    switched(info, SPECULATIVE, drafts, true, &mut asides)?;
    for (field, what) in RECURRENT {
        switched(info, field, what, false, &mut asides)?;
    }
    Ok(asides)
}

/// A setting that is on, whatever it says.
fn switched(info: &Page, field: &str, what: &str, must: bool, asides: &mut Vec<Aside>) -> Fact<()> {
    let doc = info.doc()?;
    let says = match doc.at(field).is_some_and(serde_json::Value::is_u64) {
        true => doc
            .number(field, 0, TOKENS_MAX)
            .map(|it| (it.value.to_string(), it.source)),
        false => doc.setting(field).map(|it| (it.value, it.source)),
    };
    match says {
        Ok((says, source)) => {
            if is_on(&says) {
                let what = match says.as_str() {
                    "true" => what.to_owned(),
                    says => format!("{what}: {says}"),
                };
                let tokens = None;
                asides.push(Aside {
                    what,
                    tokens,
                    source,
                });
            }
            Ok(())
        }
        Err(Unknown::NotReported { .. }) if !must => Ok(()),
        Err(why) => Err(why),
    }
}

/// Something that a setting says other than that there is nothing.
fn is_on(says: &str) -> bool {
    let says = says.to_lowercase();
    !matches!(
        says.as_str(),
        "" | "none" | "null" | "false" | "off" | "no" | "0"
    )
}

/// Of windows and recurrent layers either settings or metrics must speak: older versions say
/// nothing of them, and by default nobody counts them.
fn told(said: &Said) -> Fact<()> {
    let doc = said.info.doc()?;
    for (field, prefix) in [
        ("uses_mamba_radix_cache", "sglang:mamba_"),
        (
            "internal_states[0].memory_usage.token_capacity_swa",
            "sglang:swa_",
        ),
    ] {
        let counted = said.metrics.as_ref().is_ok_and(|it| it.has_prefix(prefix));
        let says_nothing = matches!(doc.setting(field), Err(Unknown::NotReported { .. }));
        if says_nothing && !counted {
            let looked = format!("{}, or {prefix}*", doc.source(field));
            return crate::facts::combine::not_reported(&looked);
        }
    }
    Ok(())
}

/// Sizes of pools of which each rank tells those that it has: from 0.5.19 on the tokens of its
/// sliding-window pool, null where it has none. Nothing is known of others but that they are there.
fn sizes(page: &Page, asides: &mut Vec<Aside>) -> Fact<()> {
    let Ok(doc) = page.doc() else { return Ok(()) };
    let mut places = vec![(0, String::new()), (0, "memory_usage".to_owned())];
    for (list, memory) in [("internal_states", "memory_usage"), ("loads", "memory")] {
        for n in 0..doc.len(list).min(RANKS_MAX as usize) {
            places.push((n, format!("{list}[{n}]")));
            places.push((n, format!("{list}[{n}].{memory}")));
        }
    }
    for (rank, place) in places {
        for (name, field) in of_pools(doc, &place) {
            // 0 and null are no pool.
            match doc.number(&field, 0, TOKENS_MAX) {
                Ok(it) if it.value == 0 => {}
                Ok(it) => asides.push(of_size(rank, &name, it)),
                Err(Unknown::NotReported { .. }) => {}
                Err(why) => return Err(why),
            }
        }
    }
    Ok(())
}

/// Names of an object that tell the size of a pool which is not the one of whole attention, and
/// where they stand.
fn of_pools(doc: &Doc, place: &str) -> Vec<(String, String)> {
    const SIZES: [&str; 3] = ["max_total_num_tokens", "token_capacity", "state_pool_size"];
    let object = match place {
        "" => Some(doc.root()),
        place => doc.at(place),
    };
    let names = object.and_then(|it| it.as_object()).into_iter().flatten();
    let names = names.map(|(name, _)| name);
    let other = names.filter(|name| {
        let plain = matches!(name.as_str(), "max_total_num_tokens" | "token_capacity");
        !plain && SIZES.iter().any(|it| name.contains(it))
    });
    let dot = if place.is_empty() { "" } else { "." };
    other
        .map(|name| (name.clone(), format!("{place}{dot}{name}")))
        .collect()
}

/// A window's pool counts tokens as the whole one does; what others count is not known.
fn of_size(rank: usize, name: &str, size: Figure<u64>) -> Aside {
    let window = ["swa", "window", "full"].iter().any(|it| name.contains(it));
    let (what, tokens) = match window {
        true => (
            format!("a sliding-window pool of rank {rank}"),
            Some(size.value),
        ),
        false => (format!("a pool of its own ({name} of rank {rank})"), None),
    };
    Aside {
        what,
        tokens,
        source: size.source,
    }
}

/// `sglang:swa_available_tokens` and the like: servers without such a pool say 0.
fn gauges(metrics: &Metrics, prefix: &str, what: &str, asides: &mut Vec<Aside>) {
    let some = |it: &&crate::facts::prometheus::Sample| {
        let counts = it.name.ends_with("_tokens") || it.name.ends_with("usage");
        it.name.starts_with(prefix) && counts && it.value.parse().is_ok_and(|n: f64| n > 0.0)
    };
    let known = asides.iter().any(|it| it.what.starts_with(what));
    if let Some(sample) = metrics.all().find(some).filter(|_| !known) {
        asides.push(Aside {
            what: what.to_owned(),
            tokens: None,
            source: metrics.source(sample.describe(&super::RANK_LABELS)),
        });
    }
}

/// Every pool has gauges of what is free, used and evictable in it, under its own name.
fn other_gauges(metrics: &Metrics, asides: &mut Vec<Aside>) {
    const KNOWN: [&str; 5] = ["kv", "full", "swa", "mamba", "hicache_host"];
    const GAUGES: [&str; 3] = ["_available_tokens", "_evictable_tokens", "_capacity_tokens"];
    for sample in metrics.all() {
        let name = sample.name.strip_prefix("sglang:").unwrap_or_default();
        let pool = GAUGES.iter().find_map(|it| name.strip_suffix(it));
        let some = sample.value.parse().is_ok_and(|n: f64| n > 0.0);
        let Some(pool) = pool.filter(|it| some && !KNOWN.contains(it)) else {
            continue;
        };
        let what = format!("a pool of its own ({pool})");
        if !asides.iter().any(|it| it.what == what) {
            asides.push(Aside {
                what,
                tokens: None,
                source: metrics.source(sample.describe(&super::RANK_LABELS)),
            });
        }
    }
}
