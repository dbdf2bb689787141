//! Whether two greedy answers to the same prompt are the same.
//!
//! Engines whose results depend on what else is in the batch are normal: where two words are nearly as
//! likely, the answer goes another way from there on. What goes another way from its beginning on,
//! or does not go on with its prompt though it did, has not read the same.

use crate::ask::ProbeAnswer;

/// How two answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Differs {
    /// Not in words.
    Not,
    /// From some word on.
    Late,
    /// In what they go on with.
    Wholly,
}

/// How the answer differs from what it was when nobody else asked, when it did or did not go on with
/// its prompt.
pub(super) fn differs(alone: &str, copied: bool, answer: &ProbeAnswer) -> Option<Differs> {
    let now = answer.text()?;
    Some(of(alone, copied, now, answer.copies()))
}

fn of(alone: &str, copied: bool, now: &str, copies: bool) -> Differs {
    let before: Vec<_> = alone.split_whitespace().collect();
    let now: Vec<_> = now.split_whitespace().collect();
    if before == now {
        return Differs::Not;
    }
    let same = before.iter().zip(&now).take_while(|(a, b)| a == b).count();
    match copied == copies && 3 * same >= before.len() && same > 0 {
        true => Differs::Late,
        false => Differs::Wholly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_word_is_not_the_whole() {
        for (now, copies, expected) in [
            ("a b  c d\n", true, Differs::Not),
            ("a b c x", true, Differs::Late),
            ("a b c", true, Differs::Late),
            ("a b x y", true, Differs::Late),
            ("a b c x", false, Differs::Wholly),
            ("x b c d", true, Differs::Wholly),
            ("a x y z", true, Differs::Wholly),
            ("", true, Differs::Wholly),
        ] {
            assert_eq!(of("a b c d", true, now, copies), expected, "{now}");
        }
        assert_eq!(of("", false, "x", false), Differs::Wholly);
        // A third is enough, and less is not.
        assert_eq!(of("a b c", false, "a x y", false), Differs::Late);
        assert_eq!(of("a b c d", false, "a b", false), Differs::Late);
        assert_eq!(of("a b c d e f g", false, "a b x", false), Differs::Wholly);
        // It did not go on with its prompt, and does now: it has not read the same.
        assert_eq!(of("a b c d", false, "a b c x", true), Differs::Wholly);
    }
}
