//! vLLM's pairs: references, used once, twice, late and for another prompt.

use scripted::tokens::encode;
use scripted::{Act, Engine, Fleet, Rule, Whose, expected_text, whose};
use serde_json::{Value, json};

use crate::talk::{SOON, post, send};

/// What vLLM's prefill is asked.
fn ask(prompt: &str) -> Value {
    let transfer = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null});
    json!({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": transfer})
}

async fn reference(fleet: &Fleet, prompt: &str) -> Value {
    let got = post(fleet.address("prefill"), "/v1/completions", &ask(prompt)).await;
    got.json()["kv_transfer_params"].clone()
}

async fn decode(fleet: &Fleet, prompt: &str, transfer: &Value) -> crate::talk::Got {
    let body = json!({"prompt": prompt, "max_tokens": 6, "kv_transfer_params": transfer});
    post(fleet.address("decode"), "/v1/completions", &body).await
}

fn text(got: &crate::talk::Got) -> String {
    got.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_reference_is_good_once() {
    let fleet = Fleet::start(Engine::vllm_pair()).await.unwrap();
    reference(&fleet, "somebody else's").await;
    let transfer = reference(&fleet, "mine").await;
    assert_eq!(transfer["do_remote_prefill"], true);
    assert_eq!(transfer["remote_num_tokens"], 4);
    assert_eq!(
        text(&decode(&fleet, "mine", &transfer).await),
        expected_text("mine", 6)
    );
    let again = text(&decode(&fleet, "mine", &transfer).await);
    assert_eq!(whose(&encode("mine"), &again), Whose::Foreign);
    assert_eq!(again, expected_text("somebody else's", 6));
    let counts = fleet.all();
    assert_eq!(
        (
            counts.references,
            counts.references_used,
            counts.references_misused
        ),
        (2, 1, 1)
    );
    assert_eq!(fleet.references_unused(), 1);
}

#[tokio::test]
async fn a_reference_gives_the_words_of_the_prompt_that_it_was_made_for() {
    let fleet = Fleet::start(Engine::vllm_pair()).await.unwrap();
    let transfer = reference(&fleet, "theirs").await;
    assert_eq!(
        text(&decode(&fleet, "mine", &transfer).await),
        expected_text("theirs", 6)
    );
    assert_eq!(fleet.counts("decode").references_misused, 1);
}

#[tokio::test]
async fn a_lease_ends_and_unknown_references_fail() {
    let [prefill, mut decode_engine] = Engine::vllm_pair();
    decode_engine.lease_ms = 0;
    let fleet = Fleet::start([prefill, decode_engine]).await.unwrap();
    let transfer = reference(&fleet, "mine").await;
    let got = decode(&fleet, "mine", &transfer).await;
    assert_ne!(text(&got), expected_text("mine", 6));
    let got = decode(
        &fleet,
        "mine",
        &json!({"do_remote_prefill": true, "remote_request_id": "x"}),
    )
    .await;
    assert_eq!(
        (got.status, &got.json()["error"]["type"]),
        (500, &json!("InternalServerError"))
    );
}

#[tokio::test]
async fn without_a_reference_decode_computes_itself() {
    let fleet = Fleet::start(Engine::vllm_pair()).await.unwrap();
    assert_eq!(
        text(&decode(&fleet, "mine", &Value::Null).await),
        expected_text("mine", 6)
    );
    fleet.rule(Rule::new(Act::NoReference).on("prefill"));
    assert_eq!(reference(&fleet, "mine").await, Value::Null);
}

#[tokio::test]
async fn who_leaves_while_decode_reads_breaks_the_transfer() {
    let [prefill, decode_engine] = Engine::vllm_pair();
    let fleet = Fleet::start([prefill, decode_engine.paced(0, 60_000, 0)])
        .await
        .unwrap();
    let transfer = reference(&fleet, "mine").await;
    let body = json!({"prompt": "mine", "kv_transfer_params": transfer});
    let leaving = send(fleet.address("decode"), "/v1/completions", &body).await;
    assert!(fleet.until(SOON, |it| it.references_used == 1).await);
    drop(leaving);
    assert!(fleet.quiet(SOON).await);
    assert_eq!(fleet.counts("decode").broken, 1);
}
