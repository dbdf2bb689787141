//! Other readings of a text: what it says if it is markup, escaped, or numbers or signs for letters.
//!
//! A canary that comes back in base64 has come back. Readings are made of every text, own canaries
//! are looked for in them too, and all that they hold is counted as looked at.

/// Bytes of a text that are read otherwise.
const TEXT_MAX: usize = 1 << 20;
/// Letters of a reading that are worth a look.
const LETTERS: usize = 12;
/// Characters of a tag.
const TAG_MAX: usize = 200;

/// The other readings, and theirs: base64 may stand there in hex, or escaped.
pub fn readings(text: &str) -> Vec<String> {
    let mut all = once(text);
    for n in 0..all.len() {
        let further = once(&all[n]);
        all.extend(further);
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|it| it != text);
    all
}

fn once(text: &str) -> Vec<String> {
    if text.len() > TEXT_MAX {
        return Vec::new();
    }
    let readings = [
        text.contains('\\').then(|| unescaped(text)),
        Some(stripped(text)),
        Some(base64(text)),
        Some(base32(text)),
        Some(digits(text, 16, 2, &["0x", "0X", "x", "X", "u"])),
        Some(digits(text, 8, 3, &["0o", "o", "0"])),
        Some(digits(text, 2, 8, &["0b", "b"])),
        Some(decimal(text)),
        Some(uuencoded(text)),
        Some(base85(text, &ascii85)),
        Some(base85(text, &rfc1924)),
        Some(rot47(text)),
        Some(morse(text)),
        Some(digits_for_letters(text)),
    ];
    let worth = |it: &String| {
        let letters = it.chars().filter(|it| it.is_alphabetic()).count();
        letters >= LETTERS && it != text
    };
    readings.into_iter().flatten().filter(worth).collect()
}

/// Escapes of JSON resolved: arguments of tool calls are JSON in a string, whole or cut off.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (char, if char == '\\' { chars.next() } else { None }) {
            ('\\', Some('u')) => {
                let rest = chars.as_str();
                let code = rest
                    .get(..4)
                    .and_then(|it| u32::from_str_radix(it, 16).ok());
                let Some(code) = code else { continue };
                out.push(char::from_u32(code).unwrap_or(' '));
                chars = rest[4..].chars();
            }
            ('\\', Some('n' | 't' | 'r' | 'b' | 'f')) => out.push(' '),
            ('\\', Some(other)) => out.push(other),
            (other, _) => out.push(other),
        }
    }
    out
}

/// Without tags, targets of links, names of entities and commands of TeX.
fn stripped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let skipped = match char {
            '<' => through(rest, '>'),
            ']' if rest.starts_with("](") => through(rest, ')'),
            '&' => through(rest, ';').filter(|it| *it <= 12),
            '\\' => {
                let letters = rest[1..].chars().take_while(char::is_ascii_alphabetic);
                Some(1 + letters.count()).filter(|it| rest[*it..].starts_with('{'))
            }
            _ => None,
        };
        let length = skipped.unwrap_or_else(|| {
            out.push(char);
            char.len_utf8()
        });
        rest = &rest[length..];
    }
    out
}

/// The length up to and with this character, if it comes soon.
fn through(text: &str, end: char) -> Option<usize> {
    let mut near = text.char_indices().take(TAG_MAX);
    let (at, _) = near.find(|(_, it)| *it == end)?;
    Some(at + end.len_utf8())
}

/// What stands there in base64, of either alphabet, wherever it was cut, over lines too; words before
/// and behind it may look like more of it.
fn base64(text: &str) -> String {
    let is_sign = |it: &char| it.is_ascii_alphanumeric() || "+/-_".contains(*it);
    let mut out = String::new();
    for token in text.split(|it| !is_sign(&it) && it != '\r' && it != '\n') {
        let signs: Vec<u8> = token.chars().filter(is_sign).map(|it| it as u8).collect();
        if (4..16).contains(&signs.len()) {
            let bytes = sextets(&signs);
            if bytes.iter().all(is_readable) {
                readable(&bytes, 0, &mut out);
            }
        } else if signs.len() >= 16 {
            (0..4).for_each(|from| readable(&sextets(&signs[from..]), LETTERS, &mut out));
        }
    }
    out
}

/// The parts of these bytes that can be read, if they are long enough.
fn readable(bytes: &[u8], least: usize, out: &mut String) {
    for part in bytes.split(|it| !is_readable(it)) {
        if part.len() >= least {
            out.extend(part.iter().map(|it| *it as char));
            out.push(' ');
        }
    }
}

fn is_readable(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r')
}

fn sextets(signs: &[u8]) -> Vec<u8> {
    let (mut bytes, mut bits, mut n) = (Vec::new(), 0_u32, 0);
    for sign in signs {
        let value = match sign {
            b'A'..=b'Z' => sign - b'A',
            b'a'..=b'z' => sign - b'a' + 26,
            b'0'..=b'9' => sign - b'0' + 52,
            b'+' | b'-' => 62,
            _ => 63,
        };
        (bits, n) = (bits << 6 | u32::from(value), n + 6);
        if n >= 8 {
            n -= 8;
            bytes.push((bits >> n) as u8);
        }
    }
    bytes
}

