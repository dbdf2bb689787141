//! What our own gateway says of its workers.

use gate::facts::recording::Recording;
use gate::facts::{Engine, Node, Role};
use serde_json::{Value, json};

fn info() -> Value {
    let worker = |role: &str, name: &str, pool: u64, prompt: u64| {
        json!({"role": role, "name": name, "epoch": "e", "readiness": {"state": "ready"}, "pool_tokens": pool,
            "page_size": 16, "max_model_len": 8192, "max_prompt_tokens": prompt,
            "model_fingerprint": "0a", "layout_fingerprint": "0b", "pages": {}, "counters": []})
    };
    json!({
        "version": "0.1.0", "models": [{"id": "m", "created": 7}], "readiness": {"state": "ready"},
        "limit": {"max_model_len": 8192, "max_prompt_tokens": 2000, "derivation": ["x"]},
        "workers": [worker("prefill", "prefill-0", 2000, 2000), worker("decode", "decode-0", 9008, 8191)],
        "counters": [], "gateway": {"running": 0, "max_running": 512},
        "handoff": {"checksum": true, "deferred_release": true, "truncates": false},
    })
}

fn nodes(info: &Value) -> Vec<Node> {
    let mut recording = Recording::default();
    recording
        .answers
        .insert("/server_info".into(), info.to_string().into_bytes());
    let models = json!({"data": [{"id": "m", "owned_by": "cofferdam", "max_model_len": 8192, "max_prompt_tokens": 2000}]});
    recording
        .answers
        .insert("/v1/models".into(), models.to_string().into_bytes());
    recording.nodes()
}

#[test]
fn a_gateway_becomes_a_node_a_worker() {
    let nodes = nodes(&info());
    let seen = |it: &Node| {
        let value = |it: &gate::facts::Fact<gate::facts::Measured<u64>>| it.as_ref().unwrap().value;
        (
            it.role.as_ref().unwrap().value,
            it.smallest_pool().unwrap().value,
            value(&it.context),
            value(&it.max_prompt),
            value(&it.advertised),
        )
    };
    // A prefill pool holds the prompt alone, and the gateway lets none through that is longer.
    assert_eq!(seen(&nodes[0]), (Role::Prefill, 2000, 2000, 2000, 2000));
    assert_eq!(seen(&nodes[1]), (Role::Decode, 9008, 8192, 2000, 8192));
    for node in &nodes {
        assert_eq!(node.engine.as_ref().unwrap().value, Engine::Cofferdam);
        assert!(
            node.checksum.as_ref().unwrap().value && node.deferred_release.as_ref().unwrap().value
        );
        assert!(!node.truncates.as_ref().unwrap().value);
        assert_eq!(node.model.as_ref().unwrap().value, "0a");
        assert_eq!(node.layout.as_ref().unwrap().value, "0b");
        assert_eq!(node.page_size.as_ref().unwrap().value, 16);
        assert!(node.warnings.is_empty());
    }
    assert_eq!(nodes[0].name, "recorded prefill-0");
}

/// A request goes to a pair that holds it: less is sent to a smaller pool, unless nobody holds what is
/// said of all.
#[test]
fn of_several_workers_each_is_sent_what_it_holds() {
    let mut info = info();
    let mut small = info["workers"][1].clone();
    for (field, value) in [
        ("name", json!("decode-1")),
        ("pool_tokens", json!(96)),
        ("max_model_len", json!(96)),
        ("max_prompt_tokens", json!(95)),
    ] {
        small[field] = value;
    }
    info["workers"].as_array_mut().unwrap().push(small);
    let sent = |info: &Value| -> Vec<_> {
        let figures = |it: &Node| {
            (
                it.context.as_ref().unwrap().value,
                it.advertised.as_ref().unwrap().value,
            )
        };
        nodes(info)[1..].iter().map(figures).collect()
    };
    assert_eq!(sent(&info), [(8192, 8192), (96, 96)]);
    info["workers"][1]["max_model_len"] = json!(8191);
    assert_eq!(sent(&info), [(8192, 8192), (8192, 8192)]);
}

#[test]
fn a_worker_that_is_away_has_no_pool() {
    let mut info = info();
    info["workers"][1]["pool_tokens"] = json!(0);
    info["workers"][1]["page_size"] = json!(0);
    info["workers"][1]["model_fingerprint"] = Value::Null;
    info["workers"][1]["readiness"] = json!({"state": "not_ready", "reason": "not connected"});
    info["limit"] = Value::Null;
    let nodes = nodes(&info);
    assert!(nodes[0].smallest_pool().is_ok() && nodes[1].smallest_pool().is_err());
    assert!(
        nodes
            .iter()
            .all(|it| it.context.is_err() && it.max_prompt.is_err())
    );
    assert!(nodes[1].model.is_err() && nodes[1].page_size.is_err());
    assert_eq!(nodes[1].warnings[0].text, "it is not_ready: not connected");
    info["workers"] = json!([]);
    assert!(self::nodes(&info)[0].ranks.is_err());
}
