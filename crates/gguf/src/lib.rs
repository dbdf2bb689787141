//! GGUF reader: metadata, tensors, dequantization.
//!
//! Reads versions 2 and 3, little endian, in the twelve tensor types of [`DType`]. A file is a claim:
//! every length, offset and count in it is checked before it is used, and what is damaged,
//! truncated or unsupported gives an [`Error`] that names the key or the tensor. No input panics.
//!
//! What the file says is read into memory when it is opened; tensors are read when they are wanted, a
//! mebibyte at a time, so that a model is never in memory twice. Nothing is mapped: this crate forbids
//! `unsafe`, and a mapping would let somebody who writes to the file change weights that were already
//! checked. Of a file that changes meanwhile, [`Error::Changed`] tells.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # // The smallest file there is: one key, one 2 x 2 tensor.
//! # let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
//! # let string = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
//! # bytes.extend(string("llama.block_count"));
//! # bytes.extend([4u32, 30].iter().flat_map(|n| n.to_le_bytes()));
//! # bytes.extend(string("output.weight"));
//! # bytes.extend(2u32.to_le_bytes());
//! # bytes.extend([2u64, 2].iter().flat_map(|n| n.to_le_bytes()));
//! # bytes.extend([0u8; 12]);
//! # bytes.resize(bytes.len().next_multiple_of(32), 0);
//! # bytes.extend([1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
//! # let path = std::env::temp_dir().join(format!("gguf-doc-{}.gguf", std::process::id()));
//! # std::fs::write(&path, bytes)?;
//! let file = gguf::File::open(&path)?;
//! assert_eq!(file.u32("llama.block_count")?, 30);
//!
//! let weight = file.tensor("output.weight")?;
//! assert_eq!(weight.dtype(), gguf::DType::F32);
//! assert_eq!((weight.row_len(), weight.rows()), (2, 2));
//! assert_eq!(weight.dequantize()?, [1.0, 2.0, 3.0, 4.0]);
//!
//! let error = file.u32("llama.context_length").unwrap_err();
//! assert_eq!(error.to_string(), "metadata key `llama.context_length` is missing from the file");
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod fetch;

mod dequant;
mod error;
mod file;
mod metadata;
mod part;
mod run;
mod source;
mod split;
mod tensor;

pub use error::Error;
pub use file::{Described, File};
pub use metadata::{Array, Metadata, Value};
pub use part::{Opened, Part, RowReader};
pub use run::Run;
pub use split::{parts, stem};
pub use tensor::{DType, Tensor};

/// Most parts of a split file.
pub const PARTS_MAX: u32 = 1000;
/// Most metadata keys a file may have. Real files have a few dozen.
pub const KEYS_MAX: u64 = 1 << 16;
/// Most tensors a file may have. The largest published models have a few thousand.
pub const TENSORS_MAX: u64 = 1 << 16;
/// Longest name of a key or a tensor, in bytes (the format's own limit for keys).
pub const NAME_BYTES_MAX: u64 = (1 << 16) - 1;
/// Longest string value, in bytes.
pub const STRING_BYTES_MAX: u64 = 1 << 24;
/// Most elements of a metadata array. The largest vocabularies have some 260,000 tokens.
pub const ARRAY_LEN_MAX: u64 = 1 << 24;
/// Most dimensions of a tensor.
pub const DIMS_MAX: u32 = 4;
