//! Counters, one list for every engine, so that a dashboard and `cofferdam gate` know the names.

use std::collections::BTreeMap;

/// Every event that is counted, with what it means. Metrics are called `cofferdam_guard_NAME`.
pub const EVENTS: [(&str, &str); 15] = [
    (
        "verified_total",
        "handoffs whose blocks were all found to be what was stated",
    ),
    (
        "verified_blocks_total",
        "blocks compared with their statement and found equal",
    ),
    (
        "refused_lineage_total",
        "references refused at the door: forged, or made for another prompt",
    ),
    (
        "refused_reuse_total",
        "references refused because they were used before",
    ),
    (
        "refused_life_total",
        "references refused because their producer has restarted",
    ),
    (
        "refused_lease_total",
        "references refused because their lease had ended",
    ),
    (
        "refused_unguarded_total",
        "handoffs refused because they came without a guard's reference",
    ),
    (
        "refused_content_total",
        "handoffs refused because what arrived is not what was stated",
    ),
    (
        "refused_statement_total",
        "handoffs refused because no statement could be had in time",
    ),
    (
        "refused_count_total",
        "handoffs refused because pages sent and pages reserved differ",
    ),
    (
        "refused_step_total",
        "steps or sequences refused because a block table named a stale block",
    ),
    ("stated_total", "handoffs stated by this producer"),
    (
        "held_blocks_reused_total",
        "blocks that the engine handed out while they were held",
    ),
    (
        "quarantined_blocks_total",
        "blocks kept out of use because their writer is not proven gone",
    ),
    (
        "hooks_missing_total",
        "hooks that were found not to be in place",
    ),
];

/// Counts by name. Names outside [`EVENTS`] are not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters(BTreeMap<&'static str, u64>);

impl Counters {
    /// All zero.
    pub fn new() -> Self {
        Self(EVENTS.iter().map(|(name, _)| (*name, 0)).collect())
    }

    /// Adds `n`; false if there is no such counter.
    pub fn add(&mut self, name: &str, n: u64) -> bool {
        let found = EVENTS.iter().find(|(known, _)| *known == name);
        let Some((name, _)) = found else { return false };
        let count = self.0.entry(name).or_default();
        *count = count.saturating_add(n);
        true
    }

    /// All counts, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(name, count)| (*name, *count))
    }

    /// What was counted since the last call; the counts begin again at zero.
    pub fn take(&mut self) -> Vec<(&'static str, u64)> {
        let taken = std::mem::replace(self, Self::new());
        taken.all().filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_name_and_taken_once() {
        let mut counters = Counters::new();
        assert!(counters.add("verified_total", 2));
        assert!(counters.add("verified_total", 1));
        assert!(!counters.add("something_else_total", 1));
        assert_eq!(counters.all().count(), EVENTS.len());
        assert_eq!(counters.take(), [("verified_total", 3)]);
        assert_eq!(counters.take(), []);
    }

    #[test]
    fn names_are_those_of_prometheus_counters_and_unique() {
        for (name, help) in EVENTS {
            let plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(
                plain && name.ends_with("_total") && !help.is_empty(),
                "{name}"
            );
        }
        assert_eq!(Counters::new().all().count(), EVENTS.len(), "a name twice");
    }
}
