//! Counters of engines that must not rise, from scrapes. They carry no prompt length and name no
//! request: all that can be said is that something happened since the last scrape.

use std::collections::BTreeMap;

/// SGLang counts every end of a deferred release here; the label tells the good ones apart.
const DEFERRED: &str = "sglang:decode_deferred_kv_release";
const DEFERRED_BADLY: &str = "outcome=\"timeout\"";

/// Counters that must not rise, and what it means if they do. A name stands for itself with and
/// without `_total`; one that ends in `*` stands for all that begin so.
pub const MUST_NOT_RISE: [(&str, &str); 9] = [
    (
        "vllm:nixl_num_notifications_after_expiry",
        "decode read KV blocks that prefill had freed already",
    ),
    (
        "vllm:nixl_num_kv_expired_reqs",
        "handoffs were given up because their lease had ended",
    ),
    ("vllm:nixl_num_failed_transfers", "KV transfers failed"),
    (
        "vllm:nixl_num_failed_notifications",
        "prefill was not told that its blocks had been read",
    ),
    ("sglang:num_transfer_failed_reqs", "KV transfers failed"),
    (
        "sglang:num_bootstrap_failed_reqs",
        "prefill and decode did not find each other",
    ),
    (
        DEFERRED,
        "pages were freed when a time had passed, without a proof that nobody writes them",
    ),
    (
        "cofferdam_integrity_faults",
        "KV that was handed over was not what its writer had certified",
    ),
    (
        "cofferdam_guard_refused_*",
        "the guard refused KV that did not belong to its reader",
    ),
];

/// Refusals of the guard for what could not be compared in time: nothing wrong was seen. (SGLang's guard
/// counts under the first also statements about another reservation, and says so in a label.)
const TOO_LATE: [&str; 3] = [
    "cofferdam_guard_refused_statement",
    "cofferdam_guard_refused_lease",
    "cofferdam_guard_refused_life",
];

/// Series of one node that are followed.
const SERIES_MAX: usize = 10_000;

/// A counter that rose.
#[derive(Clone, Debug, PartialEq)]
pub struct Rise {
    /// The node.
    pub node: String,
    /// Name and labels.
    pub counter: String,
    /// By how much.
    pub by: f64,
    /// What that means.
    pub means: &'static str,
}

/// Counters as they were when last read.
#[derive(Clone, Debug, Default)]
pub struct CounterReadings {
    last: BTreeMap<(String, String), f64>,
}

impl CounterReadings {
    /// Compares a scrape of a node (name, labels as text, value) with the one before. A first
    /// reading proves nothing, and a counter that fell began anew with its process: then what it
    /// has counted since is new.
    pub fn see<'a>(
        &mut self,
        node: &str,
        samples: impl Iterator<Item = (&'a str, String, f64)>,
    ) -> Vec<Rise> {
        let mut rises = Vec::new();
        for (name, labels, value) in samples {
            let stem = name.strip_suffix("_total").unwrap_or(name);
            let is = |it: &str| match it.strip_suffix('*') {
                Some(beginning) => stem.starts_with(beginning),
                None => it == stem,
            };
            let Some((_, means)) = MUST_NOT_RISE.iter().find(|(it, _)| is(it)) else {
                continue;
            };
            if TOO_LATE.contains(&stem) && !labels.contains("reason=\"statement\"") {
                continue;
            }
            if stem == DEFERRED && !labels.contains(DEFERRED_BADLY) {
                continue;
            }
            let full = self.last.len() >= SERIES_MAX;
            let counter = format!("{name}{labels}");
            let key = (node.to_owned(), counter.clone());
            if !value.is_finite() || (full && !self.last.contains_key(&key)) {
                continue;
            }
            let Some(before) = self.last.insert(key, value) else {
                continue;
            };
            let by = if value < before {
                value
            } else {
                value - before
            };
            if by > 0.0 {
                rises.push(Rise {
                    node: node.to_owned(),
                    counter,
                    by,
                    means,
                });
            }
        }
        rises
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rises(counters: &mut CounterReadings, value: f64) -> Vec<f64> {
        let name = "vllm:nixl_num_notifications_after_expiry_total";
        let samples = [
            (name, "{engine=\"0\"}".to_owned(), value),
            ("other_total", String::new(), value),
        ];
        let rises = counters.see("p0", samples.into_iter());
        assert!(
            rises.iter().all(|it| it.counter.starts_with(name)),
            "{rises:?}"
        );
        rises.into_iter().map(|it| it.by).collect()
    }

    /// The names that the guards export (`cofferdam_guard_` and those of `guard::EVENTS`).
    #[test]
    fn a_refusal_of_a_guard_is_seen_and_its_good_news_are_not() {
        let mut counters = CounterReadings::default();
        let mut see = |name, value| counters.see("d0", [(name, String::new(), value)].into_iter());
        for name in [
            "cofferdam_guard_refused_content_total",
            "cofferdam_guard_verified_total",
        ] {
            assert_eq!(see(name, 1.0), []);
        }
        assert_eq!(see("cofferdam_guard_refused_content_total", 2.0).len(), 1);
        assert_eq!(see("cofferdam_guard_verified_total", 2.0), []);
    }

    #[test]
    fn a_guard_that_waited_in_vain_has_seen_nothing_wrong() {
        let mut counters = CounterReadings::default();
        let mut see = |name: &str, reason: &str, value| {
            let labels = format!("{{engine_type=\"decode\",reason=\"{reason}\"}}");
            let name = format!("cofferdam_guard_refused_{name}_total");
            let samples = [(name.as_str(), labels, value)];
            counters.see("d0", samples.into_iter()).len()
        };
        for value in [1.0, 2.0] {
            let late = [("lease", ""), ("life", ""), ("statement", "late")];
            assert!(late.iter().all(|(name, why)| see(name, why, value) == 0));
            let found = see("statement", "statement", value);
            assert_eq!(found, usize::from(value > 1.0));
        }
    }

    #[test]
    fn a_deferred_release_is_bad_only_if_time_ended_it() {
        let mut counters = CounterReadings::default();
        let mut see = |outcome: &str, value| {
            let labels = format!("{{engine_type=\"decode\",outcome=\"{outcome}\"}}");
            let name = "sglang:decode_deferred_kv_release_total";
            counters
                .see("d0", [(name, labels, value)].into_iter())
                .len()
        };
        for outcome in ["acknowledged", "timeout"] {
            assert_eq!(see(outcome, 1.0), 0);
        }
        assert_eq!((see("acknowledged", 2.0), see("timeout", 2.0)), (0, 1));
    }

    #[test]
    fn a_rise_is_one_against_the_scrape_before() {
        let mut counters = CounterReadings::default();
        assert_eq!(rises(&mut counters, 5.0), [0.0; 0]); // may be old
        assert_eq!(rises(&mut counters, 5.0), [0.0; 0]);
        assert_eq!(rises(&mut counters, 7.0), [2.0]);
        assert_eq!(rises(&mut counters, 0.0), [0.0; 0]); // the process is a new one
        assert_eq!(rises(&mut counters, 1.0), [1.0]);
        assert_eq!(rises(&mut counters, f64::NAN), [0.0; 0]);
    }
}
