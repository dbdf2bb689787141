//! Requests that tokens cannot carry: SGLang's and vLLM's own `/v1/chat/completions` and
//! `/v1/completions`. The prompt is still ours: SGLang is given its tokens beside the messages, vLLM
//! was asked for them before, and both must count as many.

use handoff::Finish;
use handoff::door::Leg;
use serde_json::{Map, Value, json};

use super::{Call, Heard, Order, Reading, Role, bytes, sampling, sglang, vllm};
use crate::door::requests::Part;
use crate::engine::{Carried, Fault, TextPath};

/// What both carry out.
macro_rules! fields {
    ($($more:literal),*) => {
        &["tools", "response_format", "logprobs", $($more),*]
    };
}

/// Whether any engine has such a path, and what it takes there.
pub(in crate::door) const SGLANG: TextPath = TextPath {
    fields: fields!("regex", "ebnf", "separate_reasoning"),
    how: "SGLang writes the answer (/v1/chat/completions); the prompt is sent as tokens",
    one_choice_a_job: true,
    forms: false,
};
pub(in crate::door) const VLLM: TextPath = TextPath {
    fields: fields!("structured_outputs", "include_reasoning"),
    how: "vLLM writes prompt and answer (/v1/chat/completions); the prompt's tokens are asked of its \
          /tokenize before",
    one_choice_a_job: true,
    forms: false,
};
pub(in crate::door) const NONE: TextPath = TextPath {
    fields: &[],
    how: "none: only pairs and servers of SGLang or of vLLM, of one kind, have one",
    one_choice_a_job: true,
    forms: false,
};

/// What a client may see of a choice, of its `message` or `delta`, and of a prompt's continuation.
const OF_CHOICE: &[&str] = &["logprobs", "finish_reason"];
const OF_MESSAGE: &[&str] = &[
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
];

/// The request of a leg.
pub(super) fn ask_sglang(order: &Order, carried: &Carried, role: Role) -> Call {
    let mut body = common(order, carried, order.leg == Leg::Decode);
    let prompt = if carried.chat { "input_ids" } else { "prompt" };
    body.insert(prompt.into(), json!(order.job.prompt));
    // Its own name for it.
    if let Some(keep) = body.remove("include_stop_str_in_output") {
        body.insert("no_stop_trim".into(), keep);
    }
    body.insert("rid".into(), json!(order.names.id));
    body.insert("extra_key".into(), json!(order.salt));
    sglang::meeting(&mut body, order, role);
    call(carried, body, None)
}

/// The same. Prefill is asked with tokens: nothing that it says is anybody's answer.
pub(super) fn ask_vllm(order: &Order, carried: &Carried, role: Role) -> Call {
    let mut body = common(order, carried, true);
    if !carried.chat {
        body.insert("prompt".into(), json!(order.job.prompt));
    }
    body.insert("seed".into(), json!(order.job.sampling.seed >> 1));
    body.insert("cache_salt".into(), json!(order.salt));
    if role.is_half()
        && let Some(reference) = &order.reference
    {
        body.insert("kv_transfer_params".into(), reference.clone());
    }
    call(carried, body, Some(order.names.id.clone()))
}

/// What vLLM is asked for the tokens of a conversation.
pub(super) fn tokens_of(carried: &Carried) -> Call {
    const READ: [&str; 5] = [
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
    ];
    let mut body = only(&carried.fields, &READ);
    if body.get("continue_final_message") == Some(&json!(true)) {
        body.insert("add_generation_prompt".into(), json!(false));
    }
    if let Some(effort) = carried.fields.get("reasoning_effort") {
        let kwargs = body.entry("chat_template_kwargs").or_insert(json!({}));
        kwargs["reasoning_effort"] = effort.clone();
    }
    Call {
        path: "/tokenize",
        body: bytes(&Value::Object(body)),
        request_id: None,
    }
}

