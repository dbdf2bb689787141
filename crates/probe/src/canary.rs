//! Canaries: sequences of words that nobody can guess, one for each tenant, request and page.
//!
//! Words are drawn evenly from a list of 2,048 (that of BIP-39: common English words, no two with
//! the same first four letters, so that they survive tokenizers and careless quoting). A request's
//! sentence is repeated, because a model repeats what it reads often: of a lone marker nothing was
//! seen on a real engine, of a repeated sentence much. Each repetition ends with words of its own,
//! which name the page.
//!
//! A sentence takes about as many tokens as a page of 16; on larger pages several stand in one.

use bip39::Language;
use chacha20::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use std::fmt;

/// Words in the list.
pub const LIST: usize = 2048;
/// Words of a sentence that belong to the request.
pub const OF_REQUEST: usize = 8;
/// Words of a sentence that belong to its place in the prompt.
const OF_PLACE: usize = 4;
/// Words of a sentence.
pub const SENTENCE: usize = OF_REQUEST + OF_PLACE;

/// Index of a word in the list.
pub type Word = u16;

/// One of those whose prompts must not come back to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u8);

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = char::from(b'A' + self.0 % 26);
        write!(f, "{letter}")
    }
}

/// Who wrote a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Author {
    /// The tenant.
    pub tenant: Tenant,
    /// The request of this run, from 0.
    pub request: u32,
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {}, request {}", self.tenant, self.request)
    }
}

/// The marked text of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Whose.
    pub author: Author,
    /// Words of the request.
    request: [Word; OF_REQUEST],
    /// Words of every place, in order.
    places: Vec<[Word; OF_PLACE]>,
}

impl Marked {
    /// Sentences.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has no sentence.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The words of a sentence.
    pub fn sentence(&self, place: usize) -> Vec<Word> {
        let place = self.places[place];
        self.request.iter().chain(&place).copied().collect()
    }

    /// The words of all sentences.
    pub fn words(&self) -> Vec<Word> {
        (0..self.len()).flat_map(|it| self.sentence(it)).collect()
    }

    /// The text that stands in the prompt.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for place in 0..self.len() {
            let words = self.sentence(place);
            let words: Vec<_> = words.into_iter().map(word).collect();
            if place > 0 {
                text.push(' ');
            }
            text.push_str(&words.join(" "));
            text.push('.');
        }
        text
    }

    /// The first words of one more sentence: a model that has read the others goes on with it.
    pub fn opening(&self) -> String {
        let words: Vec<_> = self.request[..3].iter().map(|it| word(*it)).collect();
        words.join(" ")
    }
}

/// The words of the list.
pub fn word(index: Word) -> &'static str {
    Language::English.word_list()[usize::from(index) % LIST]
}

/// The index of a word of the list.
pub fn index(word: &str) -> Option<Word> {
    Language::English.find_word(word)
}

/// Draws canaries. A run's seed decides them all: keep it secret while the run lasts, and print it
/// afterwards, so that it can be repeated.
#[derive(Clone, Debug)]
pub struct Canaries {
    seed: [u8; 32],
}

impl Canaries {
    /// Canaries of the run with this seed.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed }
    }

    /// The marked text of a request: so many sentences.
    pub fn mark(&self, author: Author, sentences: usize) -> Marked {
        let mut random = ChaCha12Rng::from_seed(self.seed);
        random.set_stream(u64::from(author.tenant.0) << 32 | u64::from(author.request));
        // 2,048 divides 2^32: every word is as likely as any other.
        let mut draw = || (random.next_u32() % LIST as u32) as Word;
        let request = std::array::from_fn(|_| draw());
        let places = (0..sentences)
            .map(|_| std::array::from_fn(|_| draw()))
            .collect();
        Marked {
            author,
            request,
            places,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(tenant: u8, request: u32, sentences: usize) -> Marked {
        let author = Author {
            tenant: Tenant(tenant),
            request,
        };
        Canaries::new([7; 32]).mark(author, sentences)
    }

    #[test]
    fn a_seed_decides_and_no_two_requests_share_words() {
        assert_eq!(marked(0, 1, 5), marked(0, 1, 5));
        assert_eq!(marked(0, 1, 9).places[..5], marked(0, 1, 5).places[..]);
        for (tenant, request) in [(0, 2), (1, 1)] {
            assert_ne!(marked(tenant, request, 5).request, marked(0, 1, 5).request);
        }
        let other = Canaries::new([8; 32]).mark(marked(0, 1, 5).author, 5);
        assert_ne!(other.request, marked(0, 1, 5).request);
    }

    #[test]
    fn words_are_drawn_evenly() {
        let mut counts = vec![0_u32; LIST];
        for request in 0..500 {
            let marked = marked(0, request, 100);
            let drawn = marked.places.iter().flatten().chain(&marked.request);
            drawn.for_each(|it| counts[usize::from(*it)] += 1);
        }
        // 204,000 draws, 99.6 of each expected: all within six standard deviations.
        assert!(counts.iter().all(|n| (40..160).contains(n)), "{counts:?}");
    }

    #[test]
    fn the_text_is_its_words() {
        let marked = marked(1, 3, 2);
        let words = crate::text::words(&marked.text());
        let expected: Vec<_> = (0..2).flat_map(|n| marked.sentence(n)).map(word).collect();
        assert_eq!(words, expected);
        assert!(words.iter().all(|it| index(it).is_some()));
        assert!(marked.text().starts_with(&marked.opening()));
    }
}
