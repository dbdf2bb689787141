//! Lines of logs, bounded in length.

use super::format::Format;
use super::passed_over::PassedOver;
use ::watch::fields::{LINE_MAX, Line};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Error, ErrorKind};

/// Counts of what the lines of a log turned out to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    /// Lines.
    pub lines: u64,
    /// Not what the mapping says.
    pub bad: u64,
    /// Where and why, of the first.
    pub first_bad: Option<String>,
    /// Something else that the program logs.
    pub unmarked: u64,
    /// What `only` has passed over.
    pub passed_over: PassedOver,
}

impl Read {
    /// Reads a line, which may be about several requests.
    pub(super) fn line(&mut self, format: &Format, name: &str, line: &[u8]) -> Vec<Line> {
        self.lines += 1;
        let is_blank = line.trim_ascii().is_empty();
        let lines = match std::str::from_utf8(line) {
            Ok(line) => format.lines(line),
            Err(_) => vec![Line::Bad("not UTF-8".to_owned())],
        };
        for line in &lines {
            match line {
                Line::Bad(why) => {
                    self.bad += 1;
                    let first = || format!("{name}, line {}: {why}", self.lines);
                    self.first_bad.get_or_insert_with(first);
                }
                Line::PassedOver { field, value } => self.passed_over.add(field, value.as_deref()),
                Line::Unmarked => self.unmarked += 1,
                Line::Other if is_blank => {}
                Line::Request(_) | Line::Other => self.passed_over.kept += 1,
            }
        }
        lines
    }

    /// Why nothing can be said of a log of which nothing was kept, if that is so.
    pub(super) fn nothing_kept(&self, format: &Format) -> Option<String> {
        match format {
            Format::Fields(fields) => self.passed_over.nothing_kept(fields),
            Format::Preset(it) if self.passed_over.kept == 0 && self.lines > self.bad => {
                Some(format!(
                    "no line of {} is about a request as the preset {} has them ({})",
                    self.lines, it.name, it.about
                ))
            }
            Format::Preset(_) => None,
        }
    }

    /// Adds the counts of another log.
    pub(super) fn add(&mut self, other: Read) {
        self.lines += other.lines;
        self.bad += other.bad;
        self.unmarked += other.unmarked;
        self.first_bad = self.first_bad.take().or(other.first_bad);
        self.passed_over.merge(other.passed_over);
    }

    /// More of the lines are bad than a log has by accident.
    pub(super) fn is_doubtful(&self) -> bool {
        self.bad * 100 > self.lines - self.unmarked
    }
}

/// The lines of a log, also of one that was packed with gzip when it was rotated (several parts in
/// one file, too).
pub(crate) fn unpacked(file: File) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(file);
    Ok(match file.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(MultiGzDecoder::new(file))),
        [0x28, 0xb5, 0x2f, 0xfd, ..]
        | [b'B', b'Z', b'h', ..]
        | [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            let says =
                "is packed, and not with gzip: unpack it first (zstd -dc, bzip2 -dc, xz -dc)";
            return Err(Error::new(ErrorKind::InvalidData, says));
        }
        _ => Box::new(file),
    })
}

/// Calls `each` with every line, without its end. Of a line that is too long only the beginning is
/// kept, long enough to be refused.
pub(super) fn each(log: impl BufRead, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    each_while(log, |line| {
        each(line);
        true
    })
}

/// The same, until `each` wants no more.
pub(crate) fn each_while(
    mut log: impl BufRead,
    mut each: impl FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let chunk = log.fill_buf()?;
        if chunk.is_empty() {
            if !line.is_empty() {
                each(&line);
            }
            return Ok(());
        }
        let end = chunk.iter().position(|it| *it == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        let room = (LINE_MAX + 1).saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(chunk.len(), |it| it + 1);
        log.consume(used);
        if end.is_some() {
            if !each(&line) {
                return Ok(());
            }
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_log_is_unpacked_and_another_packing_is_named() {
        use std::io::{Seek, Write};
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            file.rewind().unwrap();
            file
        };
        let packed = |text: &str| {
            let mut pack = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            pack.write_all(text.as_bytes()).unwrap();
            pack.finish().unwrap()
        };
        let two = [packed("a\nb"), packed("c\nlast")].concat();
        let mut lines = Vec::new();
        each(unpacked(file(&two)).unwrap(), |it| lines.push(it.to_vec())).unwrap();
        assert_eq!(lines, [&b"a"[..], b"bc", b"last"]);
        let mut none = 0;
        each(unpacked(file(b"")).unwrap(), |_| none += 1).unwrap();
        assert_eq!(none, 0);
        // What was cut off is an error, and not a shorter log.
        let cut = each(unpacked(file(&two[..two.len() - 9])).unwrap(), |_| ());
        assert!(cut.is_err());
        let error = unpacked(file(b"\x28\xb5\x2f\xfd..."))
            .map(|_| ())
            .unwrap_err();
        assert!(error.to_string().contains("zstd -dc"), "{error}");
    }

    #[test]
    fn lines_of_any_length_and_a_last_one_without_end() {
        let long = "x".repeat(3 * LINE_MAX);
        let text = format!("a\n\n{long}\nlast");
        let mut lines = Vec::new();
        each(text.as_bytes(), |it| lines.push(it.len())).unwrap();
        assert_eq!(lines, [1, 0, LINE_MAX + 1, 4]);
    }
}
