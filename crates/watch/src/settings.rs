//! What an operator may set.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Settings of one [`crate::Detector`]. The defaults are meant to be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// An answer is too fast if it took less than this share of the floor. The lower tail of a
    /// computation is sharp, so half leaves room for clocks, batches and small caches.
    pub tolerance: f64,
    /// Requests that a bucket needs before its own tail is believed.
    pub learn: u64,
    /// Most tokens that a prompt may have, by model; `*` is every model that is not named.
    pub limits: BTreeMap<String, u64>,
    /// Tenants that belong to tests and probes: nothing is learned from them, and they are not
    /// counted among the affected.
    pub test_tenants: BTreeSet<String>,
    /// Speculative decoding: a share of accepted tokens above this is too good.
    pub accept_rate_max: f64,
    /// Speculative decoding: fewer accepted tokens a step than this is too bad...
    pub accept_length_min: f64,
    /// ...once an answer has this many tokens.
    pub accept_after: u64,
    /// Series (model and worker) that are kept; requests of further ones are counted, not judged.
    pub series_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tolerance: 0.5,
            learn: 100,
            limits: BTreeMap::new(),
            test_tenants: BTreeSet::new(),
            // The two bounds with which a provider found its own corrupted caches.
            accept_rate_max: 0.96,
            accept_length_min: 1.4,
            accept_after: 128,
            series_max: 256,
        }
    }
}

impl Settings {
    /// The longest prompt that this model may be asked, if somebody said.
    pub fn limit(&self, model: &str) -> Option<u64> {
        let named = self.limits.get(model);
        named.or_else(|| self.limits.get("*")).copied()
    }

    /// What is wrong with them.
    ///
    /// # Errors
    /// The sentence for the operator.
    pub fn check(&self) -> Result<(), String> {
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return Err(format!(
                "tolerance is a share of the floor, above 0 and below 1, not {}",
                self.tolerance
            ));
        }
        if self.learn < 20 {
            return Err(format!(
                "learn: {} requests have no lower tail; at least 20",
                self.learn
            ));
        }
        if self.series_max == 0 {
            return Err("series_max: at least 1".to_owned());
        }
        Ok(())
    }
}
