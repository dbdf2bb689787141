use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::{AhoCorasick, MatchKind};

/// Tokens that are found in a text before it is cut into words, by their literal text:
/// *control* tokens (`<|im_start|>`), which only a caller with authority may write, and
/// *user-defined* ones, which are plain text with an id of its own.
pub(crate) struct Specials {
    all: Automaton,
    user_defined: Automaton,
    /// The first two characters of every control token.
    openings: BTreeSet<(char, char)>,
    /// What can follow when a control token was begun: its proper suffixes, by first character.
    endings: BTreeMap<char, BTreeSet<String>>,
}

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Token(u32),
}

/// Finds tokens from left to right, the longest at each place.
struct Automaton {
    matcher: Option<AhoCorasick>, // none without patterns
    ids: Vec<u32>,
}

impl Specials {
    /// `control` and `user_defined` are pairs of text and id. A control token of one character is
    /// left out: nothing could tell it from that character in somebody's text.
    pub(crate) fn new(
        mut control: Vec<(&str, u32)>,
        user_defined: Vec<(&str, u32)>,
    ) -> Result<Specials, String> {
        control.retain(|(text, _)| text.chars().nth(1).is_some());
        let mut openings = BTreeSet::new();
        let mut endings: BTreeMap<char, BTreeSet<String>> = BTreeMap::new();
        for (text, _) in &control {
            openings.extend(text.chars().zip(text.chars().skip(1)).next());
            for (at, c) in text.char_indices().skip(1) {
                endings.entry(c).or_default().insert(text[at..].to_owned());
            }
        }
        let all = control
            .into_iter()
            .chain(user_defined.iter().copied())
            .collect();
        Ok(Specials {
            all: Automaton::new(all)?,
            user_defined: Automaton::new(user_defined)?,
            openings,
            endings,
        })
    }

    /// Cuts `text` at its special tokens; without `control`, at the user-defined ones only.
    pub(crate) fn split<'t>(&self, text: &'t str, control: bool) -> Vec<Piece<'t>> {
        if control {
            self.all.split(text)
        } else {
            self.user_defined.split(text)
        }
    }

    /// Puts `mark`, a character that occurs nowhere else, where it keeps `text` from being any
    /// part of a control token, whatever the template writes before and behind it:
    /// - between two characters that open a control token, and behind a last character that may
    ///   open one, so none begins in `text`;
    /// - before a beginning that may end a control token, so none goes on into `text`.
    ///
    /// The template may trim white space. Text without such places, nearly all there is, stays as
    /// it is, so a template sees what it expects.
    pub(crate) fn guard<'t>(&self, text: &'t str, mark: char) -> Cow<'t, str> {
        let begins = text.len() - text.trim_start().len();
        let ends = text.trim_end().len();
        let mut guarded = String::with_capacity(text.len());
        let mut characters = text.char_indices().peekable();
        while let Some((at, c)) = characters.next() {
            if (at == 0 || at == begins) && self.may_end(c, &text[at..]) {
                guarded.push(mark);
            }
            guarded.push(c);
            let after = at + c.len_utf8();
            let opens = match characters.peek() {
                Some((_, next)) if after != ends => self.openings.contains(&(c, *next)),
                _ => self.openings.iter().any(|(first, _)| *first == c),
            };
            if opens {
                guarded.push(mark);
            }
        }
        if guarded.len() == text.len() {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(guarded)
        }
    }

    /// Whether `text`, of which `c` is the first character, may go on with a control token: it
    /// has all that is missing, or is itself only a piece of that.
    fn may_end(&self, c: char, text: &str) -> bool {
        let pieces = [text, text.trim_end()];
        self.endings.get(&c).is_some_and(|endings| {
            endings.iter().any(|ending| {
                text.starts_with(ending) || pieces.iter().any(|piece| ending.starts_with(piece))
            })
        })
    }
}

