use crate::{Error, STOP_BYTES_MAX, STOPS_MAX};

/// Finds stop strings in a text that comes in pieces. Text that may be the beginning of a stop
/// string is held back, so nothing of a stop string, and nothing behind it, is ever released.
///
/// The stop string that is **completed first** ends the text (of several that end at the same
/// character, the longest), so the result does not depend on how the text was cut into pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    held: String, // a suffix of the text so far, and as long as the longest `Stop::matched`
    ended: bool,
}

/// What [`StopMatcher::push`] found out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Released {
    /// Text that is certainly part of the answer.
    pub text: String,
    /// The stop string that ended the text: its place in the list. Nothing follows.
    pub stopped: Option<usize>,
}

#[derive(Debug, Clone)]
struct Stop {
    bytes: Vec<u8>,
    /// For each prefix (by its length - 1): the length of its longest proper suffix that is a
    /// prefix as well (the failure function of Knuth, Morris and Pratt).
    borders: Vec<usize>,
    /// Length of the longest prefix with which the text so far ends.
    matched: usize,
}

impl StopMatcher {
    /// A matcher at the beginning of a text. No stop strings are fine: all text is released.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<StopMatcher, Error> {
        if stops.len() > STOPS_MAX {
            let problem = "too many stop strings";
            return Err(Error::Stops {
                problem,
                found: stops.len(),
                limit: STOPS_MAX,
            });
        }
        let mut known = Vec::with_capacity(stops.len());
        for (index, stop) in stops.iter().map(AsRef::as_ref).enumerate() {
            if stop.is_empty() {
                return Err(Error::EmptyStop { index });
            }
            if stop.len() > STOP_BYTES_MAX {
                let problem = "bytes of a stop string";
                return Err(Error::Stops {
                    problem,
                    found: stop.len(),
                    limit: STOP_BYTES_MAX,
                });
            }
            known.push(Stop::new(stop.as_bytes()));
        }
        Ok(StopMatcher {
            stops: known,
            held: String::new(),
            ended: false,
        })
    }

    /// The stop string in this place of the list.
    pub fn stop(&self, index: usize) -> &str {
        let bytes = self.stops.get(index).map_or(&[][..], |stop| &stop.bytes);
        std::str::from_utf8(bytes).unwrap_or_default() // it was one
    }

    /// Takes the next piece of the text. After a stop string was found it takes nothing more.
    pub fn push(&mut self, text: &str) -> Released {
        if self.ended {
            return Released::default();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let Some(index) = self.advance(byte) else {
                continue;
            };
            let end = before + at + 1;
            self.held.truncate(end - self.stops[index].bytes.len());
            self.ended = true;
            return Released {
                text: std::mem::take(&mut self.held),
                stopped: Some(index),
            };
        }
        let open = self
            .stops
            .iter()
            .map(|stop| stop.matched)
            .max()
            .unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - open);
        Released {
            text: std::mem::replace(&mut self.held, kept),
            stopped: None,
        }
    }

    /// The end of the text: what was held back, and turned out to be no stop string.
    pub fn flush(&mut self) -> String {
        self.ended = true;
        std::mem::take(&mut self.held)
    }

    /// Moves every stop string one byte on; the longest of those that it completes.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut completed: Option<usize> = None;
        for index in 0..self.stops.len() {
            let longest = completed.map_or(0, |other| self.stops[other].bytes.len());
            if self.stops[index].advance(byte) && self.stops[index].bytes.len() > longest {
                completed = Some(index);
            }
        }
        completed
    }
}

impl Stop {
    fn new(bytes: &[u8]) -> Stop {
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[at] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[border] == bytes[at]);
            borders[at] = border;
        }
        Stop {
            bytes: bytes.to_vec(),
            borders,
            matched: 0,
        }
    }

    /// Takes one byte of text; true when the text now ends with the whole stop string.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, on the whole text: the first end of any stop string, the longest one there.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let here = (0..stops.len()).filter(|i| text[..end].ends_with(stops[*i].as_str()));
            let longest = here.max_by_key(|i| (stops[*i].len(), std::cmp::Reverse(*i)));
            if let Some(index) = longest {
                return (text[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn equals_a_search_of_the_whole_text_for_every_chunking(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let whole = pieces.concat();
            let (text, stopped) = naive(&stops, &whole);
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let mut released = String::new();
            let mut found = None;
            for piece in &pieces {
                let step = matcher.push(piece);
                prop_assert!(found.is_none() || step == Released::default());
                released += &step.text;
                prop_assert!(text.starts_with(&released)); // nothing is ever taken back
                found = found.or(step.stopped);
            }
            released += &matcher.flush();
            prop_assert_eq!(released, text);
            prop_assert_eq!(found, stopped);
        }
    }

    #[test]
    fn nothing_is_held_back_without_need() {
        let mut matcher = StopMatcher::new(&["\n\nUser:", "END"]).unwrap();
        assert_eq!(matcher.push("one\n").text, "one");
        assert_eq!(matcher.push("two E").text, "\ntwo ");
        assert_eq!(matcher.push("N").text, "");
        let last = matcher.push("D and more");
        assert_eq!(
            last,
            Released {
                text: String::new(),
                stopped: Some(1)
            }
        );
        assert_eq!(matcher.push("more"), Released::default());
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn stops_out_of_bounds_are_refused() {
        assert!(matches!(
            StopMatcher::new(&["a", ""]),
            Err(Error::EmptyStop { index: 1 })
        ));
        let many = vec!["a"; STOPS_MAX + 1];
        let error = StopMatcher::new(&many).unwrap_err();
        assert_eq!(
            error.to_string(),
            "too many stop strings: 17; the limit is 16"
        );
        assert!(StopMatcher::new(&["a".repeat(STOP_BYTES_MAX + 1)]).is_err());
        assert!(StopMatcher::new(&["a".repeat(STOP_BYTES_MAX)]).is_ok());
    }
}
