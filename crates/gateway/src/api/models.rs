//! `GET /v1/models` and `/v1/models/{id}`.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::body::{self, Reply};
use crate::engine::{Code, EngineFacts, Fault, ModelFacts};

/// All served models.
pub(super) fn list(facts: &EngineFacts) -> Response<Reply> {
    let data: Vec<Value> = facts
        .models
        .iter()
        .map(|model| card(facts, model))
        .collect();
    body::json(StatusCode::OK, &json!({"object": "list", "data": data}))
}

/// One served model.
///
/// # Errors
/// It is not served.
pub(super) fn one(facts: &EngineFacts, id: &str) -> Result<Response<Reply>, Fault> {
    let model = resolve(facts, Some(id))?;
    Ok(body::json(StatusCode::OK, &card(facts, model)))
}

/// The model of this name, or the default.
///
/// # Errors
/// There is none, or none of that name.
pub(super) fn resolve<'a>(
    facts: &'a EngineFacts,
    id: Option<&str>,
) -> Result<&'a ModelFacts, Fault> {
    let Some(id) = id else {
        return facts
            .models
            .first()
            .ok_or_else(|| Fault::new(Code::Unavailable, "no model is served yet"));
    };
    facts
        .models
        .iter()
        .find(|model| model.id == id)
        .ok_or_else(|| {
            let asked: String = id.chars().take(128).collect();
            let served: Vec<&str> = facts.models.iter().map(|model| model.id.as_str()).collect();
            let message = format!(
                "model `{asked}` is not served here; served: {}",
                served.join(", ")
            );
            Fault::new(Code::ModelNotFound, message).on("model")
        })
}

fn card(facts: &EngineFacts, model: &ModelFacts) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "cofferdam",
        "root": model.id,
        "parent": null,
        "max_model_len": facts.limit().map(|limit| limit.max_model_len),
        "max_prompt_tokens": facts.limit().map(|limit| limit.max_prompt_tokens),
        // What a client cannot try without being refused elsewhere.
        "capabilities": {"cache_salt": true},
    })
}

/// Undoes percent-encoding; what is not properly encoded stays as it is.
pub(super) fn unescape(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| first == b'%').and_then(|hex| {
            let hex = std::str::from_utf8(hex).ok()?;
            u8::from_str_radix(hex, 16)
                .ok()
                .filter(|_| !hex.starts_with('+'))
        });
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_oddities_left_alone() {
        assert_eq!(unescape("org%2Fmodel%20a"), "org/model a");
        assert_eq!(unescape("100%"), "100%");
        assert_eq!(unescape("%zz%+1"), "%zz%+1");
        assert_eq!(unescape("%C3%A9"), "é");
    }
}
