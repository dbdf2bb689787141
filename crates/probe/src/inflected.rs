//! A word of a text as a word of the list, though it stands there in another form: plural, past,
//! abbreviated. Each word of a text is one of the list at most, so chance is what it was.

use crate::canary::{self, LIST, Word};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Letters by which a word of the list is known.
const KNOWN_BY: usize = 4;
/// Letters that an ending adds.
const ENDING_MAX: usize = 3;

/// The word of the list.
pub fn index(word: &str) -> Option<Word> {
    listed(word)
        .or_else(|| longer(word))
        .or_else(|| shortest(word))
}

/// The list's own search goes through all of it.
fn listed(word: &str) -> Option<Word> {
    static LISTED: OnceLock<HashMap<&str, Word>> = OnceLock::new();
    let all = LISTED.get_or_init(|| {
        let all = (0..LIST as Word).map(|it| (canary::word(it), it));
        all.collect()
    });
    all.get(word).copied()
}

/// `abilities`, `abandoned`, `aban`.
fn longer(word: &str) -> Option<Word> {
    static BY_FOUR: OnceLock<HashMap<&str, Word>> = OnceLock::new();
    let by_four = BY_FOUR.get_or_init(|| {
        let all = (0..LIST as Word).map(|it| (canary::word(it), it));
        all.filter_map(|(word, it)| Some((word.get(..KNOWN_BY)?, it)))
            .collect()
    });
    let found = *by_four.get(word.get(..KNOWN_BY)?)?;
    let whole = canary::word(found);
    let same = whole
        .bytes()
        .zip(word.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    // A vowel at its end may have changed; of an abbreviation there is nothing else.
    let close = same + 1 >= whole.len() && word.len() <= whole.len() + ENDING_MAX;
    (close || same == word.len()).then_some(found)
}

/// `acts`, `acting`.
fn shortest(word: &str) -> Option<Word> {
    let ends = word.len() <= KNOWN_BY - 1 + ENDING_MAX;
    listed(word.get(..KNOWN_BY - 1).filter(|_| ends)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_of_a_word() {
        for (form, word) in [
            ("abilities", "ability"),
            ("abandoned", "abandon"),
            ("aban", "abandon"),
            ("acts", "act"),
            ("acting", "act"),
            ("actions", "action"),
        ] {
            assert_eq!(index(form).map(canary::word), Some(word), "{form}");
        }
        for none in ["xylophone", "", "ä", "abxx", "abandonment"] {
            assert_eq!(index(none), None, "{none}");
        }
    }

    #[test]
    fn every_word_is_itself_and_known_by_its_beginning() {
        for n in 0..LIST as Word {
            let word = canary::word(n);
            assert_eq!(index(word), Some(n));
            if let Some(four) = word.get(..4) {
                assert_eq!(canary::index(four).or(index(four)), index(four));
                assert!(canary::index(four).is_some() || index(four) == Some(n));
            }
        }
    }
}
