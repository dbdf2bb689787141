//! Reading records back.

use crate::trace::{Header, MAGIC};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

/// Largest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// Why a trace was not written, not read, or did not give the same effects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file.
    #[error("trace {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It does not begin like a trace of this version.
    #[error("{0} is no trace of this version")]
    NoTrace(PathBuf),
    /// A record that is none.
    #[error("record {index}: {problem}")]
    Damaged {
        /// Its number; the header is 0.
        index: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// The same input gave other effects: the machine is not deterministic, or the driver did not
    /// do what it recorded.
    #[error("record {index}: other effects than recorded, after {input}\nreplayed {replayed}")]
    Differs {
        /// Its number.
        index: u64,
        /// The input.
        input: String,
        /// Effects of the replay.
        replayed: String,
    },
}

pub(crate) struct Records {
    file: BufReader<File>,
    path: PathBuf,
    pub(crate) index: u64,
    pub(crate) torn: bool,
    buffer: Vec<u8>,
}

impl Records {
    pub(crate) fn open(path: &Path) -> Result<(Self, Header), TraceError> {
        let failed = |source| TraceError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut magic = [0; MAGIC.len()];
        let read = file.read_exact(&mut magic);
        if read.is_err() || magic != *MAGIC {
            return Err(TraceError::NoTrace(path.to_owned()));
        }
        let path = path.to_owned();
        let mut records = Self {
            file,
            path,
            index: 0,
            torn: false,
            buffer: Vec::new(),
        };
        let header = match records.next::<Header>()? {
            Some((header, [])) => header,
            _ => {
                let problem = "the header is not whole".into();
                return Err(TraceError::Damaged { index: 0, problem });
            }
        };
        Ok((records, header))
    }

    /// The next record: its input, and the bytes of its effects. None at the end.
    pub(crate) fn next<Input: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(Input, &[u8])>, TraceError> {
        let mut length = [0; 4];
        if !self.fill(&mut length)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length) as usize;
        let index = self.index;
        let damaged = |problem: String| TraceError::Damaged { index, problem };
        if length > RECORD_BYTES_MAX {
            return Err(damaged(format!(
                "{length} bytes, at most {RECORD_BYTES_MAX}"
            )));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(length, 0);
        let whole = self.fill(&mut buffer)?;
        self.buffer = buffer;
        if !whole {
            self.torn = true;
            return Ok(None);
        }
        self.index += 1;
        postcard::take_from_bytes(&self.buffer)
            .map(Some)
            .map_err(|error| damaged(error.to_string()))
    }

    /// Whether all of `bytes` could be filled; what is there of a torn record is dropped.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, TraceError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read(&mut bytes[filled..]) {
                Ok(0) => {
                    self.torn |= filled > 0;
                    return Ok(false);
                }
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(TraceError::Io {
                        path: self.path.clone(),
                        source,
                    });
                }
            }
        }
        Ok(true)
    }
}
