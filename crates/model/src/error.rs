//! What can go wrong, and whose fault it is.

use pages::PageId;

/// Why a model did not load or a step did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read, or lacks something.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// The file is sound but asks for something that this engine does not compute.
    #[error("the model needs {what} = {found}, which is not supported (expected {expected})")]
    Unsupported {
        /// The metadata key or tensor.
        what: String,
        /// What the file says.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// A tensor does not have the shape that the metadata implies: the file is damaged.
    #[error("tensor `{tensor}` has dimensions {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// Dimensions in the file, contiguous one first.
        found: Vec<usize>,
        /// Dimensions that the metadata implies.
        expected: Vec<usize>,
    },
    /// A weight is NaN or infinite: the file is damaged.
    #[error("tensor `{tensor}` holds a weight that is not finite: the file is damaged")]
    WeightNotFinite {
        /// The tensor's name.
        tensor: String,
    },
    /// The instruction set that was asked for is not there.
    #[error(transparent)]
    Isa(#[from] kernels::UnsupportedIsa),
    /// The weights do not fit.
    #[error("no memory for the weights: {0}")]
    OutOfMemory(#[from] kernels::OutOfMemory),
    /// The compute threads could not be started.
    #[error("cannot start {threads} compute threads: {source}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// Why not.
        source: rayon::ThreadPoolBuildError,
    },
    /// The caller's inputs do not fit the verified tables or the model.
    #[error("sequence {sequence} of the step: {problem}")]
    Input {
        /// Index in the step.
        sequence: usize,
        /// What does not fit, with both numbers.
        problem: String,
    },
    /// The KV memory was made for another layout.
    #[error("KV memory has layout {found:?}, the step needs {expected:?}")]
    Layout {
        /// What the model and the tables imply.
        expected: crate::KvLayout,
        /// What the memory has.
        found: crate::KvLayout,
    },
    /// A page could not be used.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The arithmetic left the finite numbers. The step's tokens must not be used, and what it
    /// wrote into pages must not be read: end the sequence.
    #[error("{what} of sequence {sequence} at position {position} is not finite")]
    NotFinite {
        /// Which quantity.
        what: Quantity,
        /// Index in the step.
        sequence: usize,
        /// Absolute position of the token.
        position: usize,
    },
}

/// Why a page of [`crate::KvMemory`] cannot be used. All but `OutOfMemory` mean that somebody broke
/// the page ledger's rules: the worker should end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The memory cannot be had.
    #[error("cannot allocate {bytes} bytes of KV memory: choose a smaller pool")]
    OutOfMemory {
        /// Bytes of all pages.
        bytes: usize,
    },
    /// No such page.
    #[error("{page:?} does not exist: the memory has {pages} pages")]
    NoSuchPage {
        /// The page.
        page: PageId,
        /// Pages that exist.
        pages: usize,
    },
    /// The page is checked out: somebody is writing it (H-3).
    #[error("{page:?} is checked out by its writer; it may not be used until checked in (H-3)")]
    CheckedOut {
        /// The page.
        page: PageId,
    },
    /// Somebody still reads the page, so it may not be written (H-3).
    #[error("{page:?} is still being read by a transfer; it may not be written (H-3)")]
    StillRead {
        /// The page.
        page: PageId,
    },
    /// A page was checked in that has another size.
    #[error("{page:?} cannot be checked in: it has another size")]
    OtherSize {
        /// The page.
        page: PageId,
    },
    /// A page was checked in that is there already.
    #[error("{page:?} cannot be checked in: it was not checked out")]
    NotCheckedOut {
        /// The page.
        page: PageId,
    },
    /// The tables of a step were checked against the ledger of another pool than the memory's: what
    /// that ledger says of a page says nothing about the page of the same number here (H-1).
    #[error("the block tables are of another pool than the KV memory (H-1)")]
    OtherPool,
}

/// What left the finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A key or a value, which is kept as f16.
    KeyOrValue,
    /// A logit.
    Logit,
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::KeyOrValue => "a key or value (as f16)",
            Self::Logit => "a logit",
        })
    }
}
