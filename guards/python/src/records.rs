//! Counters and audit records.

use pyo3::prelude::*;
use std::collections::BTreeMap;

/// Counts of everything that is counted.
#[pyclass(module = "cofferdam_guard._core")]
pub struct Counters(guard_core::Counters);

#[pymethods]
impl Counters {
    #[new]
    fn new() -> Self {
        Self(guard_core::Counters::new())
    }

    /// Adds `n`; a name that is not in `Counters.names()` is a `KeyError`.
    #[pyo3(signature = (name, n=1))]
    fn add(&mut self, name: &str, n: u64) -> PyResult<()> {
        if self.0.add(name, n) {
            return Ok(());
        }
        Err(pyo3::exceptions::PyKeyError::new_err(name.to_owned()))
    }

    /// All counts by name.
    fn all(&self) -> BTreeMap<&'static str, u64> {
        self.0.all().collect()
    }

    /// What was counted since the last call; counting begins again at zero.
    fn take(&mut self) -> BTreeMap<&'static str, u64> {
        self.0.take().into_iter().collect()
    }

    /// Every counter and what it means.
    #[staticmethod]
    fn names() -> Vec<(&'static str, &'static str)> {
        guard_core::EVENTS.to_vec()
    }
}

/// One JSON line. Values are cut at 256 characters and control characters replaced.
#[pyfunction]
pub fn audit_line(
    unix_ms: u64,
    engine: &str,
    event: &str,
    fields: BTreeMap<String, String>,
) -> String {
    let record = guard_core::Record::new(unix_ms, engine, event);
    let record = fields
        .iter()
        .fold(record, |record, (name, value)| record.with(name, value));
    record.line()
}
