//! What a server says of itself before it is asked anything: the context that it advertises.

use crate::client::TenantEndpoint;
use gate::facts::{Trouble, net};
use serde_json::Value;
use std::time::Duration;

/// Time for the list of models.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of it.
const BYTES: usize = 8 << 20;
/// Fields by which servers name the tokens of a context, at an entry of `/v1/models`.
const FIELDS: [&str; 8] = [
    "/loaded_context_length",
    "/max_model_len",
    "/meta/n_ctx",
    "/context_length",
    "/context_window",
    "/max_context_length",
    "/max_input_tokens",
    "/top_provider/context_length",
];

/// What `/v1/models` says of the model that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Tokens of the context; of all models the longest where none is named.
    pub context: Option<u64>,
    /// Whether `cache_salt` is understood. Engines that take one need not say so.
    pub salts: bool,
}

/// What the list of models says, as far as it can be read.
pub async fn said(endpoint: &TenantEndpoint) -> Said {
    let address = endpoint.address.with_path("/v1/models");
    let end = tokio::time::Instant::now() + LIMIT;
    let body = net::get(&address, endpoint.key.as_ref(), &endpoint.tls, BYTES, end).await;
    let models = body.ok().map(|body| body.into_bytes());
    let models = models.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
    let (models, model) = (models.unwrap_or_default(), endpoint.model.as_deref());
    Said {
        context: context(&models, model),
        salts: salts(&models, model),
    }
}

/// Whether the list of models can be read with this key.
///
/// # Errors
/// It cannot, and why.
pub async fn models(endpoint: &TenantEndpoint) -> Result<(), Trouble> {
    let address = endpoint.address.with_path("/v1/models");
    let end = tokio::time::Instant::now() + LIMIT;
    let body = net::get(&address, endpoint.key.as_ref(), &endpoint.tls, BYTES, end).await;
    body.map(drop)
}

/// Whether there is something at the path that is asked, whatever it says to a GET.
pub async fn answers(endpoint: &TenantEndpoint) -> bool {
    let address = endpoint.address.with_path(endpoint.dialect.path());
    let end = tokio::time::Instant::now() + LIMIT;
    let body = net::get(&address, endpoint.key.as_ref(), &endpoint.tls, BYTES, end).await;
    !matches!(body, Err(Trouble::Absent { status: 404 }))
}

fn context(models: &Value, model: Option<&str>) -> Option<u64> {
    let all = models["data"].as_array().or(models.as_array())?;
    let tokens = |it: &Value| {
        // Some write it as text, or with a point.
        let count = |it: &Value| match it {
            Value::String(text) => text.parse().ok(),
            it => it.as_u64().or(it
                .as_f64()
                .filter(|it| it.fract() == 0.0)
                .map(|it| it as u64)),
        };
        let of = |field: &&str| count(it.pointer(field)?).filter(|it| *it > 0);
        FIELDS.iter().find_map(of)
    };
    let named = all
        .iter()
        .find(|it| model.is_some() && it["id"].as_str() == model);
    let named = named.and_then(tokens);
    named.or_else(|| all.iter().filter_map(tokens).max())
}

fn salts(models: &Value, model: Option<&str>) -> bool {
    let all = models["data"].as_array().into_iter().flatten();
    let mut of = all.filter(|it| model.is_none_or(|model| it["id"] == model));
    of.any(|it| it["capabilities"]["cache_salt"] == true)
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
            (json!({"id": "m", "max_model_len": "4000"}), Some(4000)),
            (json!({"id": "m", "max_model_len": 4000.0}), Some(4000)),
            (json!({"id": "m", "max_model_len": -1}), None),
            (
                json!({"id": "m", "top_provider": {"context_length": 9000}}),
                Some(9000),
            ),
            // What the model could have is not what was loaded.
            (
                json!({"id": "m", "max_context_length": 32_768, "loaded_context_length": 4096}),
                Some(4096),
            ),
            (
                json!({"id": "m", "max_context_length": 32_768}),
                Some(32_768),
            ),
        ] {
            let models = json!({ "data": [entry] });
            assert_eq!(context(&models, Some("m")), expected);
            assert_eq!(context(&models["data"], Some("m")), expected);
        }
        assert_eq!(context(&json!({"object": "list"}), None), None);
    }

    #[test]
    fn salts_are_understood_where_the_model_says_so() {
        let models = json!({"data": [{"id": "old"}, {"id": "odd", "capabilities": ["cache_salt"]},
                                     {"id": "new", "capabilities": {"cache_salt": true}}]});
        let said = [Some("old"), Some("odd"), Some("new"), None].map(|it| salts(&models, it));
        assert_eq!(said, [false, false, true, true]);
        assert!(!salts(&Value::Null, None));
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
