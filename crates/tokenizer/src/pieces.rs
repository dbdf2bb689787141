//! SentencePiece's BPE, as a GGUF has it (`tokenizer.ggml.model` = `llama`): pieces with scores. Of all
//! neighbours that together are a piece, those with the highest score are joined first, the leftmost of
//! equals; a character that is in no piece becomes its bytes.
//!
//! Own code, since merges in an order of their own, which is what the `tokenizers` crate has, cannot say
//! that two ways to the same piece are equal.

use std::collections::HashMap;

use crate::bpe::{Merges, Scratch};

/// What stands for a space in the vocabulary.
pub(crate) const SPACE: char = '\u{2581}';

/// Pieces, by number.
pub(crate) struct Pieces {
    /// The token of each character. Some are in pieces and no piece themselves: these have numbers
    /// behind the vocabulary's last.
    characters: HashMap<char, u32>,
    /// Characters with such numbers.
    alone: Vec<char>,
    vocab_size: u32,
    bytes: [u32; 256],
    merges: Merges,
    /// Whether every text begins with a space of its own.
    pub(crate) adds_space: bool,
}

impl Pieces {
    /// `pieces`: text, number and score of all that may be found in a text. `bytes`: the token of each.
    pub(crate) fn new(
        pieces: &[(&str, u32, f32)],
        bytes: [u32; 256],
        vocab_size: u32,
        adds_space: bool,
    ) -> Pieces {
        let mut ids: HashMap<&str, u32> = pieces.iter().map(|(text, id, _)| (*text, *id)).collect();
        let mut alone = Vec::new();
        let mut characters = HashMap::new();
        for (text, ..) in pieces {
            for (at, c) in text.char_indices() {
                let id = *ids.entry(&text[at..at + c.len_utf8()]).or_insert_with(|| {
                    alone.push(c);
                    vocab_size + alone.len() as u32 - 1
                });
                characters.insert(c, id);
            }
        }
        let mut scores: Vec<f32> = pieces.iter().map(|(.., score)| *score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        scores.dedup();
        let ways = |(text, id, score): &(&str, u32, f32)| {
            let rank = scores.partition_point(|better| better > score) as u32;
            let cuts = text.char_indices().skip(1);
            let pairs =
                cuts.filter_map(|(at, _)| Some((ids.get(&text[..at])?, ids.get(&text[at..])?)));
            let id = *id;
            pairs
                .map(move |(left, right)| ((*left, *right, id), rank))
                .collect::<Vec<_>>()
        };
        let merges = Merges::new(pieces.iter().flat_map(ways));
        Pieces {
            characters,
            alone,
            vocab_size,
            bytes,
            merges,
            adds_space,
        }
    }

    /// Appends the tokens of a text.
    pub(crate) fn encode(&self, text: &str, scratch: &mut Scratch, into: &mut Vec<u32>) {
        scratch.ids.clear();
        let begin = self.adds_space.then_some(SPACE);
        for c in begin.into_iter().chain(text.chars()) {
            let c = if c == ' ' { SPACE } else { c };
            match self.characters.get(&c) {
                Some(id) => scratch.ids.push(*id),
                None => scratch.ids.extend(self.spelled(c)),
            }
        }
        for id in self.merges.join(scratch) {
            match self.alone.get(id.wrapping_sub(self.vocab_size) as usize) {
                Some(c) => into.extend(self.spelled(*c)),
                None => into.push(id),
            }
        }
    }

    fn spelled(&self, c: char) -> impl Iterator<Item = u32> {
        let mut utf8 = [0; 4];
        let len = c.encode_utf8(&mut utf8).len();
        utf8.into_iter()
            .take(len)
            .map(|byte| self.bytes[usize::from(byte)])
    }
}

/// `<0x0A>`
pub(crate) fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let byte = u8::from_str_radix(digits, 16).ok();
    byte.filter(|_| digits.len() == 2)
}
