//! Server-sent events as engines write them: one JSON value an event, `[DONE]` at the end.

/// What a stream of bytes holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The data of an event.
    Data(Vec<u8>),
    /// `[DONE]`.
    Done,
}

/// A line is longer than any event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Cuts a stream into events.
pub(super) struct Lines {
    kept: Vec<u8>,
    longest: usize,
}

impl Lines {
    pub(super) fn new(longest: usize) -> Self {
        Self {
            kept: Vec::new(),
            longest,
        }
    }

    /// Events that have become whole with these bytes. A field that is not `data` says nothing.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<Line>, TooLong> {
        let mut lines = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            match self.kept.is_empty() {
                true => lines.extend(event(line)),
                false => {
                    self.keep(line)?;
                    lines.extend(event(&std::mem::take(&mut self.kept)));
                }
            }
        }
        self.keep(rest)?;
        Ok(lines)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.kept.len() + bytes.len() > self.longest {
            return Err(TooLong);
        }
        self.kept.extend_from_slice(bytes);
        Ok(())
    }
}

fn event(line: &[u8]) -> Option<Line> {
    let data = line.strip_prefix(b"data:")?.trim_ascii();
    match data {
        b"" => None,
        b"[DONE]" => Some(Line::Done),
        data => Some(Line::Data(data.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let whole =
            b": hello\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:{\"b\":2}\n\ndata: [DONE]\n\n";
        let expected = [
            Line::Data(b"{\"a\":1}".to_vec()),
            Line::Data(b"{\"b\":2}".to_vec()),
            Line::Done,
        ];
        for size in 1..whole.len() {
            let mut lines = Lines::new(64);
            let cut = whole.chunks(size).map(|part| lines.take(part).unwrap());
            let got: Vec<Line> = cut.flatten().collect();
            assert_eq!(got, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        let mut lines = Lines::new(10);
        assert_eq!(lines.take(b"data: 1234"), Ok(Vec::new()));
        assert_eq!(lines.take(b"5"), Err(TooLong));
    }
}
