//! What `--model` names: one GGUF file, the first of several parts, or a folder as Hugging Face ships it
//! (`config.json`, `model.safetensors` or an index and its shards). A folder is read as if it were the GGUF
//! of the same model, so whatever is checked of a file is checked of it in the same place.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "Llama-3.2-1B-Instruct".as_ref();
//! let metadata = checkpoint::metadata(path)?; // what it says of itself
//! assert_eq!(metadata.string("general.architecture")?, "llama");
//! let file = checkpoint::open(path)?;
//! assert_eq!(file.tensor("blk.0.attn_q.weight")?.dims(), [2048, 2048]);
//! let first = file.tensor("output_norm.weight")?.dequantize()?; // only now is a number read
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod config;
mod error;
mod family;
mod folder;
mod names;
mod shard;

use std::ops::Deref;
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

/// A model whose files are open, as the GGUF that it is or would be (by `Deref`). Its weights are read when
/// they are asked for.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// Of what a folder has beside its weights.
    texts: Option<[u8; 32]>,
    file: gguf::File,
}

/// Opens all files of a model, and checks all but the numbers themselves.
///
/// # Errors
/// See [`metadata`]; or a tensor cannot be used.
pub fn open(path: &Path) -> Result<Checkpoint, Error> {
    let (texts, file) = match path.is_dir() {
        true => (Some(folder::texts(path)?), folder::open(path)?),
        false => (None, gguf::File::open(path)?),
    };
    Ok(Checkpoint {
        path: path.to_owned(),
        texts,
        file,
    })
}

impl Checkpoint {
    /// Identity of all bytes of which the model is made. What was read of the weights counts as it was read,
    /// so this is cheap after they were loaded, and reads them before.
    ///
    /// # Errors
    /// A file cannot be read, or has changed since it was opened.
    pub fn fingerprint(&self) -> Result<[u8; 32], Error> {
        let weights = self.file.fingerprint()?;
        let Some(texts) = self.texts else {
            return Ok(weights);
        };
        if folder::texts(&self.path)? != texts {
            return Err(error::bad(
                &self.path,
                "its configuration or tokenizer has changed while it was read: start again when nobody \
                 writes to it",
            ));
        }
        let mut hash = blake3::Hasher::new_derive_key("cofferdam 2026-12 folder of a model");
        hash.update(&texts).update(&weights);
        Ok(*hash.finalize().as_bytes())
    }
}

impl Deref for Checkpoint {
    type Target = gguf::File;

    fn deref(&self) -> &gguf::File {
        &self.file
    }
}