fn common(order: &Order, carried: &Carried, answers: bool) -> Map<String, Value> {
    let job = &order.job;
    let mut body = carried.fields.clone();
    let stream = carried.stream && answers;
    let most = match carried.chat {
        true => "max_completion_tokens",
        false => "max_tokens",
    };
    let ours = json!({
        most: order.max_new,
        "n": 1,
        "ignore_eos": job.ignore_eos,
        "min_tokens": job.min_new,
        "stop_token_ids": job.stop_tokens,
        "stream": stream,
    });
    body.extend(sampling(job));
    body.extend(ours.as_object().cloned().unwrap_or_default());
    if stream {
        let usage = json!({"include_usage": true, "continuous_usage_stats": true});
        body.insert("stream_options".into(), usage);
    }
    body
}

fn call(carried: &Carried, body: Map<String, Value>, request_id: Option<String>) -> Call {
    Call {
        path: match carried.chat {
            true => "/v1/chat/completions",
            false => "/v1/completions",
        },
        body: bytes(&Value::Object(body)),
        request_id,
    }
}

/// A whole answer, or an event of one.
pub(super) fn read(reading: &mut Reading, value: &Value) -> Option<Heard> {
    reading.named(value.get("id"), |name, ours| {
        let plain = ["chatcmpl-", "cmpl-"]
            .into_iter()
            .find_map(|it| name.strip_prefix(it));
        plain.unwrap_or(name).starts_with(ours)
    });
    let usage = value.get("usage").filter(|usage| !usage.is_null());
    let figure = |name| usage.and_then(|usage| usage.get(name));
    reading.counted(figure("prompt_tokens"), figure("completion_tokens"));
    let cached = usage.and_then(|usage| usage.pointer("/prompt_tokens_details/cached_tokens"));
    vllm::refer(reading, value);
    let mut part = Part {
        cached_tokens: cached
            .and_then(Value::as_u64)
            .and_then(|cached| u32::try_from(cached).ok()),
        sampled: reading.total,
        ..Part::default()
    };
    // Tokens are the engine's to count; what is more than was asked for is none of this answer.
    reading.tokens = reading.total.unwrap_or(reading.tokens);
    for choice in value.get("choices")?.as_array()? {
        if choice.get("index").and_then(Value::as_u64) != Some(0) {
            return None; // one was asked for
        }
        match choice.get("finish_reason").and_then(Value::as_str) {
            None => {}
            Some(word @ ("abort" | "error")) => {
                let failed = (handoff::door::Blame::Engine, word.to_owned());
                return Some(Heard {
                    part,
                    failed: Some(failed),
                });
            }
            Some("length") => part.finish = Some(Finish::Length),
            Some("stop" | "tool_calls" | "function_call") => part.finish = Some(Finish::Stop),
            Some(_) => return None,
        }
        part.said.push(shown(choice));
    }
    Some(Heard { part, failed: None })
}

/// A choice, less all that a client has not asked for: references, token ids, what an engine says of
/// itself.
fn shown(choice: &Value) -> Value {
    let none = Map::new();
    let choice = choice.as_object().unwrap_or(&none);
    let mut shown = Map::new();
    for name in ["message", "delta"] {
        if let Some(Value::Object(message)) = choice.get(name) {
            shown.insert(name.into(), Value::Object(only(message, OF_MESSAGE)));
        }
    }
    shown.extend(only(choice, &["text"]));
    shown.extend(only(choice, OF_CHOICE));
    Value::Object(shown)
}

fn only(map: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let of = |name: &&str| Some(((*name).to_owned(), map.get(*name)?.clone()));
    names.iter().filter_map(of).collect()
}

/// What an engine could not be asked for, in a client's words.
pub(in crate::door) fn untold() -> Fault {
    Fault::new(
        crate::engine::Code::Unavailable,
        "the engines did not say how they write this conversation, so that its length is not known; \
         try again",
    )
}
