//! Whose canary is in a text?
//!
//! Looked for are consecutive words of a canary; every second, third or fourth word of one, in a text
//! or among words that do not belong; words from the last to the first; and its letters, whatever
//! stands between them, shifted in the alphabet, turned around or from its other end (a for z), also in
//! [other readings](crate::disguise) of the text. What is found is worth what [`crate::chance`] says.

use crate::canary::{Author, Marked, OF_REQUEST, SENTENCE, Word, word};
use crate::chance::{DEPTHS, Depth, LEAST, Places};
use crate::disguise::readings;
use crate::inflected::index;
use crate::text;
use std::collections::HashMap;

/// Consecutive words of its own canary from which on an answer goes on with its prompt.
pub const COPIES: usize = 5;
/// Places of canaries that are kept; a run that plants more is refused.
pub const PLACES_MAX: usize = 40_000_000;
/// Words of which every n-th is looked at, for n up to this.
const STRIDES: usize = 4;
/// Letters in a row that are looked up.
const LETTERS: usize = 12;
/// Letters of a text that are looked at.
const LETTERS_MAX: usize = 1 << 20;
/// Shifts of the alphabet.
const SHIFTS: u64 = 26;

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
    /// How the text was read.
    pub depth: Depth,
}

/// Words that were planted: those of all sentences, one after the other, or every n-th of them.
#[derive(Clone, Debug)]
struct Planted {
    author: Author,
    words: Vec<Word>,
    /// The first of them, in the whole canary.
    from: usize,
    stride: usize,
}

/// Everything that was planted, and how much was looked at.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    planted: Vec<Planted>,
    /// From a window of [`LEAST`] words, packed, to where it stands first: which text, which word.
    windows: HashMap<u64, (u32, u32)>,
    /// From the steps between [`LETTERS`] letters to the word with which they begin.
    letters: HashMap<u64, (u32, u32)>,
    /// What was looked at, at each depth.
    places: [Places; 3],
}

/// There are too many canaries to keep.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {PLACES_MAX} places of canaries: plant less in one run")]
pub struct TooMany;

/// A window as a number: 11 bits a word.
fn packed(window: &[Word]) -> u64 {
    window.iter().fold(0, |all, it| all << 11 | u64::from(*it))
}

/// The steps from letter to letter: the same in every shift of the alphabet.
fn steps(letters: &[u8]) -> u64 {
    let pairs = letters.windows(2);
    pairs.fold(0, |all, it| all << 5 | u64::from((26 + it[1] - it[0]) % 26))
}

/// The letters of a word of the list.
fn spelled(index: Word) -> impl Iterator<Item = u8> {
    word(index).bytes().map(|it| it - b'a')
}

impl Matcher {
    /// Looks for this text too from now on.
    ///
    /// # Errors
    /// There is too much of it.
    pub fn plant(&mut self, marked: &Marked) -> Result<(), TooMany> {
        let words = marked.words();
        let kept = self.windows.len() + self.letters.len();
        if kept + (1 + STRIDES) * words.len() > PLACES_MAX {
            return Err(TooMany);
        }
        let text = self.planted.len() as u32;
        let mut letters = Vec::new();
        let ends: Vec<usize> = words
            .iter()
            .map(|it| {
                letters.extend(spelled(*it));
                letters.len()
            })
            .collect();
        for at in 0..words.len() {
            let from = if at == 0 { 0 } else { ends[at - 1] };
            if let Some(window) = letters.get(from..from + LETTERS) {
                let first = self.letters.entry(steps(window));
                first.or_insert((text, at as u32));
            }
        }
        let n = words.len() as u64;
        self.places[Depth::Letters as usize].canaries += n * SHIFTS;
        self.places[Depth::Plain as usize].canaries += n;
        self.places[Depth::Spaced as usize].canaries += n * STRIDES as u64;
        let author = marked.author;
        for stride in 1..=STRIDES {
            for from in 0..stride {
                let words = words.iter().skip(from).step_by(stride).copied().collect();
                self.keep(Planted {
                    author,
                    words,
                    from,
                    stride,
                });
            }
        }
        Ok(())
    }

