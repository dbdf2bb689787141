//! What is kept beside the pool of whole attention: windows, states, tiers, drafts.

use super::Said;
use crate::facts::answers::Page;
use crate::facts::figure::{Fact, TOKENS_MAX, Unknown};
use crate::facts::node::Aside;
use crate::facts::prometheus::Metrics;

/// Settings of which each names a further place for KV, and what it is. The first must be told:
/// every version has it.
pub(crate) const TIERS: [(&str, &str); 12] = [
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
    ("enable_mm_global_cache", "a store of images' embeddings"),
    ("enable_prefix_mm_cache", "a cache of images' embeddings"),
    (
        "decoupled_spec_role",
        "drafts of speculative decoding in another process",
    ),
];

const SPECULATIVE: &str = "speculative_algorithm";

pub(super) fn read(said: &Said) -> Fact<Vec<Aside>> {
    let info = &said.info;
    let mut asides = Vec::new();
    for (n, (field, what)) in TIERS.into_iter().enumerate() {
        switched(info, field, what, n == 0, &mut asides)?;
    }
    switched(
        info,
        SPECULATIVE,
        "drafts of speculative decoding",
        true,
        &mut asides,
    )?;
    for field in ["max_mamba_cache_size", "uses_mamba_radix_cache"] {
        switched(
            info,
            field,
            "states of recurrent layers (Mamba)",
            false,
            &mut asides,
        )?;
    }
    windows(info, &mut asides)?;
    told(said)?;
    if let Ok(metrics) = said.metrics {
        let seen = asides.len();
        gauges(
            metrics,
            "sglang:mamba_",
            "states of recurrent layers (Mamba)",
            &mut asides,
        );
        if !asides[..seen].iter().any(|it| it.tokens.is_some()) {
            gauges(metrics, "sglang:swa_", "a sliding-window pool", &mut asides);
        }
        gauges(
            metrics,
            "sglang:hicache_host_",
            "a hierarchical cache (HiCache)",
            &mut asides,
        );
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
            if !matches!(says.as_str(), "none" | "null" | "false" | "0") {
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

/// From 0.5.19 on each rank tells the tokens of its sliding-window pool, null where it has none.
fn windows(info: &Page, asides: &mut Vec<Aside>) -> Fact<()> {
    for n in 0..info.len("internal_states").min(super::RANKS_MAX as usize) {
        let field = format!("internal_states[{n}].memory_usage.token_capacity_swa");
        match info.count(&field) {
            Ok(it) => asides.push(Aside {
                what: format!("a sliding-window pool of rank {n}"),
                tokens: Some(it.value),
                source: it.source,
            }),
            Err(Unknown::NotReported { .. }) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
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
