//! The classes of characters that the patterns tell apart.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as Parsed, HirKind};

/// A set of characters, as a regular expression names it.
pub(super) struct Class {
    ascii: [bool; 128],
    ranges: Vec<(char, char)>,
}

impl Class {
    /// `pattern`: a class, written as in a regular expression.
    pub(super) fn new(pattern: &str) -> Class {
        let parsed = regex_syntax::parse(pattern).expect("a class of Unicode");
        let HirKind::Class(Parsed::Unicode(class)) = parsed.kind() else {
            unreachable!("one class is a class")
        };
        let ranges: Vec<(char, char)> = class.iter().map(|it| (it.start(), it.end())).collect();
        let ascii = std::array::from_fn(|at| within(&ranges, char::from(at as u8)));
        Class { ascii, ranges }
    }

    pub(super) fn has(&self, c: char) -> bool {
        match self.ascii.get(c as usize) {
            Some(has) => *has,
            None => within(&self.ranges, c),
        }
    }

    /// Length of the characters of this class with which `text` begins.
    pub(super) fn run(&self, text: &str) -> usize {
        text.find(|c| !self.has(c)).unwrap_or(text.len())
    }
}

fn within(ranges: &[(char, char)], c: char) -> bool {
    let at = ranges.partition_point(|(_, end)| *end < c);
    ranges.get(at).is_some_and(|(start, _)| *start <= c)
}

/// `\p{L}`. (`char::is_alphabetic` is a larger class.)
pub(super) static LETTER: LazyLock<Class> = LazyLock::new(|| Class::new(r"\p{L}"));

/// What the patterns of GPT-2 and its heirs tell apart.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sort {
    Space,
    Letter,
    Number,
    Other,
}

pub(super) fn sort(c: char) -> Sort {
    if c.is_whitespace() {
        Sort::Space
    } else if LETTER.has(c) {
        Sort::Letter
    } else if c.is_numeric() {
        Sort::Number
    } else {
        Sort::Other
    }
}

/// Length of the characters of this sort with which `text` begins.
pub(super) fn run(text: &str, wanted: Sort) -> usize {
    text.find(|c| sort(c) != wanted).unwrap_or(text.len())
}
