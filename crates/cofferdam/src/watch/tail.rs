//! A log that grows: its lines, from where an earlier run left it, across rotation.

use super::memory::Position;
use ::watch::fields::LINE_MAX;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// How often a log that has not grown is looked at.
const LOOK: Duration = Duration::from_millis(100);
const CHUNK: usize = 64 << 10;

/// A line, and where the log stands after it.
pub(super) struct Tailed {
    pub line: Vec<u8>,
    pub position: Position,
}

/// Sends lines until nobody takes them any more, or the log cannot be read; `-` is standard input,
/// which ends.
pub(super) fn tail(path: &Path, from: Position, lines: &Sender<io::Result<Tailed>>) {
    let done = match path == Path::new("-") {
        true => input(lines),
        false => grow(&path.to_owned(), from, lines),
    };
    if let Err(error) = done {
        let _ = lines.blocking_send(Err(error)); // nobody listens: all is over anyway
    }
}

fn input(lines: &Sender<io::Result<Tailed>>) -> io::Result<()> {
    super::lines::each(io::stdin().lock(), |line| {
        let (line, position) = (line.to_owned(), Position::default());
        let _ = lines.blocking_send(Ok(Tailed { line, position }));
    })
}

fn grow(path: &PathBuf, from: Position, lines: &Sender<io::Result<Tailed>>) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut inode = file.metadata()?.ino();
    // Another file, or a shorter one: it was rotated while nobody looked, and is read from its
    // beginning.
    let mut offset = match from.inode == inode && from.offset <= file.metadata()?.len() {
        true => file.seek(SeekFrom::Start(from.offset))?,
        false => 0,
    };
    let mut line = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = file.read(&mut chunk)?;
        for byte in &chunk[..n] {
            offset += 1;
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut line);
                    let position = Position { inode, offset };
                    if lines.blocking_send(Ok(Tailed { line, position })).is_err() {
                        return Ok(());
                    }
                }
                byte if line.len() <= LINE_MAX => line.push(*byte),
                _ => {} // too long already: refused when it ends
            }
        }
        if n > 0 {
            continue;
        }
        if lines.is_closed() {
            return Ok(());
        }
        // Everything was read. Has the name gone to another file, or the file become shorter?
        let shrunk = file.metadata()?.len() < offset;
        match std::fs::metadata(path) {
            Ok(now) if now.ino() != inode || shrunk => {
                file = File::open(path)?;
                (inode, offset) = (file.metadata()?.ino(), 0);
                line.clear();
            }
            // While it is being rotated there may be none.
            _ => std::thread::sleep(LOOK),
        }
    }
}