impl Automaton {
    fn new(tokens: Vec<(&str, u32)>) -> Result<Automaton, String> {
        let (texts, ids): (Vec<&str>, Vec<u32>) = tokens
            .into_iter()
            .filter(|(text, _)| !text.is_empty())
            .unzip();
        if texts.is_empty() {
            return Ok(Automaton { matcher: None, ids });
        }
        let builder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts);
        let matcher = Some(builder.map_err(|error| error.to_string())?);
        Ok(Automaton { matcher, ids })
    }

    fn split<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for found in self
            .matcher
            .iter()
            .flat_map(|matcher| matcher.find_iter(text))
        {
            if done < found.start() {
                pieces.push(Piece::Text(&text[done..found.start()]));
            }
            pieces.push(Piece::Token(self.ids[found.pattern().as_usize()]));
            done = found.end();
        }
        if done < text.len() {
            pieces.push(Piece::Text(&text[done..]));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn specials() -> Specials {
        let control = vec![("<|a|>", 1), ("<|a|><|b|>", 2), ("[ x]", 3), ("<", 4)];
        Specials::new(control, vec![("<think>", 5)]).unwrap()
    }

    #[test]
    fn the_longest_token_is_found_and_user_defined_ones_always() {
        let specials = specials();
        assert_eq!(
            specials.split("q<|a|><|b|><|a|> <think>", true),
            [
                Piece::Text("q"),
                Piece::Token(2),
                Piece::Token(1),
                Piece::Text(" "),
                Piece::Token(5)
            ]
        );
        assert_eq!(
            specials.split("<|a|><think>", false),
            [Piece::Text("<|a|>"), Piece::Token(5)]
        );
        assert_eq!(specials.split("", true), []);
    }

    #[test]
    fn ordinary_text_is_left_as_it_is() {
        let specials = specials();
        for text in ["", "a < b", "</think>", "ax]", " ab|", "trailing <\n"] {
            let marks = specials
                .guard(text, '\u{F0000}')
                .matches('\u{F0000}')
                .count();
            assert_eq!(
                marks,
                usize::from(text.trim_end().ends_with('<')),
                "{text:?}"
            );
        }
        assert_eq!(specials.guard(" x] <|a|> [", '!'), "! !x] <!|a|> [!");
        assert_eq!(specials.guard("a|>", '!'), "!a|>");
        assert_eq!(specials.guard("a ", '!'), "!a ");
    }

    /// Regression: a run of white space took time by the square of its length, 34 s for 32 KiB.
    #[test]
    fn a_long_run_of_white_space_is_no_burden() {
        let text = "\n".repeat(4 << 20);
        assert_eq!(specials().guard(&text, '!').len(), text.len());
    }

    proptest! {
        /// Whatever a template writes around guarded texts, and if it trims them, a control token
        /// takes no character of theirs. The texts are the parts of a control token, cut anywhere,
        /// some of them the template's and some guarded, with anything before and behind.
        #[test]
        fn guarded_text_is_never_part_of_a_control_token(
            token in prop::sample::select(vec!["<|a|>", "<|a|><|b|>", "[ x]"]),
            cuts: [prop::sample::Index; 2],
            guarded: [bool; 5],
            space in "[ \n]{0,2}",
            [before, behind] in ["[<|ab>\\[x\\] q]{0,6}", "[<|ab>\\[x\\] q]{0,6}"],
            trim: bool,
        ) {
            let mut cuts = cuts.map(|cut| cut.index(token.len() + 1));
            cuts.sort();
            let [a, b] = cuts;
            let parts = [&before, &token[..a], &token[a..b], &token[b..], &behind];
            let specials = specials();
            let mut whole = String::new();
            let mut theirs = Vec::new(); // which bytes of `whole` came from a guarded text
            for (part, guarded) in parts.into_iter().zip(guarded) {
                if guarded {
                    let said = [space.as_str(), part, &space].concat();
                    let said = if trim { &said } else { part };
                    let marked = specials.guard(said, '\u{F0000}');
                    whole.push_str(if trim { marked.trim() } else { &marked });
                } else {
                    whole.push_str(part);
                }
                theirs.resize(whole.len(), guarded);
            }
            let mut at = 0;
            for piece in specials.split(&whole, true) {
                let len = match piece {
                    Piece::Text(text) => text.len(),
                    Piece::Token(1) => 5,
                    Piece::Token(2) => 10,
                    Piece::Token(3) => 4,
                    Piece::Token(_) => 7,
                };
                if matches!(piece, Piece::Token(1..=3)) {
                    prop_assert!(!theirs[at..at + len].contains(&true), "{whole:?} at {at}");
                }
                at += len;
            }
        }
    }
}
