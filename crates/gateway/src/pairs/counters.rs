//! What the engine counts since its start.

use crate::engine::Count;

/// Declares the counters once: the struct, their names and what they count cannot drift apart.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// See the module's documentation.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $($(#[doc = $doc])+ pub(super) $name: u64,)* }

        impl Counters {
            pub(super) fn named(&self) -> Vec<Count> {
                vec![$(Count {
                    name: stringify!($name),
                    help: concat!($($doc),+).trim_ascii(),
                    value: self.$name,
                },)*]
            }
        }
    };
}

counters! {
    /// Requests that the machine judged.
    requests_judged,
    /// Requests that were taken on: these alone reach a worker.
    requests_admitted,
    /// Requests that ended with a whole answer.
    requests_answered,
    /// Requests refused for good.
    requests_rejected,
    /// Requests not taken on, for now.
    requests_refused,
    /// Requests that failed.
    requests_failed,
    /// Requests whose client left first.
    requests_abandoned,
    /// Requests cancelled because their reader fell behind.
    readers_fallen_behind,
    /// Attempts announced to decode workers; above the requests admitted: retries.
    attempts_announced,
    /// Attempts sent to prefill workers.
    attempts_sent,
    /// Connections to workers that came up.
    connections,
    /// Connections to workers that ended, for whatever reason.
    connections_ended,
    /// Workers given up because they did not answer for too long.
    silent_workers,
    /// Messages of workers that were none; each cost its connection.
    malformed_messages,
}
