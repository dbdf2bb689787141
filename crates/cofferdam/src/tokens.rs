//! Numbers of tokens as they are typed.

/// More than any pool holds: what is above is a slip of the hand.
const TOKENS_MAX: u64 = 1 << 40;

/// At least one token.
pub(crate) fn tokens<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|n| (1..=TOKENS_MAX).contains(n));
    let number = number.and_then(|n: u64| T::try_from(n).ok());
    number.ok_or_else(|| match text.bytes().all(|it| it.is_ascii_digit()) {
        true if text.bytes().any(|it| it != b'0') => "more tokens than there can be".to_owned(),
        _ => "no number of tokens (a whole number from 1)".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_without_the_machines_own_bounds() {
        assert_eq!(tokens::<u32>("4096"), Ok(4096));
        assert_eq!(tokens::<u64>("5000000000"), Ok(5_000_000_000));
        for wrong in ["0", "-1", "4k", "", "1.5", "000"] {
            let error = tokens::<u64>(wrong).unwrap_err();
            assert!(error.contains("a whole number from 1"), "{wrong}: {error}");
        }
        for large in ["5000000000", "99999999999999999999"] {
            assert!(tokens::<u32>(large).unwrap_err().contains("more tokens"));
        }
        assert!(
            tokens::<u64>("99999999999999")
                .unwrap_err()
                .contains("more tokens")
        );
    }
}
