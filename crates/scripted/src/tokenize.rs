//! Text to ids and back, by HTTP.

use http::Response;

use crate::ask::Ask;
use crate::engine::Dialect;
use crate::generate::json;
use crate::shapes::{Shape, quoted, refusal};
use crate::state::State;
use crate::tell::Body;
use crate::tokens;

/// `/tokenize` of vLLM and of llama.cpp.
pub(crate) fn tokenize(state: &State, body: &[u8]) -> Response<Body> {
    let dialect = state.engine.dialect;
    let ask = match Ask::parse(body) {
        Ok(ask) => ask,
        Err(error) => {
            let body = refusal(dialect, Shape::Text, 400, Some(&error.to_string()));
            return json(400, body);
        }
    };
    let ids = ask.prompt.ids();
    let (count, list, longest) = (ids.len(), crate::shapes::list(&ids), state.engine.context);
    json(
        200,
        match dialect {
            Dialect::Llama => format!(r#"{{"tokens":{list}}}"#),
            _ => format!(
                r#"{{"count":{count},"max_model_len":{longest},"tokens":{list},"token_strs":null}}"#
            ),
        },
    )
}

/// `/detokenize` of both.
pub(crate) fn detokenize(state: &State, body: &[u8]) -> Response<Body> {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let ids = value.get("tokens").and_then(serde_json::Value::as_array);
    let ids = ids.into_iter().flatten().filter_map(|it| it.as_u64());
    let text = quoted(&tokens::decode(
        &ids.map(|it| it as u32).collect::<Vec<_>>(),
    ));
    let name = match state.engine.dialect {
        Dialect::Llama => "content",
        _ => "prompt",
    };
    json(200, format!(r#"{{"{name}":{text}}}"#))
}
