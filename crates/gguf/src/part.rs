//! Where the bytes of tensors lie, and how they are read: by their place, a mebibyte at a time. What was read
//! is counted by its digest, so that a fingerprint is of the bytes that were used and needs no pass of its own.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::{Error, Tensor};

/// Bytes that are read at once, unless a single row has more.
const READ: usize = 1 << 20;

pub(crate) type Digest = [u8; 32];

/// One file of a model, or what takes the place of one.
pub struct Part {
    from: From,
    /// Bytes of tensors, and of what lies between them.
    len: u64,
    /// Of what stands before them.
    head: Digest,
    /// Of tensors that were read to their end, by where they begin.
    read: Mutex<BTreeMap<u64, Digest>>,
}

enum From {
    Memory(Vec<u8>),
    File {
        path: PathBuf,
        file: fs::File,
        /// Where in the file tensors begin.
        begin: u64,
        modified: Option<SystemTime>,
    },
}

impl Part {
    /// Numbers that stand in no file.
    pub fn of_memory(bytes: Vec<u8>) -> Part {
        Part::with_head(bytes, *blake3::hash(b"").as_bytes())
    }

    /// The same behind what has this hash.
    pub(crate) fn with_head(bytes: Vec<u8>, head: Digest) -> Part {
        let len = bytes.len() as u64;
        Part::new(From::Memory(bytes), len, head)
    }

    /// A file of which the first `begin` bytes were read, and have this BLAKE3 hash.
    pub fn of_file(opened: Opened, begin: u64, head: [u8; 32]) -> Part {
        let len = opened.len.saturating_sub(begin);
        let from = From::File {
            path: opened.path,
            file: opened.file,
            begin,
            modified: opened.modified,
        };
        Part::new(from, len, head)
    }

    fn new(from: From, len: u64, head: Digest) -> Part {
        let read = Mutex::default();
        Part {
            from,
            len,
            head,
            read,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn head(&self) -> Digest {
        self.head
    }

    /// Fills `into` with the bytes from `at` on, which are known to be there.
    fn fill(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        match &self.from {
            From::Memory(bytes) => {
                into.copy_from_slice(&bytes[at as usize..][..into.len()]);
                Ok(())
            }
            From::File {
                path, file, begin, ..
            } => {
                let read = file.read_exact_at(into, begin + at);
                read.map_err(|source| Error::reading(path, source))
            }
        }
    }

    /// Whether the file is, as far as the system tells, the one that was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), Error> {
        let From::File {
            path,
            file,
            begin,
            modified,
        } = &self.from
        else {
            return Ok(());
        };
        let now = file.metadata();
        let now = now.map_err(|source| Error::reading(path, source))?;
        match now.len() == begin + self.len && now.modified().ok() == *modified {
            true => Ok(()),
            false => Err(Error::Changed { path: path.clone() }),
        }
    }

    /// Of these bytes: as they were used if they were, else as they are now.
    pub(crate) fn digest(&self, range: Range<u64>) -> Result<Digest, Error> {
        let known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&range.start) {
            return Ok(*known);
        }
        drop(known);
        let mut hash = blake3::Hasher::new();
        let mut buffer = vec![0; READ.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            let next = &mut buffer[..READ.min((range.end - at) as usize)];
            self.fill(at, next)?;
            hash.update(next);
            at += next.len() as u64;
        }
        Ok(*hash.finalize().as_bytes())
    }

    /// Keeps the digest of a tensor that begins here; one that was read before must be the same.
    fn keep(&self, at: u64, digest: Digest) -> Result<(), Error> {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.from, *known.entry(at).or_insert(digest) == digest) {
            (From::File { path, .. }, false) => Err(Error::Changed { path: path.clone() }),
            _ => Ok(()),
        }
    }
}

/// A file before anything was read of it.
pub struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) file: fs::File,
    pub(crate) len: u64,
    modified: Option<SystemTime>,
}

impl Opened {
    /// Opens the file.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn open(path: &std::path::Path) -> std::io::Result<Opened> {
        let file = fs::File::open(path)?;
        let about = file.metadata()?;
        Ok(Opened {
            path: path.to_owned(),
            file,
            len: about.len(),
            modified: about.modified().ok(),
        })
    }

    /// Its length when it was opened, in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// To read its head from.
    pub fn file(&self) -> &fs::File {
        &self.file
    }
}

/// The rows of a tensor, from the first on; a mebibyte of them is in memory at a time.
pub struct RowReader<'f> {
    tensor: Tensor<'f>,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given out, and of the tensor that were read.
    given: usize,
    read: u64,
    hash: blake3::Hasher,
}

impl<'f> RowReader<'f> {
    pub(crate) fn new(tensor: Tensor<'f>) -> RowReader<'f> {
        RowReader {
            tensor,
            buffer: Vec::new(),
            given: 0,
            read: 0,
            hash: blake3::Hasher::new(),
        }
    }

    /// Of which tensor.
    pub fn tensor(&self) -> Tensor<'f> {
        self.tensor
    }

    /// The stored bytes of the next row. Panics if there was a last one.
    ///
    /// # Errors
    /// The file cannot be read, or has changed since it was opened.
    pub fn next_row(&mut self) -> Result<&[u8], Error> {
        if self.given == self.buffer.len() {
            self.read_more()?;
        }
        let row = self.tensor.row_bytes();
        self.given += row;
        Ok(&self.buffer[self.given - row..self.given])
    }

    fn read_more(&mut self) -> Result<(), Error> {
        let Tensor { about, part, .. } = self.tensor;
        let left = about.range.end - about.range.start - self.read;
        assert!(left > 0, "{:?} has no more rows", self.tensor);
        let together = self.tensor.row_bytes() * about.paired.unwrap_or(1);
        let most = (READ / together).max(1) * together;
        self.buffer.resize(most.min(left as usize), 0);
        part.fill(about.range.start + self.read, &mut self.buffer)?;
        self.hash.update(&self.buffer);
        (self.given, self.read) = (0, self.read + self.buffer.len() as u64);
        if about.range.start + self.read == about.range.end {
            part.keep(about.range.start, *self.hash.finalize().as_bytes())?;
        }
        if about.paired.is_some() {
            for head in self.buffer.chunks_exact_mut(together) {
                pair(head, self.tensor.row_bytes());
            }
        }
        Ok(())
    }
}

/// Of the rows of a head, first all that are first of a pair and then all second ones, makes pairs.
fn pair(head: &mut [u8], row: usize) {
    let before = head.to_vec();
    let (first, second) = before.split_at(before.len() / 2);
    let pairs = first.chunks_exact(row).zip(second.chunks_exact(row));
    for (to, (first, second)) in head.chunks_exact_mut(2 * row).zip(pairs) {
        to[..row].copy_from_slice(first);
        to[row..].copy_from_slice(second);
    }
}
