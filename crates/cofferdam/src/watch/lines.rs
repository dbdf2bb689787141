//! Lines of logs, bounded in length.

use ::watch::fields::{Fields, LINE_MAX, Line};
use std::io::{self, BufRead};

/// Counts of what the lines of a log turned out to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    /// Lines.
    pub lines: u64,
    /// Not what the mapping says.
    pub bad: u64,
    /// Where and why, of the first.
    pub first_bad: Option<String>,
}

impl Read {
    /// Reads a line.
    pub(super) fn line(&mut self, fields: &Fields, name: &str, line: &[u8]) -> Line {
        self.lines += 1;
        let line = match std::str::from_utf8(line) {
            Ok(line) => fields.line(line),
            Err(_) => Line::Bad("not UTF-8".to_owned()),
        };
        if let Line::Bad(why) = &line {
            self.bad += 1;
            let first = || format!("{name}, line {}: {why}", self.lines);
            self.first_bad.get_or_insert_with(first);
        }
        line
    }

    /// More of the lines are bad than a log has by accident.
    pub(super) fn is_doubtful(&self) -> bool {
        self.bad * 100 > self.lines
    }
}

/// Calls `each` with every line, without its end. Of a line that is too long only the beginning is
/// kept, long enough to be refused.
pub(super) fn each(mut log: impl BufRead, mut each: impl FnMut(&[u8])) -> io::Result<()> {
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
            each(&line);
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_and_a_last_one_without_end() {
        let long = "x".repeat(3 * LINE_MAX);
        let text = format!("a\n\n{long}\nlast");
        let mut lines = Vec::new();
        each(text.as_bytes(), |it| lines.push(it.len())).unwrap();
        assert_eq!(lines, [1, 0, LINE_MAX + 1, 4]);
    }
}
