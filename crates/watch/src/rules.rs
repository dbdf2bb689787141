//! Alert rules for Prometheus, ready to be loaded.

/// The file. Thresholds are zero: every signal is a request that somebody must look at.
pub const PROMETHEUS: &str = include_str!("rules.yaml");
