//! Answers with meaning: words that follow from the prompt's tokens, so that a test knows which answer
//! is right and can tell garbage and other people's answers from it.

use crate::tokens::{FIRST_WORD, WORDS, decode, encode};

/// What an answer follows from: a hash of the prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seed(pub(crate) u64);

impl Seed {
    /// Of a prompt in tokens.
    pub fn of(prompt: &[u32]) -> Self {
        let mix = |hash: u64, id: &u32| (hash ^ u64::from(*id)).wrapping_mul(0x0100_0000_01b3);
        Self(prompt.iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// Of nobody who asks: what an engine says where it has kept nobody's pages.
    pub fn stranger() -> Self {
        Self(0x5eed_0fa5_7a9e_e411)
    }

    /// The `n`-th token of the answer.
    pub fn token(self, n: usize) -> u32 {
        let mut mixed = self.0 ^ (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        FIRST_WORD + ((mixed ^ (mixed >> 31)) % u64::from(WORDS)) as u32
    }

    /// The answer's first `n` tokens.
    pub fn tokens(self, n: usize) -> Vec<u32> {
        (0..n).map(|place| self.token(place)).collect()
    }
}

/// Tokens that tell where in a prompt its end has stood before.
const TELLING: usize = 6;

/// How a model that copies goes on with a prompt: as what came behind its last words when they stood
/// there before.
pub fn copied(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..n {
        let most = TELLING.min(all.len());
        let next = (1..=most).rev().find_map(|length| {
            let end = &all[all.len() - length..];
            let before = all[..all.len() - 1].windows(length);
            let at = before.rev().position(|it| it == end)?;
            all.get(all.len() - 1 - at).copied()
        });
        all.push(next.unwrap_or(0));
    }
    all.split_off(prompt.len())
}

/// The right answer to a prompt in tokens: its first `n` tokens. [`decode`] gives its text.
pub fn expected(prompt: &[u32], n: usize) -> Vec<u32> {
    Seed::of(prompt).tokens(n)
}

/// The right answer to a prompt in text: the text of its first `n` tokens.
pub fn expected_text(prompt: &str, n: usize) -> String {
    decode(&expected(&encode(prompt), n))
}

/// Whose an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The prompt's own, as far as it goes.
    Right,
    /// Nobody's: zeros, or nothing at all.
    Garbage,
    /// Words, but those of another prompt.
    Foreign,
}

/// Whose `answer` is, as the answer to `prompt`.
pub fn whose(prompt: &[u32], answer: &str) -> Whose {
    let ids = encode(answer);
    if ids.iter().all(|id| *id == 0) {
        return Whose::Garbage;
    }
    match ids == expected(prompt, ids.len()) {
        true => Whose::Right,
        false => Whose::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_gone_on_with() {
        let prompt = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 9, 1, 2];
        assert_eq!(copied(&prompt, 3), [3, 4, 6]);
        assert_eq!(copied(&[7], 2), [0, 0]);
    }
}
