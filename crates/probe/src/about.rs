//! What a server says of itself before it is asked anything: the context that it advertises.

use crate::client::Endpoint;
use fleet::{Trouble, net};
use serde_json::Value;
use std::time::Duration;

/// Time for the list of models.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of it.
const BYTES: usize = 8 << 20;
/// Fields by which servers name the tokens of a context, at an entry of `/v1/models`.
const FIELDS: [&str; 6] = [
    "/max_model_len",
    "/meta/n_ctx",
    "/context_length",
    "/context_window",
    "/max_context_length",
    "/max_input_tokens",
];

/// Tokens of the context that `/v1/models` advertises for the model that is asked for; of all of them
/// the longest where none is named.
pub async fn advertised(endpoint: &Endpoint) -> Option<u64> {
    let address = endpoint.address.with_path("/v1/models");
    let end = tokio::time::Instant::now() + LIMIT;
    let body = net::get(&address, endpoint.key.as_ref(), &endpoint.tls, BYTES, end).await;
    let models: Value = serde_json::from_slice(&body.ok()?.into_bytes()).ok()?;
    context(&models, endpoint.model.as_deref())
}

/// Whether the list of models can be read with this key.
///
/// # Errors
/// It cannot, and why.
pub async fn models(endpoint: &Endpoint) -> Result<(), Trouble> {
    let address = endpoint.address.with_path("/v1/models");
    let end = tokio::time::Instant::now() + LIMIT;
    let body = net::get(&address, endpoint.key.as_ref(), &endpoint.tls, BYTES, end).await;
    body.map(drop)
}

/// Whether there is something at the path that is asked, whatever it says to a GET.
pub async fn answers(endpoint: &Endpoint) -> bool {
    let address = endpoint.address.with_path(endpoint.dialect.path());
    let end = tokio::time::Instant::now() + LIMIT;
    let body = net::get(&address, endpoint.key.as_ref(), &endpoint.tls, BYTES, end).await;
    !matches!(body, Err(Trouble::Absent { status: 404 }))
}

fn context(models: &Value, model: Option<&str>) -> Option<u64> {
    let all = models["data"].as_array()?;
    let tokens = |it: &Value| {
        let of = |field: &&str| it.pointer(field)?.as_u64().filter(|it| *it > 0);
        FIELDS.iter().find_map(of)
    };
    let named = all
        .iter()
        .find(|it| model.is_some() && it["id"].as_str() == model);
    let named = named.and_then(tokens);
    named.or_else(|| all.iter().filter_map(tokens).max())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn engines_name_it_differently() {
        // vLLM 0.32 and SGLang 0.5.23; llama.cpp; others.
        for (entry, expected) in [
            (json!({"id": "m", "max_model_len": 8192}), Some(8192)),
            (
                json!({"id": "m", "meta": {"n_ctx": 1024, "n_ctx_train": 8192}}),
                Some(1024),
            ),
            (json!({"id": "m", "context_length": 131_072}), Some(131_072)),
            (json!({"id": "m", "owned_by": "local"}), None),
            (json!({"id": "m", "max_model_len": 0}), None),
            (json!({"id": "m", "max_model_len": "long"}), None),
        ] {
            let models = json!({"data": [entry]});
            assert_eq!(context(&models, Some("m")), expected);
        }
        assert_eq!(context(&json!({"object": "list"}), None), None);
    }

    #[test]
    fn it_is_the_context_of_the_model_that_is_asked_for() {
        let models = json!({"data": [{"id": "small", "max_model_len": 4000},
                                     {"id": "large", "max_model_len": 8000}]});
        assert_eq!(context(&models, Some("small")), Some(4000));
        assert_eq!(context(&models, None), Some(8000));
        assert_eq!(context(&models, Some("another")), Some(8000));
    }
}
