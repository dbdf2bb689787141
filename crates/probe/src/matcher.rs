//! Whose canary is in a text?
//!
//! A run of at least [`K`] consecutive words of a canary is a **leak**: for any text that does not
//! depend on the canary, the chance that it holds one is at most (places in the text) x (places in
//! canaries) / 2048^K, which [`Matcher::chance`] computes for what was really looked at. Shorter
//! runs are a **suspicion** and nothing more.

use crate::canary::{Author, LIST, Marked, OF_REQUEST, SENTENCE, Word, index, word};
use crate::text;
use std::collections::HashMap;

/// Consecutive words of a canary that convict.
pub const K: usize = 8;
/// Consecutive words that are worth a look.
pub const SUSPECT: usize = 5;
/// Windows of canaries that are kept; a run that plants more is refused.
pub const WINDOWS_MAX: usize = 20_000_000;

/// Where words of a canary were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Whose they are.
    pub author: Author,
    /// The sentence of the author's prompt in which they begin, from 0, where the words tell: words
    /// of the request alone stand in every sentence.
    pub sentence: Option<usize>,
    /// Consecutive words.
    pub words: usize,
    /// The words, in list form.
    pub quote: String,
}

impl Hit {
    /// Whether chance is excluded.
    pub fn is_leak(&self) -> bool {
        self.words >= K
    }
}

/// A text that was planted.
#[derive(Clone, Debug)]
struct Planted {
    author: Author,
    /// All of its sentences, one after the other.
    words: Vec<Word>,
}

/// Everything that was planted, and how much was looked at.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    planted: Vec<Planted>,
    /// From a window of [`SUSPECT`] words, packed, to where it stands first: which text, which word.
    windows: HashMap<u64, (u32, u32)>,
    /// Windows of K words in all canaries.
    canary_places: u64,
    /// Windows of K words in all texts.
    text_places: u64,
}

/// There are too many canaries to keep.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {WINDOWS_MAX} windows of canaries: plant less in one run")]
pub struct TooMany;

/// Windows of `k` words in so many.
fn places(words: usize, k: usize) -> u64 {
    (words + 1).saturating_sub(k) as u64
}

/// A window as a number: 11 bits a word.
fn packed(window: &[Word]) -> u64 {
    window.iter().fold(0, |all, it| all << 11 | u64::from(*it))
}

impl Matcher {
    /// Looks for this text too from now on.
    ///
    /// # Errors
    /// There is too much of it.
    pub fn plant(&mut self, marked: &Marked) -> Result<(), TooMany> {
        let text = self.planted.len() as u32;
        let words = marked.words();
        if self.windows.len() + words.len() > WINDOWS_MAX {
            return Err(TooMany);
        }
        self.canary_places += places(words.len(), K);
        for (at, window) in words.windows(SUSPECT).enumerate() {
            let first = self.windows.entry(packed(window));
            first.or_insert((text, at as u32));
        }
        self.planted.push(Planted {
            author: marked.author,
            words,
        });
        Ok(())
    }

    /// Canaries in a text, longest run first.
    pub fn find(&mut self, text: &str) -> Vec<Hit> {
        let words: Vec<Option<Word>> = text::words(text).iter().map(|it| index(it)).collect();
        self.text_places += places(words.len(), K);
        let mut hits: Vec<Hit> = Vec::new();
        let mut from = 0;
        while from + SUSPECT <= words.len() {
            match self.run(&words[from..]) {
                Some(hit) => {
                    from += hit.words;
                    hits.push(hit);
                }
                None => from += 1,
            }
        }
        hits.sort_by_key(|it| (std::cmp::Reverse(it.words), it.author, it.sentence));
        hits
    }

    /// The longest run of a canary with which these words begin.
    fn run(&self, words: &[Option<Word>]) -> Option<Hit> {
        let mut window = [0; SUSPECT];
        for (slot, word) in window.iter_mut().zip(words) {
            *slot = (*word)?;
        }
        let &(text, first) = self.windows.get(&packed(&window))?;
        let planted = &self.planted[text as usize];
        let first = first as usize;
        // The words of the request stand in every sentence; what follows them tells which.
        let everywhere = first % SENTENCE + SUSPECT <= OF_REQUEST;
        let (step, last) = match everywhere {
            true => (SENTENCE, planted.words.len()),
            false => (1, first + 1),
        };
        let (mut longest, mut begins) = (0, Vec::new());
        for at in (first..last).step_by(step) {
            let canary = planted.words[at..].iter().map(|it| Some(*it));
            let length = canary
                .zip(words)
                .take_while(|(canary, word)| canary == *word)
                .count();
            if length > longest {
                (longest, begins) = (length, Vec::new());
            }
            if length == longest {
                begins.push(at / SENTENCE);
            }
        }
        let quote = words[..longest].iter().flatten().map(|it| word(*it));
        Some(Hit {
            author: planted.author,
            sentence: match begins[..] {
                [only] => Some(only),
                _ => None,
            },
            words: longest,
            quote: quote.collect::<Vec<_>>().join(" "),
        })
    }

