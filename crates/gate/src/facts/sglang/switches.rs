//! What is switched on: truncation, transfer backend, checksum, deferred release, bounds.

use super::Said;
use crate::facts::answers::Page;
use crate::facts::combine::{agreed, derived, not_reported};
use crate::facts::figure::{Fact, Figure, Unknown};
use crate::facts::json::absurd;
use crate::facts::node::Node;
use crate::facts::version::Version;

const DEFERRED: &str = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE";
const RELEASE_S: &str = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT";
const BATCH: &str = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES";

pub(super) fn read(said: &Said, node: &mut Node) {
    let info = &said.info;
    node.truncates = info.switch("allow_auto_truncate");
    node.backend = info.text("disaggregation_transfer_backend");
    node.checksum = since(
        info.switch("disaggregation_enable_kv_checksum"),
        &node.version,
        (0, 5, 21),
        "there is no KV checksum before 0.5.21",
    );
    node.kv_dtype = kv_dtype(info);
    node.layout = layout(info);
    let early = |default: &str| format!("{default} before 0.5.19");
    node.deferred_release = since(
        env(info, &node.version, DEFERRED, true, |it| match it {
            "1" | "true" | "True" | "TRUE" | "yes" | "y" => Some(true),
            "0" | "false" | "False" | "FALSE" | "no" | "n" => Some(false),
            _ => None,
        }),
        &node.version,
        (0, 5, 19),
        &early("there is no deferred release"),
    );
    node.release_timeout_ms = env(info, &node.version, RELEASE_S, 30_000, |it| {
        let seconds: f64 = it.parse().ok()?;
        (0.0..1e6)
            .contains(&seconds)
            .then_some((seconds * 1000.0) as u64)
    });
    node.batch_bound = env(info, &node.version, BATCH, 0, |it| it.parse().ok());
    node.transfer_timeout_ms = not_reported("nothing that SGLang reports");
}

/// `Ok(false)` for a version that lacks the mechanism altogether.
fn since(
    read: Fact<Figure<bool>>,
    version: &Fact<Figure<Version>>,
    first: (u64, u64, u64),
    formula: &str,
) -> Fact<Figure<bool>> {
    let Ok(version) = version else { return read };
    if read.is_err() && version.value < Version::of_release(first) {
        return Ok(derived(false, formula, vec![version.source.clone()]));
    }
    read
}

fn layout(info: &Page) -> Fact<Figure<String>> {
    let switch = info.switch("enable_page_major_kv_layout")?;
    let name = if switch.value {
        "page-major"
    } else {
        "layer-major"
    };
    let mut layout = Figure::new(name.to_owned(), switch.source);
    for (field, how) in [
        ("enable_kv_cache_sharding", "sharded"),
        ("enable_dsa_cache_layer_split", "split by layers"),
    ] {
        match info.switch(field) {
            Ok(it) if it.value => layout.value += &format!(", {how}"),
            Ok(_) | Err(Unknown::NotReported { .. }) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(layout)
}

/// What was asked for, or, where that is `auto`, what the ranks made of it, if they tell.
fn kv_dtype(info: &Page) -> Fact<Figure<String>> {
    let asked = info.text("kv_cache_dtype")?;
    let ranks = 0..info.len("internal_states").min(super::RANKS_MAX as usize);
    let made = |n| info.text(&format!("internal_states[{n}].kv_cache_dtype"));
    let mut made: Vec<_> = ranks.map(made).filter(Result::is_ok).collect();
    let auto = |it: &Fact<Figure<String>>| it.as_ref().is_ok_and(|it| it.value == "auto");
    if asked.value != "auto" || made.iter().all(auto) {
        made.retain(|it| !auto(it));
        made.insert(0, Ok(asked));
    }
    agreed(made, &mut Vec::new())
}

/// A setting of the environment, which servers tell only with SGLANG_EXPOSE_OWN_ENV_VARS; then one
/// that is not set has its default, which is the same from 0.5.21 to 0.5.23 (read in code).
fn env<T>(
    info: &Page,
    version: &Fact<Figure<Version>>,
    name: &str,
    default: T,
    parse: fn(&str) -> Option<T>,
) -> Fact<Figure<T>> {
    let all = "internal_states[0].env_vars";
    let field = format!("{all}.{name}");
    let doc = info.doc()?;
    if doc.at(&field).is_some() {
        let text = doc.text(&field)?;
        let value = parse(&text.value);
        let why = "not a value of this setting";
        let value = value.ok_or_else(|| absurd(&text.value, text.source.clone(), why))?;
        return Ok(Figure::new(value, text.source));
    }
    let version = version.as_ref().map_err(Clone::clone)?;
    let known = Version::of_release((0, 5, 21))..=Version::of_release((0, 5, 23));
    if doc.at(all).is_some_and(serde_json::Value::is_object) && known.contains(&version.value) {
        let from = vec![doc.source(all), version.source.clone()];
        return Ok(derived(
            default,
            &format!("default, as {name} is not set"),
            from,
        ));
    }
    let looked = doc.source(&field);
    not_reported(&format!(
        "{looked}, told with SGLANG_EXPOSE_OWN_ENV_VARS only"
    ))
}
