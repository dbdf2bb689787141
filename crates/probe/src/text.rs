//! Texts as words, so that what counts is which words follow which, and not how they are written.

use unicode_normalization::UnicodeNormalization;

/// Bytes of one text that are looked at.
const TEXT_MAX: usize = 16 << 20;

/// The words of a text: runs of letters, compatibility forms resolved, case folded, accents left out,
/// look-alikes of other scripts taken for what they look like. Digits and punctuation separate.
pub fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for char in folded(text) {
        match char {
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

/// A text as its reader sees it.
fn folded(text: &str) -> impl Iterator<Item = char> {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Folded twice: some characters become letters only when they are taken apart.
    let lower = text[..end].nfkc().flat_map(char::to_lowercase).nfkd();
    lower
        .filter(|it| !is_unseen(*it))
        .map(|it| alike(it).unwrap_or(it))
}

/// A soft hyphen, a joiner, an accent by itself: not there.
fn is_unseen(char: char) -> bool {
    matches!(
        char,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}'
    )
}

/// The latin letter for which another sign is taken: a Cyrillic or Greek letter, a small capital, one
/// in a circle or square, of Braille, of flags, or one that is not seen at all.
fn alike(char: char) -> Option<char> {
    const ALPHABETS: [&str; 2] = ["ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡ𐞃ʏᴢ", "⠁⠃⠉⠙⠑⠋⠛⠓⠊⠚⠅⠇⠍⠝⠕⠏⠟⠗⠎⠞⠥⠧⠺⠭⠽⠵"];
    // In circles, in squares, of flags, of tags: the first of each 26.
    const RANGES: [u32; 5] = [0x1f150, 0x1f170, 0x1f1e6, 0xe0041, 0xe0061];
    let nth = |n: usize| ('a'..='z').nth(n);
    let mut alphabets = ALPHABETS.iter();
    if let Some(n) = alphabets.find_map(|it| it.chars().position(|it| it == char)) {
        return nth(n);
    }
    let mut ranges = RANGES.iter();
    if let Some(from) = ranges.find(|it| (**it..**it + 26).contains(&u32::from(char))) {
        return nth((u32::from(char) - from) as usize);
    }
    const OTHERS: [char; 22] = [
        'а', 'е', 'о', 'р', 'с', 'у', 'х', 'і', 'ј', 'ѕ', 'һ', 'ԁ', 'ԛ', 'ԝ', 'ӏ', 'α', 'ο', 'ν',
        'ρ', 'ι', 'κ', 'ı',
    ];
    let at = OTHERS.iter().position(|it| *it == char)?;
    "aeopcyxijshdqwlaovpiki".chars().nth(at)
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
            "ábandon ability àble about",
            "\u{430}bandon ability abl\u{435} about", // Cyrillic letters
            "ᴀʙᴀɴᴅᴏɴ ᴀʙɪʟɪᴛʏ ᴀʙʟᴇ ᴀʙᴏᴜᴛ",
            "𝐚𝐛𝐚𝐧𝐝𝐨𝐧 𝒶𝒷𝒾𝓁𝒾𝓉𝓎 ⓐⓑⓛⓔ 🅐🅑🅞🅤🅣",
            "⠁⠃⠁⠝⠙⠕⠝ ⠁⠃⠊⠇⠊⠞⠽ ⠁⠃⠇⠑ ⠁⠃⠕⠥⠞",
            "🇦🇧🇦🇳🇩🇴🇳 🅰🅱🅸🅻🅸🆃🆈 able about",
            "\u{e0061}\u{e0062}\u{e0061}\u{e006e}\u{e0064}\u{e006f}\u{e006e} ability able about", // not seen
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
