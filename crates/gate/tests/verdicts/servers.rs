//! Recorded servers, changed as real ones differ.

use gate::facts::Node;
use gate::facts::recording::{BASE, Recording};
use serde_json::{Value, json};
use std::path::Path;

pub fn fixture(name: &str) -> Recording {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Recording::load(&fixtures.join(name))
}

/// SGLang 0.5.23 with a pool that holds its context of 4,096.
pub fn sglang(role: &str) -> Recording {
    pool_of_8000(fixture(&format!("sglang-0.5.23-{role}")).only_answers(&[]))
}

/// The same, 0.5.19.
pub fn old_sglang(role: &str) -> Recording {
    pool_of_8000(fixture(&format!("sglang-0.5.19-{role}")).only_answers(&[]))
}

/// Its start-up log alone.
pub fn sglang_log(role: &str) -> Recording {
    pool_of_8000(fixture(&format!("sglang-0.5.23-{role}")).only_log())
}

/// vLLM 0.32 with NIXL, started for development.
pub fn vllm() -> Recording {
    fixture("vllm-0.32.0").only_answers(&[])
}

/// The same as an operator runs it: nothing at `/server_info`.
pub fn plain_vllm() -> Recording {
    fixture("vllm-0.32.0").only_answers(&["/server_info"])
}

/// llama.cpp with two slots of 1,024.
pub fn llama() -> Recording {
    fixture("llama.cpp")
}

/// A vLLM that answers alone: no connector, no series of one.
pub fn lone_vllm() -> Recording {
    let mut it = vllm();
    info(&mut it, "/vllm_config/kv_transfer_config", json!(null));
    let metrics = text(&it, "/metrics");
    let kept = metrics.lines().filter(|it| !it.contains("vllm:nixl_"));
    let kept = kept.collect::<Vec<_>>().join("\n") + "\n";
    it.answers.insert("/metrics".into(), kept.into_bytes());
    it
}

/// With the series of a guard that is in effect.
pub fn guarded(mut it: Recording, series: &str) -> Recording {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/guard");
    let series = std::fs::read(fixtures.join(series)).unwrap();
    it.answers.get_mut("/metrics").unwrap().extend(series);
    it
}

pub fn text(it: &Recording, path: &str) -> String {
    String::from_utf8_lossy(&it.answers[path]).into_owned()
}

/// Sets what stands at a JSON pointer of `/server_info`, which must be there.
pub fn info(it: &mut Recording, pointer: &str, value: Value) {
    it.edit("/server_info", |root| {
        let place = root.pointer_mut(pointer);
        *place.unwrap_or_else(|| panic!("{pointer}")) = value;
    });
}

/// The same, where there need be nothing yet.
pub fn put(it: &mut Recording, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    it.edit("/server_info", |root| {
        root.pointer_mut(parent).unwrap()[name] = value;
    });
}

/// Replaces a label of `vllm:cache_config_info`.
pub fn label(it: &mut Recording, name: &str, value: &str) {
    let metrics = text(it, "/metrics");
    let start = metrics.find(&format!(",{name}=\"")).unwrap() + 1;
    let end = start + name.len() + 2;
    let close = end + metrics[end..].find('"').unwrap();
    let changed = format!("{}{name}=\"{value}{}", &metrics[..start], &metrics[close..]);
    it.answers.insert("/metrics".into(), changed.into_bytes());
}

/// Appends to `/metrics`.
pub fn series(it: &mut Recording, lines: &str) {
    let metrics = it.answers.get_mut("/metrics").unwrap();
    metrics.extend(lines.as_bytes());
}

/// Says another version, wherever it is said.
pub fn version(mut it: Recording, old: &str, new: &str) -> Recording {
    for body in it.answers.values_mut() {
        let (old, new) = (
            format!("\"version\":\"{old}\""),
            format!("\"version\":\"{new}\""),
        );
        let text = String::from_utf8_lossy(body).replace(&old, &new);
        *body = text.into_bytes();
    }
    it
}

/// What SGLang's formula makes of a pool of 8,000 instead of 2,000.
pub fn pool_of_8000(mut it: Recording) -> Recording {
    for (path, body) in &mut it.answers {
        let mut text = String::from_utf8_lossy(body).into_owned();
        if path == "server.log" {
            text = text.replace("#tokens: 2000", "#tokens: 8000");
            text = text.replace("max_total_num_tokens=2000", "max_total_num_tokens=8000");
            text = text.replace("max_total_tokens=2000", "max_total_tokens=8000");
            let warning = |line: &&str| !line.contains("KV pool holds");
            text = text.lines().filter(warning).collect::<Vec<_>>().join("\n");
        }
        for (old, new) in [
            ("tokens\":2000", "tokens\":8000"),
            ("capacity\":2000", "capacity\":8000"),
            ("} 2000.0", "} 8000.0"),
            ("input_len\":1994", "input_len\":4090"),
        ] {
            text = text.replace(old, new);
        }
        *body = text.into_bytes();
    }
    it
}

/// All recordings claim to come from one address; two servers have two.
pub fn nodes_at(base: &str, it: &Recording) -> Vec<Node> {
    let text = serde_json::to_string(&it.nodes()).unwrap();
    serde_json::from_str(&text.replace(BASE, base)).unwrap()
}
