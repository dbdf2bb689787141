//! What `--model` names: one GGUF file, the first of several parts, or a folder as Hugging Face ships it
//! (`config.json`, `model.safetensors` or an index and its shards). A folder is read as if it were the GGUF
//! of the same model, so whatever is checked of a file is checked of it in the same place.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "Llama-3.2-1B-Instruct".as_ref();
//! let metadata = checkpoint::metadata(path)?; // what it is, before gigabytes are read
//! assert_eq!(metadata.string("general.architecture")?, "llama");
//! let file = checkpoint::open(path)?;
//! assert_eq!(file.tensor("blk.0.attn_q.weight")?.dims(), [2048, 2048]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod config;
mod error;
mod folder;
mod names;
mod shard;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use error::Error;

/// Bytes of a `config.json` or of an index that are read.
pub const JSON_BYTES_MAX: u64 = 16 << 20;
/// Bytes of the header of a `.safetensors` file that are read.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Most shards of a folder.
pub const SHARDS_MAX: usize = 1000;

/// What is said of the model, in a GGUF's keys. Of a folder its weights are not read.
///
/// # Errors
/// A file is missing, damaged, or says what is not known to be computed; each is named.
pub fn metadata(path: &Path) -> Result<gguf::Metadata, Error> {
    if path.is_dir() {
        return folder::metadata(path);
    }
    gguf::parts(path)?; // all of them are there
    Ok(gguf::Metadata::open(path)?)
}

/// Reads the model into memory.
///
/// # Errors
/// See [`metadata`]; or a tensor cannot be used.
pub fn open(path: &Path) -> Result<gguf::File, Error> {
    match path.is_dir() {
        true => folder::open(path),
        false => Ok(gguf::File::open(path)?),
    }
}

/// All bytes of which the model is made, one file after the other: what its fingerprint is of.
///
/// # Errors
/// A file is missing, or cannot be opened.
pub fn bytes(path: &Path) -> Result<impl Read + use<>, Error> {
    let files = match path.is_dir() {
        true => folder::files(path)?,
        false => gguf::parts(path)?,
    };
    Ok(Chain {
        files: files.into_iter(),
        open: None,
    })
}

struct Chain {
    files: std::vec::IntoIter<PathBuf>,
    open: Option<File>,
}

impl Read for Chain {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(file) = &mut self.open else {
                match self.files.next() {
                    None => return Ok(0),
                    Some(path) => self.open = Some(File::open(path)?),
                }
                continue;
            };
            match file.read(into)? {
                0 if !into.is_empty() => self.open = None,
                n => return Ok(n),
            }
        }
    }
}
