//! What the scripted engine does, over real sockets.

mod aborts;
mod acts;
mod alone;
mod pages;
mod pairs;
mod references;
mod talk;

use serde_json::{Value, json};

/// A prompt of SGLang's `/generate` in tokens.
pub fn tokens(prompt: &[u32], most: u64) -> Value {
    json!({"input_ids": prompt, "sampling_params": {"max_new_tokens": most}})
}

/// The same as one leg of a pair.
pub fn leg(prompt: &[u32], room: u64, rid: &str) -> Value {
    let mut body = tokens(prompt, 4);
    body["bootstrap_host"] = "127.0.0.1".into();
    body["bootstrap_port"] = 8998.into();
    body["bootstrap_room"] = room.into();
    body["rid"] = rid.into();
    body
}