    fn keep(&mut self, planted: Planted) {
        let text = self.planted.len() as u32;
        for (at, window) in planted.words.windows(LEAST).enumerate() {
            let first = self.windows.entry(packed(window));
            first.or_insert((text, at as u32));
        }
        self.planted.push(planted);
    }

    /// Canaries in a text, longest run first.
    pub fn find(&mut self, text: &str) -> Vec<Hit> {
        let mut hits = Vec::new();
        if text.len() < LETTERS {
            return hits;
        }
        self.read(text, true, &mut hits);
        for reading in readings(text) {
            self.read(&reading, false, &mut hits);
        }
        hits.sort_by_key(|it| {
            (
                std::cmp::Reverse(it.words),
                it.depth,
                it.author,
                it.sentence,
            )
        });
        hits.dedup();
        // What words show, letters and every second word show too.
        let mut plain: HashMap<Author, usize> = HashMap::new();
        for hit in hits.iter().filter(|it| it.depth == Depth::Plain) {
            plain.entry(hit.author).or_insert(hit.words);
        }
        hits.retain(|it| {
            let words = plain.get(&it.author);
            it.depth == Depth::Plain || words.is_none_or(|words| *words < it.words)
        });
        hits
    }

    /// One reading: its words, its letters, its letters from the last to the first, and a for z.
    fn read(&mut self, text: &str, spaced: bool, hits: &mut Vec<Hit>) {
        let written = text::words(text);
        let words: Vec<_> = written.iter().map(|it| index(it)).collect();
        self.words(&words, Depth::Plain, hits);
        if spaced {
            self.spaced(&words, hits);
            // Each word written from its end.
            let turned = written
                .iter()
                .map(|it| it.chars().rev().collect::<String>());
            let turned: Vec<_> = turned.map(|it| index(&it)).collect();
            self.words(&turned, Depth::Spaced, hits);
        }
        let letters = written.iter().flat_map(|it| it.bytes());
        let letters = letters.filter(u8::is_ascii_lowercase).map(|it| it - b'a');
        let mut letters: Vec<u8> = letters.take(LETTERS_MAX).collect();
        self.spelled_out(&letters, hits);
        letters.reverse();
        self.spelled_out(&letters, hits);
        let mirrored: Vec<u8> = letters.iter().rev().map(|it| 25 - it).collect();
        self.spelled_out(&mirrored, hits);
    }

    /// Every second, third and fourth word, and all from the last to the first.
    fn spaced(&mut self, words: &[Option<Word>], hits: &mut Vec<Hit>) {
        for stride in 2..=STRIDES {
            for from in 0..stride {
                let words: Vec<_> = words.iter().skip(from).step_by(stride).copied().collect();
                self.words(&words, Depth::Spaced, hits);
            }
        }
        let turned: Vec<_> = words.iter().rev().copied().collect();
        self.words(&turned, Depth::Spaced, hits);
    }

    fn words(&mut self, words: &[Option<Word>], depth: Depth, hits: &mut Vec<Hit>) {
        self.places[depth as usize].texts += words.len() as u64;
        if depth == Depth::Plain {
            // They are compared with every n-th word of canaries too.
            self.places[Depth::Spaced as usize].texts += words.len() as u64;
        }
        let mut from = 0;
        while from + LEAST <= words.len() {
            match self.run(&words[from..], depth) {
                Some(hit) => {
                    from += hit.words;
                    hits.push(hit);
                }
                None => from += 1,
            }
        }
    }

    fn spelled_out(&mut self, letters: &[u8], hits: &mut Vec<Hit>) {
        self.places[Depth::Letters as usize].texts += letters.len() as u64;
        let mut from = 0;
        while from + LETTERS <= letters.len() {
            match self.letters_run(&letters[from..]) {
                Some((hit, length)) => {
                    from += length;
                    hits.push(hit);
                }
                None => from += 1,
            }
        }
    }

