//! Secrets, lineages, references.

use crate::{epoch, fault, fixed};
use guard_core::Context;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Keys made from the operator's secret.
#[pyclass(frozen, module = "cofferdam_guard._core")]
pub struct Secret(pub(crate) guard_core::Secret);

#[pymethods]
impl Secret {
    #[new]
    fn new(secret: &[u8]) -> PyResult<Self> {
        let secret = guard_core::Secret::new(secret);
        secret.map(Self).map_err(|weak| fault("secret", weak))
    }

    /// The 32 bytes of the keyed hash over context and prompt tokens.
    #[pyo3(signature = (tokens, model, adapter=None, salt=None, extra=None))]
    fn lineage<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        model: &str,
        adapter: Option<&str>,
        salt: Option<&str>,
        extra: Option<&[u8]>,
    ) -> Bound<'py, PyBytes> {
        let context = Context {
            model,
            adapter,
            salt,
            extra,
        };
        let lineage = guard_core::Lineage::of(&self.0, context, &tokens);
        PyBytes::new(py, lineage.bytes())
    }

    /// What sums blocks of up to `words` words in the memory of a CPU.
    fn summer(&self, words: usize) -> Summer {
        Summer(self.0.coefficients(words))
    }

    /// `n` odd coefficients, as 8 little-endian bytes each.
    fn coefficients<'py>(&self, py: Python<'py>, n: usize) -> Bound<'py, PyBytes> {
        let words = self.0.coefficients(n);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        PyBytes::new(py, &bytes)
    }

    /// The number of the isolation domain behind a salt; 0 without one.
    #[pyo3(signature = (salt=None))]
    fn domain(&self, salt: Option<&[u8]>) -> u64 {
        self.0.domain(salt)
    }

    /// Signs a reference: the text that travels.
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each field of a reference"
    )]
    fn sign_reference(
        &self,
        epoch_bytes: &[u8],
        serial: u64,
        lineage: &[u8],
        tokens: u32,
        address: String,
        parameters: &[u8],
        tags: Vec<u64>,
    ) -> PyResult<String> {
        let reference = guard_core::Reference {
            epoch: epoch(epoch_bytes)?,
            serial,
            lineage: guard_core::Lineage::from_bytes(fixed(lineage)?),
            tokens,
            address,
            bound: guard_core::Reference::bind(parameters),
            tags: guard_core::Reference::tags_of(&tags),
        };
        Ok(reference.sign(&self.0))
    }

    /// Opens a reference; `GuardFault("forged", …)` if this fleet has not signed it.
    fn open_reference(&self, text: &str) -> PyResult<Reference> {
        let opened = guard_core::Reference::open(&self.0, text);
        opened.map(Reference).map_err(refusal)
    }
}

fn refusal(why: guard_core::ReferenceFault) -> PyErr {
    let kind = match why {
        guard_core::ReferenceFault::Forged => "forged",
        guard_core::ReferenceFault::Lineage => "lineage",
        guard_core::ReferenceFault::Bound => "bound",
        guard_core::ReferenceFault::Tokens { .. } => "tokens",
    };
    fault(kind, why)
}

/// A reference that was found genuine.
#[pyclass(frozen, module = "cofferdam_guard._core")]
pub struct Reference(pub(crate) guard_core::Reference);

#[pymethods]
impl Reference {
    /// The producer's life, 16 bytes.
    #[getter]
    fn epoch<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.epoch.bits().to_le_bytes())
    }

    /// Its number in that life.
    #[getter]
    fn serial(&self) -> u64 {
        self.0.serial
    }

    /// Tokens that it covers.
    #[getter]
    fn tokens(&self) -> u32 {
        self.0.tokens
    }

    /// `host:port` where rank 0 answers claims.
    #[getter]
    fn address(&self) -> &str {
        &self.0.address
    }

    /// The lineage, 32 bytes.
    #[getter]
    fn lineage<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.lineage.bytes())
    }

    /// Raises `GuardFault` unless it was made for this prompt and these parameters.
    fn admits(&self, lineage: &[u8], tokens: u32, parameters: &[u8]) -> PyResult<()> {
        let lineage = guard_core::Lineage::from_bytes(fixed(lineage)?);
        let admitted = self.0.admits(lineage, tokens, parameters);
        admitted.map_err(refusal)
    }
}

/// References that were used here.
#[pyclass(module = "cofferdam_guard._core")]
pub struct Seen(guard_core::Seen);

#[pymethods]
impl Seen {
    #[new]
    fn new(limit: usize) -> PyResult<Self> {
        if limit == 0 {
            return Err(PyValueError::new_err("a limit of 0 remembers nothing"));
        }
        Ok(Self(guard_core::Seen::new(limit)))
    }

    /// Uses the reference; false if it was used before.
    fn first_use(&mut self, reference: &Reference) -> bool {
        self.0.first_use(reference.0.epoch, reference.0.serial)
    }
}

/// The coefficients of checksums, for blocks in the memory of a CPU.
#[pyclass(frozen, module = "cofferdam_guard._core")]
pub struct Summer(Vec<u64>);

#[pymethods]
impl Summer {
    /// Sums of blocks of `size` bytes, one after the other in `blocks`; 8 little-endian bytes each.
    fn of<'py>(
        &self,
        py: Python<'py>,
        blocks: &[u8],
        size: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let words = if size.is_multiple_of(4) {
            size / 4
        } else if size.is_multiple_of(2) {
            size / 2
        } else {
            size
        };
        if size == 0 || !blocks.len().is_multiple_of(size) || words > self.0.len() {
            let got = blocks.len();
            let wrong = format!("{got} bytes are no blocks of {size} that this can sum");
            return Err(PyValueError::new_err(wrong));
        }
        let sums = py.detach(|| guard_core::block_sums(blocks, size, &self.0));
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        Ok(PyBytes::new(py, &bytes))
    }
}
