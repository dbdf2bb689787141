//! vLLM: `/v1/completions` with token ids; prefill first, its reference to decode (NIXL, pull).

use handoff::door::Leg;
use serde_json::{Value, json};

use super::{Call, Heard, Order, Reading, Role, bytes, ids, reason, sampling};
use crate::door::requests::Part;
use crate::engine::Job;

pub(super) fn ask(order: &Order, role: Role) -> Call {
    let job = &order.job;
    let prefill = order.leg == Leg::Prefill;
    let mut body = json!({
        "prompt": job.prompt,
        "max_tokens": if prefill { 1 } else { order.max_new },
        "ignore_eos": job.ignore_eos,
        "stop_token_ids": job.stop_tokens,
        "skip_special_tokens": false,
        "return_token_ids": true,
        "cache_salt": order.salt,
        "stream": !prefill,
    });
    match prefill {
        // Its token is nobody's. A seed makes vLLM 0.32 on a CPU end where a prompt is computed in
        // several parts.
        true => body["temperature"] = json!(0),
        false => sample(&mut body, job),
    }
    if role.is_half() {
        body["kv_transfer_params"] = match &order.reference {
            Some(reference) => reference.clone(),
            None => json!({
                "do_remote_decode": true,
                "do_remote_prefill": false,
                "remote_engine_id": null,
                "remote_block_ids": null,
                "remote_host": null,
                "remote_port": null,
            }),
        };
    }
    Call {
        path: "/v1/completions",
        body: bytes(&body),
        request_id: Some(order.names.id.clone()),
    }
}

fn sample(body: &mut Value, job: &Job) {
    let how = json!({
        "seed": job.sampling.seed >> 1, // it takes a signed number
        "min_tokens": job.min_new,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let how = how.as_object().cloned().unwrap_or_default();
    for (name, value) in sampling(job).into_iter().chain(how) {
        body[name] = value;
    }
}

/// Its name for a request is `cmpl-` and the one that it was given, sometimes with more behind it.
pub(super) fn read(reading: &mut Reading, value: &Value) -> Option<Heard> {
    reading.named(value.get("id"), |name, ours| {
        let name = name.strip_prefix("cmpl-").unwrap_or(name);
        name.starts_with(ours)
    });
    let usage = value.get("usage").filter(|usage| !usage.is_null());
    let figure = |name| usage.and_then(|usage| usage.get(name));
    reading.counted(figure("prompt_tokens"), figure("completion_tokens"));
    let cached = usage.and_then(|usage| usage.pointer("/prompt_tokens_details/cached_tokens"));
    refer(reading, value);
    let mut part = Part {
        cached_tokens: cached
            .and_then(Value::as_u64)
            .and_then(|cached| u32::try_from(cached).ok()),
        ..Part::default()
    };
    // The last event of a stream has the figures and no choice.
    if let Some(choice) = value.get("choices")?.as_array()?.first() {
        let tokens = choice.get("token_ids").filter(|tokens| !tokens.is_null());
        part.tokens = tokens.map_or(Some(Vec::new()), ids)?;
        let finish = choice.get("finish_reason").and_then(Value::as_str);
        match finish {
            None => {}
            Some("abort" | "error") => {
                let failed = (handoff::door::Blame::Engine, "aborted".to_owned());
                return Some(Heard {
                    part,
                    failed: Some(failed),
                });
            }
            Some(word) => part.finish = Some(reason(word)?),
        }
    }
    Some(Heard { part, failed: None })
}

/// The reference to prefill's pages, if there is one.
pub(super) fn refer(reading: &mut Reading, value: &Value) {
    let reference = value.get("kv_transfer_params");
    let reference = reference.filter(|it| it.get("remote_block_ids").is_some_and(has_blocks));
    if let Some(reference) = reference {
        reading.reference = Some(reference.clone());
    }
}

/// A list of lists of numbers (a list for each group of layers), not all of them empty.
fn has_blocks(list: &Value) -> bool {
    let any = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    match list.as_array() {
        Some(groups) => groups.iter().any(|group| group.is_u64() || any(group)),
        None => false,
    }
}