    /// The longest run of a canary with which these words begin.
    fn run(&self, words: &[Option<Word>], depth: Depth) -> Option<Hit> {
        let mut window = [0; LEAST];
        for (slot, word) in window.iter_mut().zip(words) {
            *slot = (*word)?;
        }
        let &(text, first) = self.windows.get(&packed(&window))?;
        let planted = &self.planted[text as usize];
        let length = |at: usize| {
            let canary = planted.words[at..].iter().map(|it| Some(*it));
            let same = canary
                .zip(words)
                .take_while(|(canary, word)| canary == *word);
            (same.count(), 0)
        };
        let depth = if planted.stride > 1 {
            Depth::Spaced
        } else {
            depth
        };
        let (hit, _) = planted.longest(first as usize, LEAST, depth, length);
        Some(hit)
    }

    /// The longest run of a canary with which these letters begin, and its length in letters.
    fn letters_run(&self, letters: &[u8]) -> Option<(Hit, usize)> {
        let &(text, first) = self.letters.get(&steps(&letters[..LETTERS]))?;
        let planted = &self.planted[text as usize];
        let shift = (26 + letters[0] - spelled(planted.words[first as usize]).next()?) % 26;
        let length = |at: usize| {
            let (mut words, mut end) = (0, 0);
            for index in &planted.words[at..] {
                let mut here = end;
                let same = spelled(*index).all(|it| {
                    here += 1;
                    letters.get(here - 1) == Some(&((it + shift) % 26))
                });
                if !same {
                    break;
                }
                (words, end) = (words + 1, here);
            }
            (words, end)
        };
        let within = planted.words[first as usize..].iter().scan(0, |sum, it| {
            let before = *sum;
            *sum += word(*it).len();
            (before < LETTERS).then_some(())
        });
        let (hit, end) = planted.longest(first as usize, within.count(), Depth::Letters, length);
        (hit.words >= LEAST).then_some((hit, end))
    }

    /// The chance of a wrong conviction, with what has been looked at.
    pub fn chance(&self) -> f64 {
        let all = DEPTHS.iter().map(|it| self.places(*it).chance(*it));
        2.0 * all.sum::<f64>() // another tenant's words, or the same tenant's
    }

    /// What has been looked at.
    pub fn places(&self, depth: Depth) -> Places {
        self.places[depth as usize]
    }
}

impl Planted {
    /// The longest run that begins at this word, or, if the first `n` words are the request's, at the
    /// same one of another sentence; and what else `length` says of it.
    fn longest(
        &self,
        first: usize,
        n: usize,
        depth: Depth,
        length: impl Fn(usize) -> (usize, usize),
    ) -> (Hit, usize) {
        // The words of the request stand in every sentence; what follows them tells which.
        let place = |at: usize| self.from + at * self.stride;
        let everywhere = place(first) % SENTENCE + (n - 1) * self.stride < OF_REQUEST;
        let (step, last) = match everywhere {
            true => (SENTENCE / self.stride, self.words.len()),
            false => (1, first + 1),
        };
        let (mut longest, mut end, mut begins) = (0, 0, Vec::new());
        for at in (first..last).step_by(step) {
            let (words, to) = length(at);
            if words > longest {
                (longest, end, begins) = (words, to, Vec::new());
            }
            if words == longest {
                begins.push(at);
            }
        }
        let quote = self.words[begins[0]..][..longest]
            .iter()
            .map(|it| word(*it));
        let hit = Hit {
            author: self.author,
            sentence: match begins[..] {
                [only] => Some(place(only) / SENTENCE),
                _ => None,
            },
            words: longest,
            quote: quote.collect::<Vec<_>>().join(" "),
            depth,
        };
        (hit, end)
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
        assert_eq!(hits[0].depth, Depth::Plain);
        let author = Author {
            tenant: Tenant(1),
            request: 7,
        };
        assert_eq!((hits[0].author, hits[0].sentence), (author, Some(11)));
        assert_eq!(hits[0].quote, eight.join(" "));
    }

