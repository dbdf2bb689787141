//! Two lines about one request: what prefill and decode each wrote of it, found in their logs by a name
//! that both have. In the incident prefill counted 1 token and decode 2,536.

use crate::request::Request;
use std::collections::HashMap;

/// Requests of which one side is remembered: about 100 MB.
const PAIRS_MAX: usize = 1 << 20;

/// What either side said of each request.
#[derive(Default)]
pub struct Joined {
    pairs: HashMap<String, Sides>,
    /// Lines for which there was no room.
    pub left_out: u64,
}

#[derive(Clone, Copy, Default)]
struct Sides {
    prefill: Option<u64>,
    decode: Option<u64>,
}

impl Joined {
    /// Remembers what a line says.
    pub fn learn(&mut self, request: &Request) {
        let Some(leg) = &request.leg else {
            return;
        };
        if self.pairs.len() >= PAIRS_MAX && !self.pairs.contains_key(&leg.pair) {
            self.left_out += 1;
            return;
        }
        let sides = self.pairs.entry(leg.pair.clone()).or_default();
        let side = match leg.is_prefill {
            true => &mut sides.prefill,
            false => &mut sides.decode,
        };
        *side = Some(request.prompt_tokens);
    }

    /// Adds what the other side said to the line of decode, which is the one whose answer went out.
    pub fn complete(&self, request: &mut Request) {
        let decode = request.leg.as_ref().filter(|it| !it.is_prefill);
        if let Some(sides) = decode.and_then(|it| self.pairs.get(&it.pair)) {
            request.prefill_tokens = request.prefill_tokens.or(sides.prefill);
            request.decode_tokens = request.decode_tokens.or(sides.decode);
        }
    }
}
