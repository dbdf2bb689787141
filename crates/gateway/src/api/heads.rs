//! The heads of a connection, as their bytes are.
//!
//! The parser behind is lenient and tells nobody: of two equal `Content-Length` lines it keeps one,
//! beside `Transfer-Encoding` it drops them, and a line may end without its CR. Whoever stands before
//! this server may read such a head otherwise, and then a part of one client's request becomes the
//! beginning of another's. So every head is looked at as it comes in, and judged when the parser has
//! made a request of it. Nothing is changed on its way; what is not understood is refused.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was found in the bytes of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Header lines: the parser must have as many.
    pub lines: usize,
    /// Why it can be read in two ways.
    pub ambiguous: Option<&'static str>,
}

/// The heads of one connection.
#[derive(Debug)]
pub(super) struct Heads(Mutex<Reader>);

impl Heads {
    /// Of a connection whose heads have so many bytes at most.
    pub(super) fn new(head_max: usize) -> Self {
        Self(Mutex::new(Reader {
            at: At::Head,
            line: Vec::new(),
            head: Vec::new(),
            head_max,
            seen: VecDeque::new(),
        }))
    }

    /// Bytes that came in; gives how many of them the parser may have. Fewer than all: behind them is
    /// what no two readers agree on where it ends, and nothing on this connection is to be read any more.
    pub(super) fn came(&self, bytes: &[u8]) -> usize {
        self.reader().read(bytes)
    }

    /// What was seen of the next head that the parser made a request of.
    pub(super) fn next(&self) -> Seen {
        let unseen = Seen {
            lines: 0,
            ambiguous: Some("where this request begins depends on who reads those before it"),
        };
        self.reader().seen.pop_front().unwrap_or(unseen)
    }

    /// Whether all of what was asked has come: nothing of a body is on its way any more.
    pub(super) fn is_at_end(&self) -> bool {
        self.reader().at == At::Head
    }

    /// Whether the parser may have nothing more.
    pub(super) fn is_broken(&self) -> bool {
        self.reader().at == At::Broken
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where in the stream the next byte stands.
#[derive(Debug, PartialEq, Eq)]
enum At {
    Head,
    /// So many bytes of a body are left.
    Body(u64),
    /// In the line of a chunk's size.
    Size,
    /// So many bytes of a chunk are left, its end included.
    Chunk(u64),
    Trailers,
    /// Behind something that this or any other reader would refuse: nothing is known of the rest. The
    /// parser is shown it all the same, to make a request of it that can be answered.
    Lost,
    /// The same in a body, whose request is there already: the parser is shown no more.
    Broken,
}

/// Bytes of a line of a chunk's size, at most; the parser behind takes fewer.
const SIZE_MAX: usize = 64 << 10;

#[derive(Debug)]
struct Reader {
    at: At,
    /// The line that has begun.
    line: Vec<u8>,
    /// Lines of the head that has begun, their ends included.
    head: Vec<Vec<u8>>,
    head_max: usize,
    seen: VecDeque<Seen>,
}

impl Reader {
    fn read(&mut self, all: &[u8]) -> usize {
        let mut bytes = all;
        while !bytes.is_empty() {
            match self.at {
                At::Lost => return all.len(),
                At::Broken => return all.len() - bytes.len(),
                At::Body(left) | At::Chunk(left) => {
                    let taken = left.min(bytes.len() as u64);
                    bytes = &bytes[taken as usize..];
                    let left = left - taken;
                    self.at = match self.at {
                        At::Body(_) if left == 0 => At::Head,
                        At::Body(_) => At::Body(left),
                        _ if left == 0 => At::Size,
                        _ => At::Chunk(left),
                    };
                }
                At::Head | At::Size | At::Trailers => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let taken = end.map_or(bytes.len(), |end| end + 1);
                    self.line.extend_from_slice(&bytes[..taken]);
                    if self.too_long() {
                        self.lose();
                    } else if end.is_some() {
                        let line = std::mem::take(&mut self.line);
                        self.line_ended(line);
                    }
                    if self.at != At::Broken {
                        bytes = &bytes[taken..];
                    }
                }
            }
        }
        all.len()
    }

    fn too_long(&self) -> bool {
        match self.at {
            At::Head => {
                let lines = self.head.iter().map(Vec::len).sum::<usize>();
                lines + self.line.len() > self.head_max
            }
            _ => self.line.len() > SIZE_MAX,
        }
    }

    fn lose(&mut self) {
        (self.line, self.head) = (Vec::new(), Vec::new());
        self.at = match self.at {
            At::Head => At::Lost,
            _ => At::Broken,
        };
    }

    fn line_ended(&mut self, line: Vec<u8>) {
        let is_empty = matches!(&line[..], b"\n" | b"\r\n");
        match self.at {
            At::Head => {
                // Empty lines before a request are passed over; they count as lines of it here.
                let begun = self
                    .head
                    .iter()
                    .any(|line| !matches!(&line[..], b"\n" | b"\r\n"));
                self.head.push(line);
                if is_empty && begun {
                    let (seen, then) = judge(&std::mem::take(&mut self.head));
                    self.seen.push_back(seen);
                    self.at = then;
                }
            }
            At::Trailers if line == b"\r\n" => self.at = At::Head,
            At::Trailers if is_trailer(&line) => {}
            At::Trailers => self.lose(),
            _ => match size(&line) {
                Some(0) => self.at = At::Trailers,
                Some(size) => self.at = At::Chunk(size.saturating_add(2)),
                None => self.lose(),
            },
        }
    }
}

/// The size of a chunk, by its line.
fn size(line: &[u8]) -> Option<u64> {
    let line = whole(line)?;
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit());
    let (digits, rest) = line.split_at(end.unwrap_or(line.len()));
    let goes_on = matches!(rest.first(), None | Some(b';' | b' ' | b'\t'));
    let digits = std::str::from_utf8(digits).ok().filter(|_| goes_on)?;
    u64::from_str_radix(digits, 16).ok()
}

