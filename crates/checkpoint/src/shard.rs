//! One `.safetensors` file. Its header is checked before a byte of a tensor is read: that lengths and types
//! agree, that tensors lie one behind the other without a gap, and that the file ends with the last.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use gguf::DType;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::error::bad;
use crate::{Error, HEADER_BYTES_MAX};

/// Bytes before the header: its length.
const LENGTH: u64 = 8;

pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) tensors: Vec<Stored>,
    bytes: u64,
}

/// A tensor as the header has it.
pub(crate) struct Stored {
    pub(crate) name: String,
    /// The last dimension is the contiguous one.
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    /// Where in the file it begins, and its length.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Shard {
    pub(crate) fn open(path: &Path) -> Result<Shard, Error> {
        let bad = |problem: String| bad(path, problem);
        let io = |error: std::io::Error| bad(error.to_string());
        let mut file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let mut length = [0; LENGTH as usize];
        if bytes < LENGTH {
            return Err(bad(format!(
                "has {bytes} bytes, which is no .safetensors file"
            )));
        }
        file.read_exact(&mut length).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX || length > bytes - LENGTH {
            return Err(bad(format!(
                "its header says that it has {length} bytes; the file has {bytes}, and at most \
                 {HEADER_BYTES_MAX} are read: it is no .safetensors file, or cut off"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(io)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|it| bad(it.to_string()))?;
        let expected = LENGTH + length + header.data_len() as u64;
        if bytes != expected {
            return Err(bad(format!(
                "has {bytes} bytes, by its header {expected}: fetch it again"
            )));
        }
        let behind = (LENGTH + length) as usize;
        let stored = |name: String| stored(&header, name, behind);
        let tensors = header.offset_keys().into_iter().map(stored);
        Ok(Shard {
            path: path.to_owned(),
            tensors: tensors.collect::<Result<_, _>>()?,
            bytes,
        })
    }

    /// All of the file.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Error> {
        let read = std::fs::read(&self.path).map_err(|error| bad(&self.path, error))?;
        match read.len() as u64 == self.bytes {
            true => Ok(read),
            false => Err(bad(&self.path, "has changed while it was read")),
        }
    }
}

fn stored(header: &Metadata, name: String, behind: usize) -> Result<Stored, Error> {
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
    let (begin, end) = about.data_offsets;
    Ok(Stored {
        name,
        shape: about.shape.clone(),
        dtype,
        offset: behind + begin,
        bytes: end - begin,
    })
}