/// What stands there in base32, where a token is nothing else.
fn base32(text: &str) -> String {
    let mut out = String::new();
    for token in text.split(|it: char| !it.is_ascii_alphanumeric()) {
        let value = |it: u8| match it.to_ascii_uppercase() {
            it @ b'A'..=b'Z' => Some(u64::from(it - b'A')),
            it @ b'2'..=b'7' => Some(u64::from(it - b'2') + 26),
            _ => None,
        };
        let values: Option<Vec<u64>> = token.bytes().map(value).collect();
        let Some(values) = values.filter(|it| it.len() >= 8) else {
            continue;
        };
        // Five bytes are eight signs; what is cut off counts as nothing.
        let bytes = values.chunks(8).flat_map(|it| {
            let bits = it.iter().fold(0, |all, it| all << 5 | it) << (5 * (8 - it.len()));
            let all: [u8; 8] = bits.to_be_bytes();
            all[3..3 + it.len() * 5 / 8].to_vec()
        });
        let bytes: Vec<u8> = bytes.collect();
        if is_text(&bytes) {
            out.extend(bytes.into_iter().map(char::from));
            out.push(' ');
        }
    }
    out
}

/// Whether it is readable, but for some bytes at its ends.
fn is_text(bytes: &[u8]) -> bool {
    let n = bytes.iter().filter(|it| is_readable(it)).count();
    !bytes.is_empty() && (n == bytes.len() || bytes.len() >= 12 && n + 3 >= bytes.len())
}

/// Tokens of digits as bytes, of so many digits each: `6162`, `61 62`, `\x61`, `%61`, `0x61`, `\u0061`;
/// `\141`, `0o141`; `01100001`.
fn digits(text: &str, base: u32, width: usize, prefixes: &[&str]) -> String {
    let mut out = String::new();
    for token in tokens(text) {
        let whole =
            |it: &str| it.len().is_multiple_of(width) && it.chars().all(|it| it.is_digit(base));
        let bare = prefixes.iter().filter_map(|it| token.strip_prefix(it));
        let Some(digits) = [token].into_iter().chain(bare).find(|it| whole(it)) else {
            continue;
        };
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + width], base).ok();
        let bytes = (0..digits.len()).step_by(width).filter_map(byte);
        out.extend(bytes.filter(u8::is_ascii_graphic).map(char::from));
    }
    out
}

/// Numbers as bytes: `97 98`, `&#97;&#98;`.
fn decimal(text: &str) -> String {
    let numbers = tokens(text).filter_map(|it| it.parse::<u8>().ok());
    numbers
        .filter(u8::is_ascii_graphic)
        .map(char::from)
        .collect()
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let tokens = text.split(|it: char| !it.is_ascii_alphanumeric());
    tokens.filter(|it| !it.is_empty())
}

/// Lines of uuencode: how many bytes, and four signs for three of them.
fn uuencoded(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_ascii_whitespace() {
        let sextets = line.bytes().map(|it| u32::from(it.wrapping_sub(b' ') & 63));
        let sextets: Vec<_> = sextets.collect();
        let length = sextets[0] as usize;
        let alphabet = line.bytes().all(|it| matches!(it, b' '..=b'`'));
        // Nothing is a space, and those at its end are cut.
        let whole = length.div_ceil(3) * 4;
        if !alphabet
            || length == 0
            || !(whole.saturating_sub(2)..=whole).contains(&(line.len() - 1))
        {
            continue;
        }
        let bytes = sextets[1..].chunks(4).flat_map(|it| {
            let all = it.iter().chain([&0; 3]).take(4);
            let bits = all.fold(0, |all, it| all << 6 | it);
            bits.to_be_bytes()[1..].to_vec()
        });
        out.extend(bytes.take(length).map(char::from));
    }
    out
}

/// Tokens in which five signs are four bytes, in this alphabet.
fn base85(text: &str, value: &dyn Fn(u8) -> Option<u32>) -> String {
    let mut out = String::new();
    for token in text.split_ascii_whitespace() {
        let token = token.trim_start_matches("<~").trim_end_matches("~>");
        let values: Option<Vec<u32>> = token.bytes().map(value).collect();
        let Some(values) = values.filter(|it| it.len() >= 15) else {
            continue;
        };
        let bytes = values.chunks(5).flat_map(|it| {
            let all = it.iter().copied().chain([84; 4]).take(5);
            let bits = all.fold(0_u32, |all, it| all.wrapping_mul(85).wrapping_add(it));
            bits.to_be_bytes()[..it.len() - 1].to_vec()
        });
        let bytes: Vec<u8> = bytes.collect();
        if is_text(&bytes) {
            readable(&bytes, 1, &mut out);
        }
    }
    out
}

fn ascii85(sign: u8) -> Option<u32> {
    matches!(sign, b'!'..=b'u').then(|| u32::from(sign - b'!'))
}