/// A line without its end, if no reader takes it for two.
fn whole(line: &[u8]) -> Option<&[u8]> {
    line.strip_suffix(b"\r\n").filter(|it| !it.contains(&b'\r'))
}

/// Whether a name of a header is this one, also to whoever takes `_` for `-`, as gateways to programs do.
fn is_named(name: &[u8], wanted: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| a.eq_ignore_ascii_case(b) || (*a, *b) == (b'_', b'-');
    name.len() == wanted.len() && name.iter().zip(wanted).all(same)
}

/// Names that say where a request ends or whose it is.
const FRAMING: [&[u8]; 3] = [b"content-length", b"transfer-encoding", b"host"];

/// Whether a line behind the last chunk is one to everybody, and says nothing about where it ends.
fn is_trailer(line: &[u8]) -> bool {
    let Some(line) = whole(line).filter(|it| !it.starts_with(b" ") && !it.starts_with(b"\t"))
    else {
        return false;
    };
    let colon = line.iter().position(|byte| *byte == b':');
    colon.is_some_and(|at| !FRAMING.iter().any(|it| is_named(&line[..at], it)))
}

/// What a whole head says, and what stands behind it.
fn judge(lines: &[Vec<u8>]) -> (Seen, At) {
    let (mut count, mut lengths, mut codings) = (0, Vec::new(), 0);
    let mut why = None;
    let mut begun = false;
    for line in lines {
        let Some(line) = whole(line) else {
            why = Some("a line of the head does not end in CR LF, or has a CR inside");
            continue;
        };
        if line.is_empty() {
            continue;
        }
        if !std::mem::replace(&mut begun, true) {
            // The request's own line. What stands behind `#` is cut off by some, and a path to others.
            if line.contains(&b'#') {
                why = Some("the target of the request has a `#`");
            }
            continue;
        }
        if line[0] == b' ' || line[0] == b'\t' {
            why = Some("a header line begins with a space: it may be one with the line before");
            continue;
        }
        count += 1;
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next());
        if name.ends_with(b" ") || name.ends_with(b"\t") || value.is_none() {
            why = Some("a header line has no colon right behind its name");
        }
        if name.contains(&b'_') && FRAMING.iter().any(|it| is_named(name, it)) {
            why = Some("a header line has `_` where some readers read `-`");
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            lengths.push(value.unwrap_or_default().trim_ascii());
        }
        codings += usize::from(name.eq_ignore_ascii_case(b"transfer-encoding"));
    }
    let length = match lengths[..] {
        [] => Some(0),
        [one] if one.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(one).ok().and_then(|it| it.parse().ok())
        }
        _ => None,
    };
    if lengths.len() > 1 {
        why = Some("expected one `Content-Length` line; there are several");
    } else if length.is_none() {
        why = Some("`Content-Length` is no plain number");
    } else if codings > 0 && !lengths.is_empty() {
        why = Some("`Content-Length` and `Transfer-Encoding` both say where the body ends");
    }
    let then = match (why, length) {
        (None, _) if codings > 0 => At::Size,
        (None, Some(length)) if length > 0 => At::Body(length),
        (None, _) => At::Head,
        (Some(_), _) => At::Lost,
    };
    let (lines, ambiguous) = (count, why);
    (Seen { lines, ambiguous }, then)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str, step: usize) -> Vec<Option<&'static str>> {
        let heads = Heads::new(1000);
        for piece in text.as_bytes().chunks(step) {
            heads.came(piece);
        }
        let seen = &heads.reader().seen;
        seen.iter().map(|it| it.ambiguous).collect()
    }

    #[test]
    fn every_head_of_a_connection_is_found_whatever_stands_before_it() {
        let get = "GET / HTTP/1.1\r\nhost: t\r\n\r\n";
        let text = format!(
            "{get}\r\nPOST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nGET \r\n\r\n\n{get}\
             POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
             0A;x=\"y\"\r\nGET / \r\n\r\n\r\n5 \r\n01234\r\n0\r\nx: y\r\n\r\n{get}"
        );
        for step in [1, 2, 3, 7, 1000] {
            assert_eq!(seen(&text, step), [None; 5], "{step}");
        }
        let both = "POST / HTTP/1.1\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n";
        let text = format!("{get}{both}{get}");
        for step in [1, 1000] {
            let seen = seen(&text, step);
            assert!(seen[0].is_none() && seen[1].is_some(), "{step}: {seen:?}");
            assert_eq!(seen.len(), 2, "nothing behind it is looked at");
        }
    }

    /// Each for its own reason: the parser behind refuses some of them as well, and of others it keeps
    /// fewer lines than there were.
    #[test]
    fn what_can_be_read_in_two_ways_is_named() {
        let one = "content-length: 5\r\n";
        let chunked = "transfer-encoding: chunked\r\n";
        for (fields, why) in [
            (format!("{one}{one}"), "there are several"),
            (format!("{one}content-length: 6\r\n"), "there are several"),
            (format!("{one}{chunked}"), "both say where"),
            (format!("{chunked}{one}"), "both say where"),
            ("content-length: +5\r\n".into(), "no plain number"),
            ("content-length: 5, 5\r\n".into(), "no plain number"),
            ("x: y\n".into(), "does not end in CR LF"),
            ("x: y\rz: a\r\n".into(), "a CR inside"),
            ("x: y\r\r\n".into(), "a CR inside"),
            ("x: y\r\n z\r\n".into(), "begins with a space"),
            ("x : y\r\n".into(), "no colon"),
        ] {
            let text = format!("POST / HTTP/1.1\r\nhost: t\r\n{fields}\r\n");
            for step in [1, 1000] {
                let seen = seen(&text, step);
                let [Some(said)] = seen[..] else {
                    panic!("{fields:?}: {seen:?}")
                };
                assert!(said.contains(why), "{fields:?}: {said}");
            }
        }
    }

    #[test]
    fn what_is_no_chunk_or_no_head_of_this_size_ends_the_reading() {
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        for size in ["x", "", "+1", "0x1", "1\n", "11111111111111111"] {
            let heads = Heads::new(1000);
            heads.came(format!("{chunked}{size}\r\n").as_bytes());
            assert!(heads.next().ambiguous.is_none());
            assert_eq!(heads.reader().at, At::Broken, "{size}");
            assert!(heads.next().ambiguous.is_some(), "{size}");
        }
        let heads = Heads::new(100);
        heads.came(format!("GET / HTTP/1.1\r\nx: {}", "a".repeat(100)).as_bytes());
        assert_eq!(heads.reader().at, At::Lost);
    }
}
