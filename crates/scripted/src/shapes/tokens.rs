//! The engines' own endpoints: `/generate`, `/inference/v1/generate`, `/completion`.

use std::fmt::Write;

use crate::tokens::decode;

use super::{Finish, Spoken, quoted};

impl Spoken {
    pub(super) fn generate(&self, said: usize, last: bool, ids: &[u32]) -> String {
        let finish = match (last, &self.finish) {
            (false, _) => "null".into(),
            (true, Finish::Length) => format!(r#"{{"type":"length","length":{}}}"#, self.length),
            (true, Finish::Stop) => r#"{"type":"stop","matched":1281}"#.into(),
            (true, Finish::Abort { message, status }) => abort(message, *status),
        };
        let counts = match self.counts {
            true => format!(
                r#""prompt_tokens":{},"completion_tokens":{said},"cached_tokens":{},"#,
                self.prompt_tokens, self.cached
            ),
            false => String::new(),
        };
        let (text, list, id) = (quoted(&decode(ids)), list(ids), &self.id);
        format!(
            r#"{{"text":{text},"output_ids":{list},"meta_info":{{"id":{id},"finish_reason":{finish},{counts}"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"weight_versions":[{{"version":"default","start":0,"end":{said}}}],"cached_tokens_details":null,"dp_rank":null,"e2e_latency":0.0001}}}}"#
        )
    }

    pub(super) fn vllm_tokens(&self, ids: &[u32], last: bool) -> String {
        let finish = match last {
            true => format!("\"{}\"", self.finish_name()),
            false => "null".into(),
        };
        let usage = match self.ids.len() == ids.len() || self.continuous_usage {
            true => self.usage_field(ids.len()),
            false => String::new(),
        };
        let transfer = self.transfer.as_deref().unwrap_or("null");
        let (id, list) = (&self.id, list(ids));
        format!(
            r#"{{"request_id":{id}{usage},"kv_transfer_params":{transfer},"output_mode":"tokens","choices":[{{"index":0,"finish_reason":{finish},"token_ids":{list},"logprobs":null}}]}}"#
        )
    }

    pub(super) fn completion(&self, ids: &[u32], last: bool) -> String {
        let (text, list, model) = (quoted(&decode(ids)), list(ids), &self.model);
        let (asked, said) = (self.prompt_tokens, self.ids.len());
        if !last {
            return format!(
                r#"{{"index":0,"content":{text},"tokens":{list},"stop":false,"id_slot":0,"tokens_predicted":1,"tokens_evaluated":{asked}}}"#
            );
        }
        let stop = match self.finish {
            Finish::Stop => "eos",
            _ => "limit",
        };
        let cached = asked + said as u64;
        format!(
            r#"{{"index":0,"content":{text},"tokens":[],"id_slot":0,"stop":true,"model":{model},"tokens_predicted":{said},"tokens_evaluated":{asked},"has_new_line":false,"truncated":false,"stop_type":"{stop}","stopping_word":"","tokens_cached":{cached},"timings":{{"cache_n":{},"prompt_n":{asked},"predicted_n":{said}}}}}"#,
            self.cached
        )
    }
}

fn abort(message: &str, status: Option<u16>) -> String {
    let message = quoted(message);
    match status {
        None => {
            format!(r#"{{"type":"abort","message":{message},"status_code":null,"err_type":null}}"#)
        }
        Some(status) => {
            let kind = super::refusal::kind(status);
            format!(
                r#"{{"type":"abort","message":{message},"status_code":{status},"err_type":"{kind}"}}"#
            )
        }
    }
}

pub(crate) fn list(ids: &[u32]) -> String {
    let mut text = String::with_capacity(ids.len() * 5 + 2);
    text.push('[');
    for (n, id) in ids.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{id}");
    }
    text.push(']');
    text
}
