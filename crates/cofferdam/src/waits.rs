//! How long a worker waits in each stage, and what others may hold of it: flags of every command
//! that runs workers.

use crate::times::duration;
use crate::tokens::tokens;
use clap::Args;
use std::time::Duration;
use worker::{Caps, Deadlines};

/// Deadlines and caps of a worker.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct Waits {
    /// Longest wait for a request's turn at prefill (500ms, 30s, 5m) [default: the request's time]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_QUEUE_DEADLINE", value_parser = duration)]
    pub queue_deadline: Option<Duration>,
    /// Longest time for computing a prompt [default: the request's time]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_PREFILL_DEADLINE", value_parser = duration)]
    pub prefill_deadline: Option<Duration>,
    /// Longest time from the first batch of pages that has landed to the commit [default: the
    /// request's time]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_TRANSFER_DEADLINE", value_parser = duration)]
    pub transfer_deadline: Option<Duration>,
    /// Longest time from the commit to the last token [default: the request's time]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_DECODE_DEADLINE", value_parser = duration)]
    pub decode_deadline: Option<Duration>,
    /// How long a lost worker of the other role may stay away [default: 10s]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_PEER_DEADLINE", value_parser = duration)]
    pub peer_deadline: Option<Duration>,
    /// How long a worker of the other role that is connected may leave an answer out before its
    /// connection is closed; longer than its longest step [default: 10s]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_ANSWER_DEADLINE", value_parser = duration)]
    pub answer_deadline: Option<Duration>,
    /// How long prefill may leave a Cancel unanswered before its arena is dropped [default: 5s]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_CANCEL_DEADLINE", value_parser = duration)]
    pub cancel_deadline: Option<Duration>,
    /// Longest time that a page stays in the prefix cache while nobody uses it; it goes after half of
    /// it at the earliest [default: until its room is needed]
    #[arg(long, value_name = "TIME", env = "COFFERDAM_CACHE_TTL", value_parser = duration)]
    pub cache_ttl: Option<Duration>,
    /// Tokens of one tenant that a worker holds or queues at one time, at most [default: no cap]
    #[arg(long, value_name = "N", env = "COFFERDAM_TENANT_TOKENS", value_parser = tokens::<u64>)]
    pub tenant_tokens: Option<u64>,
    /// Tokens of decode's pool that one prefill worker holds before they are committed, at most
    /// [default: no cap]
    #[arg(long, value_name = "N", env = "COFFERDAM_UNCOMMITTED_TOKENS", value_parser = tokens::<u64>)]
    pub uncommitted_tokens: Option<u64>,
}

impl Waits {
    pub(crate) fn deadlines(&self) -> Deadlines {
        let default = Deadlines::default();
        Deadlines {
            peer: self.peer_deadline.unwrap_or(default.peer),
            answer: self.answer_deadline.unwrap_or(default.answer),
            cancel: self.cancel_deadline.unwrap_or(default.cancel),
            queue: self.queue_deadline,
            prefill: self.prefill_deadline,
            transfer: self.transfer_deadline,
            decode: self.decode_deadline,
            cache: self.cache_ttl,
            ..default
        }
    }

    pub(crate) fn caps(&self) -> Caps {
        Caps {
            tenant_tokens: self.tenant_tokens,
            prefill_tokens: self.uncommitted_tokens,
        }
    }

    /// As they are typed: names and values of those that were given.
    pub(crate) fn typed(&self) -> Vec<(&'static str, String)> {
        let time = |time: Option<Duration>| time.map(|time| format!("{}ms", time.as_millis()));
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let all = [
            ("queue-deadline", time(self.queue_deadline)),
            ("prefill-deadline", time(self.prefill_deadline)),
            ("transfer-deadline", time(self.transfer_deadline)),
            ("decode-deadline", time(self.decode_deadline)),
            ("peer-deadline", time(self.peer_deadline)),
            ("answer-deadline", time(self.answer_deadline)),
            ("cancel-deadline", time(self.cancel_deadline)),
            ("cache-ttl", time(self.cache_ttl)),
            ("tenant-tokens", number(self.tenant_tokens)),
            ("uncommitted-tokens", number(self.uncommitted_tokens)),
        ];
        let given = all
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        given.collect()
    }
}
