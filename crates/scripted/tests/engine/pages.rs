//! What engines say of themselves, as `gate` reads it, and the log as another process reads it.

use gate::facts::net::{Address, Limits, NetTarget, Tls, TlsFiles, describe};
use gate::facts::{Engine as Software, Node, Role as Part};
use scripted::{Engine, Fleet};
use serde_json::json;

use crate::talk::{get, post};

async fn node(fleet: &Fleet, name: &str) -> Node {
    let target = NetTarget {
        name: name.into(),
        address: Address::parse(&fleet.url(name)).unwrap(),
        key: None,
        tls: Tls::new(&TlsFiles::default()).unwrap(),
    };
    let mut nodes = describe(&[target], &Limits::default()).await.remove(0);
    nodes.remove(0)
}

#[tokio::test]
async fn gate_measures_sglangs_limits() {
    let [prefill, decode] = Engine::sglang_pair();
    let engines = [
        prefill.sized(4096, 2000),
        decode.sized(4096, 8000),
        Engine::sglang(),
    ];
    let fleet = Fleet::start(engines).await.unwrap();
    for (name, part, longest, pool) in [
        ("prefill", Part::Prefill, 1993, 2000),
        ("decode", Part::Decode, 4089, 8000),
        ("single", Part::Whole, 4089, 8000),
    ] {
        let node = node(&fleet, name).await;
        assert_eq!(node.role.as_ref().unwrap().value, part);
        assert_eq!(node.max_prompt.as_ref().unwrap().value, longest);
        assert_eq!(
            node.max_prompt.unwrap().value,
            fleet.engine(name).longest_prompt()
        );
        assert_eq!(node.ranks.unwrap()[0].pool.as_ref().unwrap().value, pool);
        assert_eq!(node.context.unwrap().value, 4096);
        assert_eq!(node.engine.unwrap().value, Software::Sglang);
    }
}

#[tokio::test]
async fn gate_measures_vllms_and_llamas_limits() {
    let engines = [
        Engine::vllm().sized(8192, 9600),
        Engine::llama().named("llama").sized(1024, 1024),
    ];
    let fleet = Fleet::start(engines).await.unwrap();
    let vllm = node(&fleet, "single").await;
    assert_eq!(vllm.engine.unwrap().value, Software::Vllm);
    assert_eq!(vllm.context.unwrap().value, 8192);
    let llama = node(&fleet, "llama").await;
    assert_eq!(llama.max_prompt.unwrap().value, 1023);
}

#[tokio::test]
async fn another_process_reads_log_and_counts_and_sets_the_script() {
    let fleet = Fleet::start([Engine::sglang()]).await.unwrap();
    let at = fleet.address("single");
    let script = json!({"rules": [{"marker": "boom", "act": {"refuse": {"status": 503}}}]});
    assert_eq!(post(at, "/scripted/script", &script).await.status, 200);
    assert_eq!(
        post(at, "/scripted/script", &json!({"rules": [{"no": 1}]}))
            .await
            .status,
        400
    );
    let body = json!({"prompt": "boom", "rid": "r", "bootstrap_room": 5, "cache_salt": "s"});
    assert_eq!(post(at, "/v1/completions", &body).await.status, 503);
    let log = get(at, "/scripted/log").await.json();
    assert_eq!(
        (&log[0]["what"], &log[0]["rid"], &log[0]["room"]),
        (&json!("arrived"), &json!("r"), &json!(5))
    );
    assert_eq!(
        log[0]["fields"],
        json!(["prompt", "rid", "bootstrap_room", "cache_salt"])
    );
    assert_eq!(log[0]["body"], body);
    assert_eq!(
        (&log[1]["what"], &log[1]["status"]),
        (&json!("ended"), &json!(503))
    );
    assert_eq!(
        get(at, "/scripted/counts").await.json()["single"]["arrived"],
        1
    );
    post(at, "/scripted/forget", &json!({})).await;
    assert_eq!(get(at, "/scripted/log").await.json(), json!([]));
}
