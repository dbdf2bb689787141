//! Refusals, in each engine's envelope.

use crate::engine::{Dialect, Engine};

use super::{Shape, quoted};

/// The type that goes with a status.
pub(super) fn kind(status: u16) -> &'static str {
    match status {
        400 => "BadRequestError",
        404 => "NotFoundError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        _ => "InternalServerError",
    }
}

/// The body of a refusal.
pub(crate) fn refusal(
    dialect: Dialect,
    shape: Shape,
    status: u16,
    message: Option<&str>,
) -> String {
    let plain = match status {
        400 => "Bad request",
        404 => "Not found",
        429 => "Too many requests",
        503 => "The request queue is full.",
        _ => "Internal server error",
    };
    let (kind, message) = (kind(status), quoted(message.unwrap_or(plain)));
    match (dialect, shape) {
        (Dialect::Sglang, Shape::Generate) => format!(r#"{{"error":{{"message":{message}}}}}"#),
        (Dialect::Sglang, _) => format!(
            r#"{{"object":"error","message":{message},"type":"{kind}","param":null,"code":{status}}}"#
        ),
        (Dialect::Vllm, _) => format!(
            r#"{{"error":{{"message":{message},"type":"{kind}","param":null,"code":{status}}}}}"#
        ),
        (Dialect::Llama, _) => {
            let kind = match status {
                400 => "invalid_request_error",
                503 => "unavailable_error",
                _ => "server_error",
            };
            format!(r#"{{"error":{{"code":{status},"message":{message},"type":"{kind}"}}}}"#)
        }
    }
}

/// What is said to a prompt that is too long.
pub(crate) struct TooLong {
    /// SGLang's words.
    pub(crate) message: String,
    /// The whole body of a 400.
    pub(crate) body: String,
    /// SGLang's tokenizer has refused it, not its scheduler.
    pub(crate) at_once: bool,
}

/// Whether a prompt is too long, and what is then said.
pub(crate) fn over_length(engine: &Engine, shape: Shape, tokens: u64) -> Option<TooLong> {
    if tokens <= engine.longest_prompt() {
        return None;
    }
    let (context, limit) = (engine.context, engine.max_req_input_len());
    let message = match tokens >= context {
        true => format!(
            "The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        ),
        false => too_long_for_pool(tokens, limit),
    };
    let body = match engine.dialect {
        Dialect::Sglang => refusal(engine.dialect, shape, 400, Some(&message)),
        Dialect::Vllm => {
            // Tokenizing stops one behind the limit, so that this is what vLLM has counted.
            let counted = context + 1;
            format!(
                r#"{{"error":{{"message":"This model's maximum context length is {context} tokens. However, your prompt contains at least {counted} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={counted})","type":"BadRequestError","param":"input_tokens","code":400}}}}"#
            )
        }
        Dialect::Llama => format!(
            r#"{{"error":{{"code":400,"message":"request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":{tokens},"n_ctx":{context}}}}}"#
        ),
    };
    Some(TooLong {
        message,
        body,
        at_once: tokens >= context,
    })
}

/// The words of SGLang's scheduler.
pub(crate) fn too_long_for_pool(tokens: u64, limit: u64) -> String {
    format!(
        "Input length ({tokens} tokens) exceeds the maximum allowed length ({limit} tokens). Use a shorter input or enable --allow-auto-truncate."
    )
}
