use std::collections::BTreeMap;

use serde_json::Value;

use super::{Fields, invalid};
use crate::engine::{Fault, Sampling};

/// Most tokens in `logit_bias`.
const MAX_BIASES: usize = 1024;

/// Reads the sampling fields; the seed apart, since the gateway mints one where there is none.
pub(super) fn read(fields: &mut Fields) -> Result<(Sampling, Option<u64>), Fault> {
    let off = Sampling::default();
    let sampling = Sampling {
        temperature: fields
            .number("temperature", 0.0, 2.0)?
            .unwrap_or(off.temperature),
        top_p: positive(fields, "top_p", 1.0)?.unwrap_or(off.top_p),
        // -1 is how vLLM's clients spell "off".
        top_k: fields
            .whole("top_k", -1, i64::MAX)?
            .map_or(off.top_k, |k| k.clamp(0, u32::MAX.into()) as u32),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(off.min_p),
        seed: 0,
        presence_penalty: fields
            .number("presence_penalty", -2.0, 2.0)?
            .unwrap_or(off.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(off.frequency_penalty),
        repetition_penalty: positive(fields, "repetition_penalty", 2.0)?
            .unwrap_or(off.repetition_penalty),
        logit_bias: logit_bias(fields)?,
        logprobs: None,
    };
    Ok((sampling, seed(fields)?))
}

/// A number in (0, high].
fn positive(fields: &mut Fields, key: &str, high: f64) -> Result<Option<f32>, Fault> {
    match fields.number(key, 0.0, high)? {
        // Also what rounds to zero as the engine's f32.
        Some(n) if n <= 0.0 => Err(invalid(key, format!("a number above 0, at most {high}"))),
        number => Ok(number),
    }
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, Fault> {
    match fields.take("seed") {
        None => Ok(None),
        // How vLLM's and llama.cpp's clients spell "none".
        Some(value) if super::super::fields::whole(&value) == Some(-1) => Ok(None),
        Some(value) => value
            .as_u64()
            .or_else(|| super::super::fields::whole(&value).map(|n| n as u64))
            .map(Some)
            .ok_or_else(|| invalid("seed", "a whole number of 64 bits")),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Fault> {
    let expected =
        format!("an object of up to {MAX_BIASES} token ids with numbers from -100 to 100");
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) if map.len() <= MAX_BIASES => map,
        Some(_) => return Err(invalid("logit_bias", expected)),
    };
    let mut biases = BTreeMap::new();
    for (key, value) in map {
        let token = key.parse::<u32>().ok();
        let bias = value
            .as_f64()
            .filter(|bias| (-100.0..=100.0).contains(bias));
        let (Some(token), Some(bias)) = (token, bias) else {
            return Err(invalid("logit_bias", expected));
        };
        // "7" and "07" are two keys and one token.
        if biases.insert(token, bias as f32).is_some() {
            return Err(invalid("logit_bias", "each token id once"));
        }
    }
    Ok(biases.into_iter().collect())
}
