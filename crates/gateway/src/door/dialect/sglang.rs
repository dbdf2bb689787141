//! SGLang: `/generate` with token ids, both legs of a pair at once under one room.

use handoff::door::{Blame, Leg};
use serde_json::{Map, Value, json};

use super::{Call, Heard, Names, Order, Reading, Role, bytes, class_of, ids, reason, sampling};
use crate::door::requests::Part;

pub(super) fn ask(order: &Order, role: Role) -> Call {
    let job = &order.job;
    let mut params = sampling(job);
    let ours = json!({
        "max_new_tokens": order.max_new,
        "ignore_eos": job.ignore_eos,
        "min_new_tokens": job.min_new,
        "stop_token_ids": job.stop_tokens,
        "skip_special_tokens": false,
    });
    params.extend(ours.as_object().cloned().unwrap_or_default());
    let mut body = json!({
        "input_ids": job.prompt,
        "sampling_params": params,
        "rid": order.names.id,
        "stream": order.leg == Leg::Decode,
        "extra_key": order.salt,
    });
    if let Some(body) = body.as_object_mut() {
        meeting(body, order, role);
    }
    Call {
        path: "/generate",
        body: bytes(&body),
        request_id: None,
    }
}

/// Where the two of a pair meet.
pub(super) fn meeting(body: &mut Map<String, Value>, order: &Order, role: Role) {
    if role.is_half()
        && let Some(meet) = &order.meet
    {
        body.insert("bootstrap_host".into(), json!(meet.host));
        body.insert("bootstrap_port".into(), json!(meet.port));
        body.insert("bootstrap_room".into(), json!(meet.room));
        if let Some(rank) = meet.rank {
            let name = match order.leg {
                Leg::Prefill => "routed_dp_rank",
                Leg::Decode => "disagg_prefill_dp_rank",
            };
            body.insert(name.into(), json!(rank.n));
        }
    }
}

pub(super) fn abort(names: &Names) -> Call {
    Call {
        path: "/abort_request",
        body: bytes(&json!({ "rid": names.id })),
        request_id: None,
    }
}

/// `output_ids` is the whole answer so far or what is new in it, depending on how the server was
/// started; `completion_tokens` says which.
pub(super) fn read(reading: &mut Reading, value: &Value) -> Option<Heard> {
    let meta = value.get("meta_info")?;
    reading.named(meta.get("id"), |name, ours| name == ours);
    reading.counted(meta.get("prompt_tokens"), meta.get("completion_tokens"));
    let total = u32::try_from(meta.get("completion_tokens")?.as_u64()?).ok()?;
    let ids = value.get("output_ids").map_or(Some(Vec::new()), ids)?;
    let (had, got) = (reading.tokens, u32::try_from(ids.len()).ok()?);
    let new = match (got == total, had.checked_add(got) == Some(total)) {
        (true, _) => ids.get(had as usize..)?.to_vec(),
        (false, true) => ids,
        // A prefill may leave its one token out.
        (false, false) if ids.is_empty() => ids,
        (false, false) => return None,
    };
    let mut heard = Heard {
        part: Part {
            tokens: new,
            cached_tokens: cached(meta),
            ..Part::default()
        },
        failed: None,
    };
    let Some(finish) = meta.get("finish_reason").filter(|it| !it.is_null()) else {
        return Some(heard);
    };
    match finish.get("type").and_then(Value::as_str)? {
        "abort" => heard.failed = Some(aborted(finish)),
        word => heard.part.finish = Some(reason(word)?),
    }
    Some(heard)
}

fn aborted(finish: &Value) -> (Blame, String) {
    let status = finish.get("status_code").and_then(Value::as_u64);
    let class = status.and_then(|status| class_of(u16::try_from(status).ok()?));
    let said = finish.get("message").and_then(Value::as_str);
    let said = said.unwrap_or("aborted").to_owned();
    (class.unwrap_or(Blame::Engine), said)
}

fn cached(meta: &Value) -> Option<u32> {
    u32::try_from(meta.get("cached_tokens")?.as_u64()?).ok()
}
