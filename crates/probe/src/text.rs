//! Texts as words, so that what counts is which words follow which, and not how they are written.

use unicode_normalization::UnicodeNormalization;

/// Bytes of one text that are looked at.
const TEXT_MAX: usize = 16 << 20;

/// The words of a text: runs of letters, compatibility forms resolved, case folded. Digits and
/// punctuation separate.
pub fn words(text: &str) -> Vec<String> {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut words = Vec::new();
    let mut word = String::new();
    // Folded twice: some characters become letters only when they are taken apart.
    for char in text[..end].nfkc().flat_map(char::to_lowercase).nfkc() {
        match char {
            // A soft hyphen, a joiner: not seen, so not there.
            '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' => {}
            char if char.is_alphabetic() => word.push(char),
            _ if word.is_empty() => {}
            _ => words.push(std::mem::take(&mut word)),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn how_it_is_written_does_not_matter() {
        let plain = words("abandon ability able about");
        assert_eq!(plain, ["abandon", "ability", "able", "about"]);
        for text in [
            "Abandon ABILITY able, about.",
            "**abandon**\n- ability\n- able\n\"about\"",
            "1. abandon 2. ability 3. able 4. about",
            "aban\u{ad}don abil\u{200b}ity able about",
            "\u{ff41}bandon ability able about", // a full-width a
            "abandon_ability/able\tabout",
        ] {
            assert_eq!(words(text), plain, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_words_of_letters(text in any::<String>()) {
            for word in words(&text) {
                prop_assert!(!word.is_empty() && word.chars().all(char::is_alphabetic));
            }
        }
    }
}