/// The alphabet of git and of Python's `b85encode`.
fn rfc1924(sign: u8) -> Option<u32> {
    let at = |signs: &[u8]| signs.iter().position(|it| *it == sign);
    let value = match sign {
        b'0'..=b'9' => sign - b'0',
        b'A'..=b'Z' => sign - b'A' + 10,
        b'a'..=b'z' => sign - b'a' + 36,
        _ => at(b"!#$%&()*+-;<=>?@^_`{|}~")? as u8 + 62,
    };
    Some(value.into())
}

/// ASCII turned by half. Of plain English hardly a sign is one that a letter becomes.
fn rot47(text: &str) -> String {
    if text.bytes().filter(|it| matches!(it, b'2'..=b'@')).count() < LETTERS {
        return String::new();
    }
    let turned = |it: char| match it {
        '!'..='~' => ((it as u8 - b'!' + 47) % 94 + b'!') as char,
        other => other,
    };
    text.chars().map(turned).collect()
}

/// Dots and dashes.
fn morse(text: &str) -> String {
    const LETTERS: [&str; 26] = [
        ".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..", ".---", "-.-", ".-..", "--",
        "-.", "---", ".--.", "--.-", ".-.", "...", "-", "..-", "...-", ".--", "-..-", "-.--",
        "--..",
    ];
    let tokens = text.split(|it: char| it.is_whitespace() || "/|,".contains(it));
    let letter = |it: &str| {
        let plain = it.replace(['·', '•'], ".").replace(['−', '–', '_'], "-");
        LETTERS.iter().position(|it| **it == plain)
    };
    tokens
        .filter_map(letter)
        .map(|it| (b'a' + it as u8) as char)
        .collect()
}

/// Digits and signs that are written for letters.
fn digits_for_letters(text: &str) -> String {
    if !text.contains(|it: char| it.is_ascii_digit() || "@$!".contains(it)) {
        return String::new();
    }
    let letter = |char| match char {
        '0' => 'o',
        '1' | '!' => 'i',
        '3' => 'e',
        '4' | '@' => 'a',
        '5' | '$' => 's',
        '7' => 't',
        '8' => 'b',
        other => other,
    };
    text.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holds(text: &str, wanted: &str) -> bool {
        let letters = |it: &str| {
            it.chars()
                .filter(char::is_ascii_alphabetic)
                .collect::<String>()
        };
        readings(text)
            .iter()
            .any(|it| letters(it).contains(&letters(wanted)))
    }

    #[test]
    fn what_is_written_otherwise_is_read() {
        for text in [
            "YWJhbmRvbiBhYmlsaXR5IGFibGU=",
            "xYWJhbmRvbiBhYmlsaXR5IGFibGU", // cut
            "YWJhbmRvbg== YWJpbGl0eQ== YWJsZQ==",
            "6162616e646f6e206162696c6974792061626c65",
            "61 62 61 6e 64 6f 6e 61 62 69 6c 69 74 79 61 62 6c 65",
            r"\x61\x62\x61\x6e\x64\x6f\x6e\x61\x62\x69\x6c\x69\x74\x79\x61\x62\x6c\x65",
            "%61%62%61%6e%64%6f%6e%61%62%69%6c%69%74%79%61%62%6c%65",
            "97, 98, 97, 110, 100, 111, 110, 97, 98, 105, 108, 105, 116, 121, 97, 98, 108, 101",
            "<b>aban</b>don <i class=\"x\">ability</i> able",
            r"\textbf{abandon} \emph{ability} able",
            "[abandon](https://example.org/x) [ability](/y) able",
            r#"{"text":"abandon\nability\u0020able"#,
            "4b4nd0n 4bi1i7y abl3",
            // Words around it, that base64 could be too.
            "What I remember\nYWJhbmRvbiBhYmlsaXR5IGFibGU=\nThanks for asking",
            "\\141\\142\\141\\156\\144\\157\\156\\141\\142\\151\\154\\151\\164\\171\\141\\142\\154\\145",
            "01100001 01100010 01100001 01101110 01100100 01101111 01101110 01100001 01100010 01101001 \
             01101100 01101001 01110100 01111001 01100001 01100010 01101100 01100101",
            "59574a68626d527662694268596d6c7361585235494746696247553d", // base64 in hex
            "begin 644 x\n486)A;F1O;B!A8FEL:71Y(&%B;&4\n`\nend",
            "<~@:EY_A8c?.@:EqeBlnVC@:F%a~>",
            "VPau!WN&UDVPa`)X>@rYVPb4$",
            "232?5@? 23:=:EJ 23=6",
            ".- -... .- -. -.. --- -. / .- -... .. .-.. .. - -.-- / .- -... .-.. .",
        ] {
            let found = holds(text, "abandon ability able")
                || text.starts_with('4') && holds(text, "abandon abiiity able");
            assert!(found, "{text}: {:?}", readings(text));
        }
    }

    #[test]
    fn plain_english_has_no_other_reading() {
        let text = "The quick brown fox jumps over the lazy dog, and that is all there is to it.";
        assert_eq!(readings(text), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn any_text_may_be_read(text in any::<String>()) {
            readings(&text);
        }
    }
}
