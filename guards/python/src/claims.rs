//! Statements, and how they are claimed over the side channel.

use crate::references::{Reference, Secret};
use crate::{epoch, fault, fixed};
use guard_core::{BlockStatement, Claim, Envelope, Received};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What one rank of a producer says is in the blocks.
#[pyclass(frozen, module = "cofferdam_guard._core")]
pub struct Statement(guard_core::Statement);

#[pymethods]
impl Statement {
    /// `tags`, `checksums` and `filled` in the order of the blocks.
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each field of a statement"
    )]
    fn new(
        epoch_bytes: &[u8],
        serial: u64,
        rank: u16,
        lineage: &[u8],
        tokens: u32,
        block_bytes: u64,
        tags: Vec<u64>,
        filled: Vec<u32>,
        checksums: Vec<u64>,
    ) -> PyResult<Self> {
        if tags.len() != filled.len() || tags.len() != checksums.len() {
            return Err(fault(
                "statement",
                "tags, filled and checksums differ in length",
            ));
        }
        let blocks = tags.into_iter().zip(filled).zip(checksums).enumerate();
        let blocks = blocks.map(|(ordinal, ((tag, filled), checksum))| BlockStatement {
            ordinal: ordinal as u32,
            filled,
            tag,
            checksum,
        });
        let statement = guard_core::Statement {
            epoch: epoch(epoch_bytes)?,
            serial,
            rank,
            lineage: guard_core::Lineage::from_bytes(fixed(lineage)?),
            tokens,
            block_bytes,
            blocks: blocks.collect(),
        };
        let checked = statement.check();
        checked.map_err(|why| fault("statement", why))?;
        Ok(Self(statement))
    }

    /// How many blocks it covers.
    fn __len__(&self) -> usize {
        self.0.blocks.len()
    }

    /// The tags, in order.
    #[getter]
    fn tags(&self) -> Vec<u64> {
        self.0.blocks.iter().map(|block| block.tag).collect()
    }

    /// The checksums, in order.
    #[getter]
    fn checksums(&self) -> Vec<u64> {
        self.0.blocks.iter().map(|block| block.checksum).collect()
    }

    /// Raises `GuardFault` unless this is the reference's statement and everything that arrived is
    /// what it states. `received` is pairs (ordinal, checksum); `blocks` what the prompt takes here.
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each thing that is compared"
    )]
    fn compare(
        &self,
        reference: &Reference,
        rank: u16,
        lineage: &[u8],
        tokens: u32,
        block_bytes: u64,
        blocks: usize,
        received: Vec<(u32, u64)>,
    ) -> PyResult<()> {
        let lineage = guard_core::Lineage::from_bytes(fixed(lineage)?);
        let received: Vec<_> = received
            .into_iter()
            .map(|(ordinal, checksum)| Received { ordinal, checksum })
            .collect();
        let covered = reference.0.covers(&self.0, rank);
        let compared = covered.and_then(|()| {
            self.0
                .compare(lineage, tokens, block_bytes, blocks, &received)
        });
        compared.map_err(|difference| fault(difference.kind(), difference))
    }
}

/// The statements of one rank of a producer. Times are milliseconds of its monotonic clock.
#[pyclass(module = "cofferdam_guard._core")]
pub struct Producer(guard_core::Producer);

#[pymethods]
impl Producer {
    #[new]
    fn new(epoch_bytes: &[u8], limit: usize) -> PyResult<Self> {
        Ok(Self(guard_core::Producer::new(epoch(epoch_bytes)?, limit)))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Keeps a statement until `until_ms`.
    fn state(&mut self, statement: &Statement, until_ms: u64) {
        let encoded = statement.0.encode();
        self.0.state(statement.0.serial, encoded, until_ms);
    }

    /// The lease lasts until `until_ms` at least.
    fn renew(&mut self, serial: u64, until_ms: u64) {
        self.0.renew(serial, until_ms);
    }

    /// The request was given up.
    fn revoke(&mut self, serial: u64) {
        self.0.revoke(serial);
    }

    /// The lease has ended.
    fn expire(&mut self, serial: u64) {
        self.0.expire(serial);
    }

    /// Forgets what has ended by `now_ms`.
    fn sweep(&mut self, now_ms: u64) {
        self.0.sweep(now_ms);
    }

    /// The answer to a message, and (serial, what was answered) if it was authentic.
    fn answer<'py>(
        &mut self,
        py: Python<'py>,
        secret: &Secret,
        message: &[u8],
        now_ms: u64,
    ) -> (Bound<'py, PyBytes>, Option<(u64, &'static str)>) {
        let (answer, what) = Envelope::answer(&secret.0, &mut self.0, message, now_ms);
        let what = what.map(|(serial, claim)| (serial, kind(&claim)));
        (PyBytes::new(py, &answer), what)
    }
}

const fn kind(claim: &Claim) -> &'static str {
    match claim {
        Claim::Granted(_) => "granted",
        Claim::NotYet => "not_yet",
        Claim::Refused(refusal) => refusal.kind(),
    }
}

/// The message that claims the statement of `reference`.
#[pyfunction]
pub fn claim_message<'py>(
    py: Python<'py>,
    secret: &Secret,
    nonce: &[u8],
    reference: &Reference,
) -> PyResult<Bound<'py, PyBytes>> {
    let (epoch, serial) = (reference.0.epoch, reference.0.serial);
    let message = Envelope::claim(&secret.0, fixed(nonce)?, epoch, serial);
    Ok(PyBytes::new(py, &message))
}

/// What a producer answered: None if it is no authentic answer to this nonce, otherwise (kind,
/// statement or None). A statement that is not whole in itself raises `GuardFault`.
#[pyfunction]
pub fn read_claim(
    secret: &Secret,
    nonce: &[u8],
    message: &[u8],
) -> PyResult<Option<(&'static str, Option<Statement>)>> {
    let Some(claim) = Envelope::read(&secret.0, fixed(nonce)?, message) else {
        return Ok(None);
    };
    let statement = match &claim {
        Claim::Granted(bytes) => {
            let decoded = guard_core::Statement::decode(bytes);
            Some(decoded.map_err(|why| fault("statement", why))?)
        }
        Claim::NotYet | Claim::Refused(_) => None,
    };
    Ok(Some((kind(&claim), statement.map(Statement))))
}
