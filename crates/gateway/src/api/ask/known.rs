//! Fields that others serve and we do not: which of their values change nothing, and what to do
//! about the rest.

use serde_json::{Value, json};

use super::{Fields, invalid, unsupported};
use crate::engine::Fault;

/// Fields without effect on an answer, whatever their value: a provider's bookkeeping, hints about
/// speed, and the settings of what is switched off here.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "parallel_tool_calls", // there are no tools to call
    "parse_tool_calls",
    "prediction", // may only make an answer faster
    "priority",
    "request_id", // ids are the gateway's own
    "cache_prompt",
    "n_cache_reuse",
    "id_slot",
    "n_keep", // a prompt is never cut
    "n_discard",
    "truncation_side",
    "stream_interval", // of when words are sent, not of which
    "sse_ping_interval",
    "return_token_offsets", // of vLLM's endpoints that only render
    "return_assistant_tokens_mask",
    "spaces_between_special_tokens", // these tokenizers put none
    // How a sampler works that has to be off.
    "repeat_last_n",
    "dynatemp_exponent",
    "mirostat_tau",
    "mirostat_eta",
    "xtc_threshold",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
];

type ChangesNothing = fn(&Value) -> bool;

const NO_TOOLS: &str =
    "tool calls are not implemented; set `tool_choice` to \"none\" or leave it out";
const NO_FUNCTIONS: &str = "function calls are not implemented; leave it out";
const NO_FORM: &str =
    "answers are not held to a form; ask for it in the prompt and check the answer";
const NO_SAMPLER: &str =
    "there is no such sampler; use `temperature`, `top_p`, `top_k` and `min_p`";
const NO_BEAM: &str = "there is no beam search; use `n`";
const OWN_TEMPLATE: &str =
    "the model's own chat template is used; send `prompt` to `/v1/completions` to write your own";
const CHAT_ONLY: &str = "a bare prompt has no chat template; use `/v1/chat/completions`";
const TEXT_ONLY: &str = "answers are text only; leave it out";
const NO_EXTRAS: &str = "answers have no such figures; leave it out";
const OWN_PAGES: &str = "where pages of the KV cache come from is decided here; leave it out";
const NO_ADAPTERS: &str = "there are no adapters; leave it out";
const TOKENS_APART: &str = "answers have no token ids; send the text to `/tokenize`";
const THOUGHTS: &str = "what a model thinks is a part of its text; cut it there";

/// Fields that are known to change answers and are not implemented, with the values that change
/// nothing, which are accepted, and what to do about the rest.
#[rustfmt::skip]
const KNOWN: &[(&str, ChangesNothing, &str)] = &[
    ("tools", empty, NO_TOOLS),
    ("tool_choice", no_tool, NO_TOOLS),
    ("functions", empty, NO_FUNCTIONS),
    ("function_call", no_tool, NO_FUNCTIONS),
    ("response_format", plain_text, NO_FORM),
    ("guided_json", never, NO_FORM),
    ("guided_regex", never, NO_FORM),
    ("guided_choice", never, NO_FORM),
    ("guided_grammar", never, NO_FORM),
    ("structured_outputs", never, NO_FORM),
    ("grammar", empty, NO_FORM),
    ("json_schema", never, NO_FORM),
    ("modalities", text_only, TEXT_ONLY),
    ("audio", never, TEXT_ONLY),
    ("echo", is_false, "a conversation is not repeated in its answer; put the texts together"),
    ("suffix", empty, "text is continued, not filled in; leave it out"),
    ("verbosity", medium, "the model has no such switch; ask for it in the prompt"),
    ("web_search_options", never, "there is no web search; leave it out"),
    ("moderation", never, "answers are not moderated; leave it out"),
    ("documents", empty, "there is no retrieval; write them into a message"),
    ("reasoning_effort", none, CHAT_ONLY),
    ("chat_template_kwargs", empty, CHAT_ONLY),
    ("continue_final_message", is_false, CHAT_ONLY),
    ("add_generation_prompt", is_true, CHAT_ONLY),
    ("chat_template", never, OWN_TEMPLATE),
    ("add_special_tokens", is_false, OWN_TEMPLATE),
    ("logit_processors", empty, "there are no custom logit processors; use `logit_bias`"),
    ("logits_processors", empty, "there are no custom logit processors; use `logit_bias`"),
    ("bad_words", empty, "use `logit_bias` with -100"),
    ("allowed_token_ids", empty, "use `logit_bias`"),
    ("use_beam_search", is_false, NO_BEAM),
    ("length_penalty", one, NO_BEAM),
    ("prompt_logprobs", never, "log-probabilities of the prompt are not computed; leave it out"),
    ("truncate_prompt_tokens", never, "nothing is ever cut to fit; send a shorter prompt"),
    ("kv_transfer_params", empty, OWN_PAGES),
    ("ec_transfer_params", empty, OWN_PAGES),
    ("logprob_token_ids", empty, "use `top_logprobs`"),
    ("repetition_detection", never, "answers are not watched for repetition; use a penalty"),
    ("prompt_embeds", never, "a prompt is text or token ids; use `prompt`"),
    ("n_cmpl", one, "use `n`"),
    ("return_prompt_text", is_false, "send the messages to `/tokenize`, and its tokens to `/detokenize`"),
    ("return_token_ids", is_false, TOKENS_APART),
    ("return_tokens_as_token_ids", is_false, TOKENS_APART),
    ("return_tokens", is_false, TOKENS_APART),
    ("include_reasoning", is_true, THOUGHTS),
    ("reasoning_format", none, THOUGHTS),
    ("thinking_forced_open", is_false, THOUGHTS),
    ("reasoning_control", is_false, THOUGHTS),
    ("thinking_token_budget", never, "thoughts have no limit of their own; use `max_tokens`"),
    ("reasoning_budget", unlimited, "thoughts have no limit of their own; use `max_tokens`"),
    ("mm_processor_kwargs", empty, "input is text only; leave it out"),
    ("media_io_kwargs", empty, "input is text only; leave it out"),
    ("vllm_xargs", empty, "there are no plug-ins; leave it out"),
    ("lora_path", never, NO_ADAPTERS),
    ("lora", empty, NO_ADAPTERS),
    ("repeat_penalty", one, "use `repetition_penalty`, which looks at the whole text"),
    ("typical_p", one, NO_SAMPLER),
    ("top_n_sigma", unlimited, NO_SAMPLER),
    ("mirostat", zero, NO_SAMPLER),
    ("dynatemp_range", zero, NO_SAMPLER),
    ("xtc_probability", zero, NO_SAMPLER),
    ("dry_multiplier", zero, NO_SAMPLER),
    ("samplers", never, "the order of the samplers is fixed; leave it out"),
    ("min_keep", zero, "samplers keep one token at least; leave it out"),
    ("n_probs", zero, "use `logprobs`"),
    ("post_sampling_probs", is_false, "log-probabilities are the model's own; leave it out"),
    ("n_indent", zero, "lines are not measured; leave it out"),
    ("t_max_predict_ms", no_time, "close the connection to end an answer"),
    ("timings_per_token", is_false, NO_EXTRAS),
    ("return_progress", is_false, NO_EXTRAS),
    ("response_fields", empty, NO_EXTRAS),
];

