//! The ledger of an engine's blocks.

use crate::fault;
use guard_core::{HoldId, LedgerFault};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Tags, holds and isolation domains of all blocks of one engine, by the engine's block numbers.
#[pyclass(module = "cofferdam_guard._core")]
pub struct Ledger(guard_core::Ledger);

fn refusal(why: LedgerFault) -> PyErr {
    let kind = match why {
        LedgerFault::Held(_) => "held",
        LedgerFault::Twice(_) => "twice",
        LedgerFault::NoBlock(_) => "no_block",
        LedgerFault::ForeignDomain { .. } => "foreign_domain",
        LedgerFault::Stale { .. } => "stale",
        LedgerFault::NoHold(_) => "no_hold",
    };
    fault(kind, why)
}

#[pymethods]
impl Ledger {
    #[new]
    fn new(blocks: u32, block_size: u16) -> Self {
        Self(guard_core::Ledger::new(blocks, block_size))
    }

    /// The engine hands these blocks out for new content: their new tags, in order. Raises
    /// `GuardFault("held", …)` and changes nothing if one of them is held or in quarantine.
    #[pyo3(signature = (blocks, domain=0))]
    fn allocate(&mut self, blocks: Vec<u32>, domain: u64) -> PyResult<Vec<u64>> {
        self.0.allocate(domain, &blocks).map_err(refusal)
    }

    /// Their content is dead; held ones stay out of use until their last hold has ended.
    fn release(&mut self, blocks: Vec<u32>) -> PyResult<()> {
        self.0.release(&blocks).map_err(refusal)
    }

    /// Out of use for good.
    fn quarantine(&mut self, blocks: Vec<u32>) -> PyResult<()> {
        self.0.quarantine(&blocks).map_err(refusal)
    }

    /// Somebody begins to read or write these blocks; gives the hold's number.
    #[pyo3(signature = (reads=Vec::new(), writes=Vec::new()))]
    fn hold(&mut self, reads: Vec<u32>, writes: Vec<u32>) -> PyResult<u64> {
        let held = self.0.hold(&reads, &writes);
        held.map(|id| id.0).map_err(refusal)
    }

    /// It has ended, provably.
    fn end_hold(&mut self, hold: u64) -> PyResult<()> {
        self.0.end_hold(HoldId(hold)).map_err(refusal)
    }

    /// Raises `GuardFault` unless every block stands under the tag named and in that domain.
    #[pyo3(signature = (blocks, tags, domain=0))]
    fn check(&self, blocks: Vec<u32>, tags: Vec<u64>, domain: u64) -> PyResult<()> {
        self.0.check(domain, &blocks, &tags).map_err(refusal)
    }

    /// Present tags of these blocks, 0 where there is none.
    fn tags(&self, blocks: Vec<u32>) -> PyResult<Vec<u64>> {
        let all = self.0.tags();
        let tag = |block: &u32| all.get(*block as usize).copied();
        let tags = blocks
            .iter()
            .map(|block| tag(block).ok_or_else(|| refusal(LedgerFault::NoBlock(*block))));
        tags.collect()
    }

    /// Present tags of all blocks, as 8 little-endian bytes each.
    fn all_tags<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let tags = self.0.tags().iter();
        let bytes: Vec<u8> = tags.flat_map(|tag| tag.to_le_bytes()).collect();
        PyBytes::new(py, &bytes)
    }

    /// Holds in flight.
    #[getter]
    fn holds(&self) -> usize {
        self.0.holds()
    }

    /// Blocks in every state; the sum is the pool (H-10).
    fn counts<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.counts();
        let dict = PyDict::new(py);
        dict.set_item("free", counts.free)?;
        dict.set_item("taken", counts.reserved + counts.granted + counts.sealed)?;
        dict.set_item("quarantined", counts.quarantined)?;
        dict.set_item("total", counts.total())?;
        Ok(dict)
    }
}
