//! The alphabet of byte-level vocabularies: each byte is written as one visible character.

/// The byte that `c` stands for. Printable Latin-1 stands for itself; the other 68 bytes are the
/// characters from U+0100 on, in their order.
fn byte(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(), // 00-20
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(), // 7F-A0
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The bytes of a token's text; `None` when a character is not of the alphabet.
pub(crate) fn bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let known: BTreeSet<u8> = (0..0x200)
            .filter_map(|c| byte(char::from_u32(c)?))
            .collect();
        assert_eq!(known.len(), 256);
        assert_eq!(
            (0..0x200)
                .filter(|c| char::from_u32(*c).and_then(byte).is_some())
                .count(),
            256
        );
        assert_eq!(bytes("ĠtheĊ"), Some(b" the\n".to_vec()));
        assert_eq!(bytes("Ð¿"), Some("п".as_bytes().to_vec()));
        assert_eq!(bytes("a b"), None);
    }
}