/// Whether a field that an engine could carry out asks for nothing.
pub(super) fn changes_nothing(name: &str, value: &Value) -> bool {
    match name {
        "logprobs" => is_false(value),
        // That it is a part of its text is how we answer, not how an engine does.
        "include_reasoning" => false,
        name => {
            let known = KNOWN.iter().find(|(known, ..)| *known == name);
            known.is_some_and(|(_, changes_nothing, _)| changes_nothing(value))
        }
    }
}

/// Takes out what changes nothing, and refuses by name what would.
///
/// # Errors
/// A field would change the answer.
pub(super) fn judge(fields: &mut Fields) -> Result<(), Fault> {
    for key in HARMLESS {
        fields.take(key);
    }
    for (key, changes_nothing, why) in KNOWN {
        if let Some(value) = fields.take(key)
            && !changes_nothing(&value)
        {
            return Err(unsupported(*key, why));
        }
    }
    Ok(())
}

/// Tools that may not be called. The model is not shown them, so they change nothing.
pub(super) fn unused_tools(fields: &mut Fields) -> Result<(), Fault> {
    for (list, choice) in [("tools", "tool_choice"), ("functions", "function_call")] {
        if fields.look(choice).and_then(Value::as_str) != Some("none") {
            continue;
        }
        match fields.take(list) {
            None | Some(Value::Array(_)) => {}
            Some(_) => return Err(invalid(list, "a list")),
        }
    }
    Ok(())
}

fn never(_: &Value) -> bool {
    false
}
fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}
fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}
fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}
fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
fn no_time(value: &Value) -> bool {
    value.as_f64().is_some_and(|ms| ms <= 0.0)
}
fn unlimited(value: &Value) -> bool {
    value.as_i64() == Some(-1)
}
/// Whether it is a list, an object or a text of nothing.
pub(super) fn empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
fn none(value: &Value) -> bool {
    *value == "none"
}
fn medium(value: &Value) -> bool {
    *value == "medium"
}
fn no_tool(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}
fn plain_text(value: &Value) -> bool {
    *value == json!({"type": "text"})
}
fn text_only(value: &Value) -> bool {
    *value == json!(["text"])
}

#[cfg(test)]
mod tests {
    use super::{HARMLESS, KNOWN};

    /// What becomes of a field is written down, by a test that asks for it.
    #[test]
    fn every_field_is_in_the_document() {
        let doc = include_str!("../../../../../docs/api.md");
        let known = KNOWN.iter().map(|(name, ..)| name);
        for name in HARMLESS.iter().chain(known) {
            assert!(doc.contains(&format!("| `{name}` |")), "{name} has no row");
        }
    }
}
