use std::io::Read;
use std::path::PathBuf;

use crate::part::Digest;
use crate::{Error, NAME_BYTES_MAX, STRING_BYTES_MAX};

/// The bytes of a file, front to back. Nothing is allocated for what the file merely announces:
/// [`Source::claim`] compares every size with the bytes that are really left.
pub(crate) struct Source<R> {
    reader: R,
    path: PathBuf,
    position: u64,
    len: u64,
    hash: blake3::Hasher,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(reader: R, path: PathBuf, len: u64) -> Self {
        Source {
            reader,
            path,
            position: 0,
            len,
            hash: blake3::Hasher::new(),
        }
    }

    /// Of all that was read.
    pub(crate) fn digest(&self) -> Digest {
        *self.hash.finalize().as_bytes()
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn left(&self) -> u64 {
        self.len - self.position
    }

    /// Refuses `need` bytes for `what` when the file does not have them.
    pub(crate) fn claim(&self, need: u64, what: impl FnOnce() -> String) -> Result<(), Error> {
        if need <= self.left() {
            return Ok(());
        }
        Err(Error::Truncated {
            what: what(),
            need,
            have: self.left(),
        })
    }

    pub(crate) fn bytes(
        &mut self,
        len: u64,
        what: impl FnOnce() -> String,
    ) -> Result<Vec<u8>, Error> {
        self.claim(len, what)?;
        let mut bytes = vec![0; usize::try_from(len).expect("claimed bytes fit in memory's size")];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: impl FnOnce() -> String,
    ) -> Result<[u8; N], Error> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count that must not exceed `limit`.
    pub(crate) fn count(&mut self, limit: u64, what: impl Fn() -> String) -> Result<u64, Error> {
        let found = self.u64(&what)?;
        if found > limit {
            return Err(Error::Limit {
                what: what(),
                found,
                limit,
            });
        }
        Ok(found)
    }

    /// The name of a key or of a tensor.
    pub(crate) fn name(&mut self, what: impl Fn() -> String) -> Result<String, Error> {
        let len = self.count(NAME_BYTES_MAX, || {
            format!("length of the name of {}", what())
        })?;
        let bytes = self.bytes(len, || format!("the name of {}", what()))?;
        String::from_utf8(bytes).map_err(|error| Error::Key {
            key: String::from_utf8_lossy(error.as_bytes()).into_owned(),
            problem: format!("the name of {} is not UTF-8", what()),
        })
    }

    /// The string value (or one element of the string array) of `key`.
    pub(crate) fn string(&mut self, key: &str) -> Result<String, Error> {
        let what = || format!("length of a string of key `{key}`");
        let len = self.count(STRING_BYTES_MAX, what)?;
        let bytes = self.bytes(len, || format!("a string of key `{key}`"))?;
        String::from_utf8(bytes).map_err(|error| Error::Key {
            key: key.to_owned(),
            problem: format!("a string is not UTF-8: {}", error.utf8_error()),
        })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let read = self.reader.read_exact(bytes);
        read.map_err(|source| Error::reading(&self.path, source))?;
        self.hash.update(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }
}