    #[test]
    fn four_words_are_found_and_three_are_not() {
        let (mut matcher, all) = matcher();
        let text = |n: usize| {
            let words = &all[0].sentence(5)[2..2 + n];
            words
                .iter()
                .map(|it| word(*it))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let hits = matcher.find(&text(4));
        assert_eq!((hits.len(), hits[0].words), (1, 4));
        assert_eq!(matcher.find(&text(3)), []);
    }

    fn shown(words: &[Word], each: impl Fn(&str) -> String, between: &str) -> String {
        let words: Vec<_> = words.iter().map(|it| each(word(*it))).collect();
        format!("Well: {}. So it is.", words.join(between))
    }

    /// Ten words of a canary, in forms that are the same in every text.
    #[test]
    fn a_canary_in_another_form_is_found() {
        let (mut matcher, all) = matcher();
        let ten = &all[27].sentence(11)[1..11];
        let same = |it: &str| it.to_owned();
        let rotated = |by: u8| {
            move |it: &str| -> String {
                it.bytes()
                    .map(|it| (b'a' + (it - b'a' + by) % 26) as char)
                    .collect()
            }
        };
        let spaced = |it: &str| it.chars().map(|it| format!("{it} ")).collect::<String>();
        let turned: Vec<_> = ten.iter().rev().copied().collect();
        let texts = [
            shown(ten, same, ""),
            shown(ten, same, "-"),
            shown(ten, |it| format!("{}-{}", &it[..2], &it[2..]), " "),
            shown(ten, |it| format!("<b>{it}</b>"), " "),
            shown(ten, |it| format!("{}<i>{}</i>", &it[..1], &it[1..]), " "),
            shown(ten, |it| format!("{it}s"), " "),
            shown(ten, same, " perhaps "),
            shown(ten, same, " and then "),
            shown(ten, rotated(13), " "),
            shown(ten, rotated(3), " "),
            shown(
                ten,
                |it| it.bytes().map(|it| (b'a' + b'z' - it) as char).collect(),
                " ",
            ),
            shown(ten, spaced, ""),
            shown(ten, |it| it.chars().rev().collect(), " "),
            shown(&turned, same, " "),
            shown(
                ten,
                |it| {
                    format!(
                        r"{it}
"
                    )
                },
                "",
            ),
        ];
        for text in texts {
            let hits = matcher.find(&text);
            let Some(hit) = hits.first() else {
                panic!("nothing in {text}")
            };
            assert_eq!(hit.author, all[27].author, "{text}");
            assert!(hit.words >= 9, "{} in {text}", hit.words);
        }
        // Every other word of a whole sentence and the next.
        let words = all[27].words();
        let second: Vec<_> = words[120..144].iter().step_by(2).copied().collect();
        let hits = matcher.find(&shown(&second, same, " "));
        assert_eq!((hits[0].author, hits[0].words), (all[27].author, 12));
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
        assert_eq!(hits[0].words, 8);
    }

    #[test]
    fn a_whole_prompt_is_found_in_it_and_nobody_elses() {
        let (mut matcher, all) = matcher();
        let hits = matcher.find(&all[5].text());
        assert_eq!(hits.len(), 1, "{hits:?}");
        assert_eq!((hits[0].author, hits[0].words), (all[5].author, 30 * 12));
        assert_eq!(hits[0].sentence, Some(0));
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
            prop_assert!(matcher.find(&text).iter().all(|it| it.words < 7));
        }

        #[test]
        fn any_text_may_be_looked_at(text in any::<String>()) {
            let (mut matcher, _) = matcher();
            prop_assert_eq!(matcher.find(&text), []);
        }
    }
}
