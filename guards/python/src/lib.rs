//! Python binding of `guard-core`: plain data in, plain data out. Every decision is the
//! crate's; a refusal is a `GuardFault(kind, message)`.

mod claims;
mod ledger;
mod records;
mod references;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    _core,
    GuardFault,
    PyException,
    "What is asked for is refused: args are (kind, message)."
);

/// A refusal as Python sees it.
pub(crate) fn fault(kind: &str, message: impl ToString) -> PyErr {
    GuardFault::new_err((kind.to_owned(), message.to_string()))
}

/// Exactly 16 or 32 bytes, or a `ValueError`.
pub(crate) fn fixed<const N: usize>(bytes: &[u8]) -> PyResult<[u8; N]> {
    let wrong = || PyValueError::new_err(format!("{} bytes where {N} are needed", bytes.len()));
    bytes.try_into().map_err(|_| wrong())
}

/// An epoch from its 16 bytes.
pub(crate) fn epoch(bytes: &[u8]) -> PyResult<pages::Epoch> {
    Ok(pages::Epoch::new(u128::from_le_bytes(fixed(bytes)?)))
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::GuardFault;
    #[pymodule_export]
    use super::claims::{Producer, Statement, claim_message, read_claim};
    #[pymodule_export]
    use super::ledger::Ledger;
    #[pymodule_export]
    use super::records::{Counters, audit_line};
    #[pymodule_export]
    use super::references::{Reference, Secret, Seen, Summer};
}
