//! One `.safetensors` file. Its header is checked before a byte of a tensor is read: that lengths and types
//! agree, that tensors lie one behind the other without a gap, and that the file ends with the last.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gguf::{DType, Opened, Part};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::error::bad;
use crate::{Error, HEADER_BYTES_MAX};

/// Bytes before the header: its length.
const LENGTH: u64 = 8;

pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) tensors: Vec<Stored>,
    opened: Opened,
    /// Bytes of length and header, and their hash.
    begin: u64,
    head: [u8; 32],
}

/// A tensor as the header has it.
pub(crate) struct Stored {
    pub(crate) name: String,
    /// The last dimension is the contiguous one.
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    /// Where it begins behind the header.
    pub(crate) offset: u64,
}

impl Shard {
    pub(crate) fn open(path: &Path) -> Result<Shard, Error> {
        let bad = |problem: String| bad(path, problem);
        let io = |error: std::io::Error| bad(error.to_string());
        let opened = Opened::open(path).map_err(io)?;
        let (mut file, bytes) = (opened.file(), opened.bytes());
        let mut length = [0; LENGTH as usize];
        if bytes < LENGTH {
            return Err(bad(format!(
                "has {bytes} bytes, which is no .safetensors file"
            )));
        }
        file.read_exact(&mut length).map_err(io)?;
        let mut hash = blake3::Hasher::new();
        hash.update(&length);
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX || length > bytes - LENGTH {
            return Err(bad(format!(
                "its header says that it has {length} bytes; the file has {bytes}, and at most \
                 {HEADER_BYTES_MAX} are read: it is no .safetensors file, or cut off"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(io)?;
        hash.update(&header);
        let header: Metadata = serde_json::from_slice(&header).map_err(|it| bad(it.to_string()))?;
        let expected = LENGTH + length + header.data_len() as u64;
        if bytes != expected {
            return Err(bad(format!(
                "has {bytes} bytes, by its header {expected}: fetch it again"
            )));
        }
        let stored = |name: String| stored(&header, name);
        let tensors = header.offset_keys().into_iter().map(stored);
        Ok(Shard {
            path: path.to_owned(),
            tensors: tensors.collect::<Result<_, _>>()?,
            opened,
            begin: LENGTH + length,
            head: *hash.finalize().as_bytes(),
        })
    }

    /// A tensor of one dimension.
    pub(crate) fn vector(&self, stored: &Stored) -> Result<Vec<f32>, Error> {
        let [len] = stored.shape[..] else {
            return Err(Error::Tensor {
                name: stored.name.clone(),
                problem: format!("has {} dimensions, expected 1", stored.shape.len()),
            });
        };
        // The header's lengths agree with each other and with the file.
        let mut bytes = vec![0; len * stored.dtype.block_bytes()];
        let read = self
            .opened
            .file()
            .read_exact_at(&mut bytes, self.begin + stored.offset);
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => bad(&self.path, "has changed while it was read"),
            _ => bad(&self.path, error),
        })?;
        let mut numbers = vec![0.0; len];
        stored.dtype.dequantize(&bytes, &mut numbers);
        Ok(numbers)
    }

    /// To read tensors from.
    pub(crate) fn part(self) -> Part {
        Part::of_file(self.opened, self.begin, self.head)
    }
}

fn stored(header: &Metadata, name: String) -> Result<Stored, Error> {
    let about = header.info(&name).expect("it is named in the header");
    let dtype = match about.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => {
            let problem = format!("is {other:?}; F32, F16 and BF16 are read");
            return Err(Error::Tensor { name, problem });
        }
    };
    Ok(Stored {
        name,
        shape: about.shape.clone(),
        dtype,
        offset: about.data_offsets.0 as u64,
    })
}
