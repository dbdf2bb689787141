use std::path::{Path, PathBuf};

/// Why a model cannot be read: its files are at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A GGUF, or what a folder would be as one, cannot be used.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// A file of a folder is missing or damaged.
    #[error("{}: {problem}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A key of `config.json` that changes what is computed, in a way that is not known.
    #[error(
        "config.json: `{key}` is {found}; expected {expected} (docs/models.md says what loads; a model that \
         answers almost as it should would be worse)"
    )]
    Key {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would be computed.
        expected: String,
    },
    /// A tensor that no model of this kind has, or a type that is not read.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// Its name in the folder.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

pub(crate) fn bad(file: &Path, problem: impl ToString) -> Error {
    Error::File {
        file: file.to_owned(),
        problem: problem.to_string(),
    }
}
