//! llama.cpp's server: `/completion` with token ids. It gives a request no name and ends it with its
//! connection; its slots share what they keep of prompts, so nothing is to be kept.

use serde_json::{Value, json};

use super::{Call, Heard, Order, Reading, bytes, ids};
use crate::door::requests::Part;
use handoff::Finish;

pub(super) fn ask(order: &Order) -> Call {
    let (job, sampling) = (&order.job, &order.job.sampling);
    let biased = sampling.logit_bias.iter();
    let mut biased: Vec<Value> = biased.map(|(token, bias)| json!([token, bias])).collect();
    // It has no list of tokens that end an answer: the HTTP half ends it there.
    biased.truncate(wire::LOGIT_BIAS_MAX);
    let body = json!({
        "prompt": job.prompt,
        "n_predict": order.max_new,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed & 0xffff_ffff,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_penalty": sampling.repetition_penalty,
        "ignore_eos": job.ignore_eos,
        "logit_bias": biased,
        "cache_prompt": false,
        "return_tokens": true,
        "stream": true,
    });
    Call {
        path: "/completion",
        body: bytes(&body),
        request_id: None,
    }
}

pub(super) fn read(reading: &mut Reading, value: &Value) -> Option<Heard> {
    let tokens = value.get("tokens").map_or(Some(Vec::new()), ids)?;
    let stops = value.get("stop")?.as_bool()?;
    let sampled = value.get("tokens_predicted").filter(|_| stops);
    reading.counted(value.get("tokens_evaluated"), sampled);
    let finish = stops.then(|| match value.get("stop_type").and_then(Value::as_str) {
        Some("limit") => Finish::Length,
        _ => Finish::Stop,
    });
    // The last event of a stream repeats nothing.
    let part = Part {
        tokens,
        finish,
        ..Part::default()
    };
    Some(Heard { part, failed: None })
}
