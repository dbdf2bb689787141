//! Reading within a limit, writing whole or not at all, and standard output.

use crate::exit::{Exit, Failure};
use anyhow::{Context, ensure};
use std::io::Write;
use std::path::Path;

/// A text file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> anyhow::Result<String> {
    let size = std::fs::metadata(path).context("cannot be read")?.len();
    ensure!(size <= limit, "is {size} bytes; at most {limit} are read");
    std::fs::read_to_string(path).context("cannot be read")
}

/// Writes a file whole or not at all: who reads it never sees half of it.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let write = || -> anyhow::Result<()> {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(parent.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    let written = write().with_context(|| format!("cannot write {}", path.display()));
    written.map_err(Failure::usage)
}

/// Prints.
pub(crate) fn say(text: &str) -> Result<Exit, Failure> {
    let said = std::io::stdout().write_all(text.as_bytes());
    match said {
        // `gate | head` has seen enough; the verdict stands in the exit code.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Good),
        said => said
            .map(|()| Exit::Good)
            .context("standard output")
            .map_err(Failure::found),
    }
}