    /// The chance that any of the texts looked at so far would hold [`K`] consecutive words of any
    /// canary if it did not depend on it (an upper bound).
    pub fn chance(&self) -> f64 {
        self.canary_places as f64 * self.text_places as f64 * (LIST as f64).powi(-(K as i32))
    }

    /// Windows of K words: in canaries, in texts.
    pub fn looked_at(&self) -> (u64, u64) {
        (self.canary_places, self.text_places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::{Canaries, Tenant, word};
    use proptest::prelude::*;

    fn matcher() -> (Matcher, Vec<Marked>) {
        let canaries = Canaries::new([3; 32]);
        let mut matcher = Matcher::default();
        let mut all = Vec::new();
        for tenant in 0..2 {
            for request in 0..20 {
                let author = Author {
                    tenant: Tenant(tenant),
                    request,
                };
                all.push(canaries.mark(author, 30));
                matcher.plant(all.last().unwrap()).unwrap();
            }
        }
        (matcher, all)
    }

    #[test]
    fn eight_words_from_the_middle_of_a_canary_recased_name_tenant_request_and_sentence() {
        let (mut matcher, all) = matcher();
        let sentence = all[27].sentence(11);
        let eight: Vec<_> = sentence[3..11].iter().map(|it| word(*it)).collect();
        let text = format!("Sure! Here: {}, and so on", eight.join(" ").to_uppercase());
        let hits = matcher.find(&text);
        assert_eq!(hits.len(), 1, "{hits:?}");
        assert!(hits[0].is_leak());
        let author = Author {
            tenant: Tenant(1),
            request: 7,
        };
        assert_eq!((hits[0].author, hits[0].sentence), (author, Some(11)));
        assert_eq!(hits[0].quote, eight.join(" "));
    }

    #[test]
    fn seven_words_are_a_suspicion() {
        let (mut matcher, all) = matcher();
        let seven: Vec<_> = all[0].sentence(5)[2..9]
            .iter()
            .map(|it| word(*it))
            .collect();
        let hits = matcher.find(&seven.join(" "));
        assert_eq!((hits.len(), hits[0].words), (1, 7));
        assert!(!hits[0].is_leak());
    }

    /// A page ends where it ends: what leaks may begin in one sentence and end in the next.
    #[test]
    fn eight_words_across_two_sentences_are_a_leak() {
        let (mut matcher, all) = matcher();
        let words = all[9].words();
        let eight: Vec<_> = words[5 * 12 + 8..6 * 12 + 4]
            .iter()
            .map(|it| word(*it))
            .collect();
        let hits = matcher.find(&eight.join(" "));
        assert_eq!(
            (hits.len(), hits[0].words, hits[0].sentence),
            (1, 8, Some(5))
        );
    }

    #[test]
    fn words_of_the_request_alone_name_no_sentence() {
        let (mut matcher, all) = matcher();
        let of_request: Vec<_> = all[3].sentence(0)[..8].iter().map(|it| word(*it)).collect();
        let hits = matcher.find(&of_request.join(" "));
        assert_eq!((hits[0].author, hits[0].sentence), (all[3].author, None));
        assert!(hits[0].is_leak());
    }

    #[test]
    fn a_whole_prompt_is_found_in_it_and_nobody_elses() {
        let (mut matcher, all) = matcher();
        let hits = matcher.find(&all[5].text());
        assert_eq!(hits.len(), 1, "{hits:?}");
        assert_eq!((hits[0].author, hits[0].words), (all[5].author, 30 * 12));
        assert_eq!(hits[0].sentence, Some(0));
    }

    #[test]
    fn the_chance_of_a_million_words_against_a_thousand_prompts_is_nil() {
        let canary_places = 5 * 500 * 1000;
        let matcher = Matcher {
            canary_places,
            text_places: 1_000_000,
            ..Matcher::default()
        };
        let chance = matcher.chance();
        assert!(chance < 1e-12, "{chance}");
        // 2.5 million places in canaries, a million in texts, 2048^8 = 2^88.
        assert!(
            (chance * 2_f64.powi(88) / 2.5e12 - 1.0).abs() < 1e-9,
            "{chance}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Text made of the same words, drawn anew, is not a leak.
        #[test]
        fn other_words_of_the_list_are_no_leak(seed in any::<[u8; 32]>()) {
            let (mut matcher, _) = matcher();
            let author = Author { tenant: Tenant(9), request: 9 };
            prop_assume!(seed != [3; 32]);
            let text = Canaries::new(seed).mark(author, 100).text();
            prop_assert!(matcher.find(&text).iter().all(|it| !it.is_leak()));
        }

        #[test]
        fn any_text_may_be_looked_at(text in any::<String>()) {
            let (mut matcher, _) = matcher();
            prop_assert_eq!(matcher.find(&text), []);
        }
    }
}
