//! Writing while a machine runs.

use crate::trace::{Header, MAGIC, TraceError};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A trace being written. Buffered: [`Writer::flush`] when there is nothing else to do.
#[derive(Debug)]
pub struct Writer {
    file: BufWriter<File>,
    path: PathBuf,
    record: Vec<u8>,
}

impl Writer {
    /// Begins a trace; a file of that name must not exist (a trace is evidence).
    pub fn create(path: &Path, header: &Header) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::create_new(path).map_err(failed)?;
        let (file, path) = (BufWriter::new(file), path.to_owned());
        let mut writer = Self {
            file,
            path,
            record: Vec::new(),
        };
        writer.put(MAGIC)?;
        writer.input(header);
        writer.end_record()?;
        Ok(writer)
    }

    /// One that cannot be written to, once so many bytes are full: nor can a full disk.
    #[cfg(test)]
    pub(super) fn that_fails(buffer: usize) -> Self {
        let path = PathBuf::from("/dev/full");
        let file = File::options().write(true).open(&path).unwrap();
        let file = BufWriter::with_capacity(buffer, file);
        Self {
            file,
            path,
            record: Vec::new(),
        }
    }

    /// What the machine is about to be told.
    pub fn input(&mut self, input: &impl Serialize) {
        self.record.clear();
        self.append(input);
    }

    /// What it answered to that.
    pub fn effects(&mut self, effects: &impl Serialize) -> Result<(), TraceError> {
        self.append(effects);
        self.end_record()
    }

    /// Hands everything to the system.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        let flushed = self.file.flush();
        flushed.map_err(|source| TraceError::Io {
            path: self.path.clone(),
            source,
        })
    }

    fn append(&mut self, value: &impl Serialize) {
        let record = std::mem::take(&mut self.record);
        // Postcard fails only for sequences of unknown length and for a writer that fails.
        self.record = postcard::to_extend(value, record).expect("a Vec takes any plain value");
    }

    fn end_record(&mut self) -> Result<(), TraceError> {
        let record = std::mem::take(&mut self.record);
        self.put(&(record.len() as u32).to_le_bytes())?;
        self.put(&record)?;
        self.record = record;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        let written = self.file.write_all(bytes);
        written.map_err(|source| TraceError::Io {
            path: self.path.clone(),
            source,
        })
    }
}
