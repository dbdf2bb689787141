//! Why a worker does not start, or ends.

use crate::FailStop;
use std::path::PathBuf;

/// Why a worker does not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The pool that was asked for cannot be had; the text names what would fit.
    #[error(transparent)]
    Refused(#[from] crate::memory::Refusal),
    /// A setting that nobody can work with.
    #[error("{0}")]
    Setting(String),
    /// The model file is damaged or not supported.
    #[error("{path}: {problem}")]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The memory could not be had although it was there a moment ago.
    #[error(transparent)]
    Memory(model::KvError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] wire::control::IdentityError),
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] wire::control::BindError),
    /// The system refused something at start-up.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The trace cannot be written. A worker that was asked to keep one does not go on without.
    #[error(transparent)]
    Trace(#[from] wire::trace::TraceError),
    /// A rule that must hold was found broken: the worker ends with the evidence, its epoch is
    /// over (fail closed, loudly).
    #[error("fail-stop: {0}")]
    FailStop(#[from] FailStop),
}

/// Memory that cannot be had is a setting; every other fault of a page means that somebody broke
/// the ledger's rules (H-3).
impl From<model::KvError> for WorkerError {
    fn from(error: model::KvError) -> Self {
        match error {
            model::KvError::OutOfMemory { .. } => Self::Memory(error),
            broken => Self::FailStop(broken.into()),
        }
    }
}

impl WorkerError {
    /// Exit code of a command that ends with this: 2 where settings must change first, 1 where
    /// something is broken.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::FailStop(_) | Self::Trace(_) => 1,
            _ => 2,
        }
    }
}
