use std::path::{Path, PathBuf};

/// Why a file, a key or a tensor could not be read. Except for [`Error::Io`] and the two
/// `Missing…` and `WrongType` variants (the caller asked for what this file does not have),
/// the file is at fault: fetch it again, or convert it with a supported type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to open or read the file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file that was asked for.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// Somebody wrote to the file, or cut it off, after it was opened.
    #[error("{} has changed while it was read: start again when nobody writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {found:02x?}, expected 47 47 55 46 (\"GGUF\")")]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version other than 2 or 3, or a big-endian file.
    #[error("GGUF version {found} is not supported: expected 2 or 3, little endian")]
    Version {
        /// The version field, read as little endian.
        found: u32,
    },
    /// The file ends before something it announced.
    #[error("file is truncated: {what} needs {need} bytes, {have} are left; fetch the file again")]
    Truncated {
        /// What was being read; names the key or the tensor.
        what: String,
        /// Bytes it needs.
        need: u64,
        /// Bytes the file still has.
        have: u64,
    },
    /// A count or a length beyond what any real file has.
    #[error("{what} is {found}, the limit is {limit}: the file is damaged")]
    Limit {
        /// Which count or length; names the key or the tensor.
        what: String,
        /// What the file says.
        found: u64,
        /// The largest accepted value.
        limit: u64,
    },
    /// A key whose value cannot be used.
    #[error("metadata key `{key}`: {problem}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key that the caller needs and the file does not have.
    #[error("metadata key `{key}` is missing from the file")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key whose value has another type, or does not fit.
    #[error("metadata key `{key}` has type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type that the caller asked for.
        expected: &'static str,
        /// The type (and, if small, the value) in the file.
        found: String,
    },
    /// A tensor whose description or bytes cannot be used.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor that the caller needs and the file does not have.
    #[error("tensor `{name}` is missing from the file")]
    MissingTensor {
        /// The tensor's name.
        name: String,
    },
    /// A part of a split file is missing, or is not the part that its name says.
    #[error("{}: {problem}", path.display())]
    Part {
        /// The part.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// Of a read of what was there when the file was opened.
    pub(crate) fn reading(path: &Path, source: std::io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::Changed { path },
            _ => Error::Io { path, source },
        }
    }
}
