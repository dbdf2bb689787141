//! How text is cut into words before the merges, by the name in `tokenizer.ggml.pre`.
//!
//! The published patterns are regular expressions. Here they are written out, because a word is then
//! found in the time that reading it takes and without memory, whatever the text is: the run of one
//! character that a regular expression goes over again and again is what an attacker sends.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

use crate::Error;

/// What the name of a pre-tokenizer decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    pub(crate) words: Words,
    /// A word that is a token is taken whole, even where no merges lead to it.
    pub(crate) ignore_merges: bool,
    /// Whether a prompt begins with BOS when the file does not say.
    pub(crate) add_bos: bool,
}

/// A way to cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Words {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every digit alone, and what is between them as GPT-2.
    Digits,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3,
}

/// Every name that is known, how it cuts, and whether it is Llama 3's.
const NAMES: [(&str, Words, bool); 5] = [
    ("smollm", Words::Digits, false),
    ("gpt-2", Words::Gpt2, false),
    ("llama-bpe", Words::Llama3, true),
    ("llama3", Words::Llama3, true),
    ("llama-v3", Words::Llama3, true),
];

/// The values of `tokenizer.ggml.pre` that are known.
pub const PRE_TOKENIZERS: [&str; NAMES.len()] = {
    let (mut names, mut n) = ([""; NAMES.len()], 0);
    while n < NAMES.len() {
        names[n] = NAMES[n].0;
        n += 1;
    }
    names
};

/// The rules of this name. An unknown name is an error: a guess would give tokens that look right
/// and are not the model's. (`default` is refused as well: what it means has changed over time.)
pub(crate) fn rules(name: &str) -> Result<Rules, Error> {
    let known = NAMES.iter().find(|(known, ..)| *known == name);
    let (_, words, llama_3) = known.ok_or_else(|| Error::Unsupported {
        key: "tokenizer.ggml.pre",
        found: name.to_owned(),
        expected: PRE_TOKENIZERS.join(", "),
    })?;
    Ok(Rules {
        words: *words,
        ignore_merges: *llama_3,
        add_bos: *llama_3,
    })
}

impl Words {
    /// The words of `text`, in order; together they are the text.
    pub(crate) fn of(self, text: &str) -> impl Iterator<Item = &str> {
        let (mut rest, mut piece) = (text, 0);
        std::iter::from_fn(move || {
            if piece == 0 {
                piece = self.piece(rest);
            }
            let first = rest[..piece].chars().next()?;
            let len = match self {
                Words::Digits if first.is_numeric() => first.len_utf8(),
                Words::Gpt2 | Words::Digits => gpt_2(first, &rest[..piece]),
                Words::Llama3 => llama_3(first, &rest[..piece]),
            };
            piece -= len;
            let (word, after) = rest.split_at(len);
            rest = after;
            Some(word)
        })
    }

    /// Length of the beginning of `rest` beyond which no word looks.
    fn piece(self, rest: &str) -> usize {
        match self {
            Words::Gpt2 | Words::Llama3 => rest.len(),
            Words::Digits => match rest.chars().next() {
                Some(digit) if digit.is_numeric() => digit.len_utf8(),
                _ => rest.find(char::is_numeric).unwrap_or(rest.len()),
            },
        }
    }
}

/// What the patterns tell apart.
#[derive(Clone, Copy, PartialEq)]
enum Sort {
    Space,
    Letter,
    Number,
    Other,
}

/// Length of the first word of `text`, which begins with `first`.
fn gpt_2(first: char, text: &str) -> usize {
    if first == '\''
        && let Some(len) = contraction(text, |c| c)
    {
        return len;
    }
    // Of the classes only ` ?` may stand before a run.
    let lead = usize::from(first == ' ');
    match text[lead..].chars().next().map(sort) {
        None | Some(Sort::Space) => spaces(text),
        Some(sort) => lead + run(&text[lead..], sort),
    }
}

/// Length of the first word of `text`, which begins with `first`.
fn llama_3(first: char, text: &str) -> usize {
    // Without regard to case, which in Unicode makes the long s an s.
    let folded = |c: char| {
        if c == 'ſ' {
            's'
        } else {
            c.to_ascii_lowercase()
        }
    };
    if first == '\''
        && let Some(len) = contraction(text, folded)
    {
        return len;
    }
    let (own, after) = (sort(first), &text[first.len_utf8()..]);
    let next = after.chars().next().map(sort);
    let may_lead = !matches!(first, '\r' | '\n') && own != Sort::Number;
    match own {
        Sort::Letter => run(text, Sort::Letter),
        _ if may_lead && next == Some(Sort::Letter) => first.len_utf8() + run(after, Sort::Letter),
        Sort::Number => text
            .chars()
            .take(3)
            .take_while(|c| sort(*c) == Sort::Number)
            .map(char::len_utf8)
            .sum(),
        Sort::Other => with_line_ends(text, run(text, Sort::Other)),
        Sort::Space if first == ' ' && next == Some(Sort::Other) => {
            with_line_ends(text, 1 + run(after, Sort::Other))
        }
        Sort::Space => {
            let all = &text[..run(text, Sort::Space)];
            all.rfind(['\r', '\n'])
                .map_or_else(|| spaces(text), |at| at + 1)
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, in bytes.
fn contraction(text: &str, fold: impl Fn(char) -> char) -> Option<usize> {
    let mut letters = text.chars().skip(1);
    let first = letters.next()?;
    match (fold(first), letters.next().map(fold)) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+`: spaces, but for the last one if more than one and text follows.
fn spaces(text: &str) -> usize {
    let len = run(text, Sort::Space);
    let last = text[..len].chars().next_back().map_or(0, char::len_utf8);
    if len == text.len() || len == last {
        len
    } else {
        len - last
    }
}

fn with_line_ends(text: &str, len: usize) -> usize {
    let rest = &text[len..];
    len + rest.len() - rest.trim_start_matches(['\r', '\n']).len()
}

/// Length of the characters of this sort with which `text` begins.
fn run(text: &str, wanted: Sort) -> usize {
    text.find(|c| sort(c) != wanted).unwrap_or(text.len())
}

fn sort(c: char) -> Sort {
    if c.is_whitespace() {
        Sort::Space
    } else if is_letter(c) {
        Sort::Letter
    } else if c.is_numeric() {
        Sort::Number
    } else {
        Sort::Other
    }
}

/// `\p{L}`. (`char::is_alphabetic` is a larger class.)
fn is_letter(c: char) -> bool {
    static LETTERS: LazyLock<Vec<(char, char)>> = LazyLock::new(|| {
        let parsed = regex_syntax::parse(r"\p{L}").expect("a class of Unicode");
        match parsed.kind() {
            HirKind::Class(Class::Unicode(class)) => class
                .iter()
                .map(|range| (range.start(), range.end()))
                .collect(),
            _ => unreachable!("one class is a class"),
        }
    });
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    let at = LETTERS.partition_point(|(_, end)| *end < c);
    LETTERS.get(at).is_some_and(|(start, _)| *start <= c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::PreTokenizerWrapper;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
    };

    use super::*;

    const TEXT: &str = "I'LL pay $1234.50 for  naïve (café)!\n\n  it's\t日本  ";

    /// Words of Llama 3: English contractions, letters with one leading other character, up to three
    /// digits, punctuation with its line ends, line ends, and the spaces that remain.
    const LLAMA_3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn words(name: &str, text: &str) -> Vec<String> {
        let words = rules(name).unwrap().words;
        words.of(text).map(str::to_owned).collect()
    }

    /// What the reference implementation cuts.
    fn reference(name: &str, text: &str) -> Vec<String> {
        let gpt_2 = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
        let all = match name {
            "gpt-2" => vec![gpt_2],
            "smollm" => vec![PreTokenizerWrapper::Digits(Digits::new(true)), gpt_2],
            _ => {
                let pattern = SplitPattern::Regex(LLAMA_3_WORDS.to_owned());
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
                vec![PreTokenizerWrapper::Split(split)]
            }
        };
        let mut cut = PreTokenizedString::from(text);
        Sequence::new(all).pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(_, (start, end), _)| text[start..end].to_owned())
            .collect()
    }

    /// Expected: what Python's `regex` finds with the published patterns.
    #[test]
    fn words_are_those_of_the_published_patterns() {
        let gpt_2 = [
            "I", "'", "LL", " pay", " $", "1234", ".", "50", " for", " ", " naïve", " (", "café",
            ")!", "\n\n ", " it", "'s", "\t", "日本", "  ",
        ];
        assert_eq!(words("gpt-2", TEXT), gpt_2);
        let llama_3 = [
            "I", "'LL", " pay", " $", "123", "4", ".", "50", " for", " ", " naïve", " (", "café",
            ")!\n\n", " ", " it", "'s", "\t日本", "  ",
        ];
        assert_eq!(words("llama-bpe", TEXT), llama_3);
        let smollm = [
            "I", "'", "LL", " pay", " $", "1", "2", "3", "4", ".", "5", "0", " for", " ", " naïve",
            " (", "café", ")!", "\n\n ", " it", "'s", "\t", "日本", "  ",
        ];
        assert_eq!(words("smollm", TEXT), smollm);
    }

    #[test]
    fn letters_are_those_of_the_general_category() {
        // Alphabetic, but no letters: a vowel sign, a Roman numeral, a circled letter.
        for c in ['\u{0903}', 'Ⅷ', 'Ⓐ', '\u{0345}', '_', '5', ' '] {
            assert!(!is_letter(c), "{c:?}");
        }
        for c in ['a', 'Z', 'ß', 'ſ', 'ª', '日', 'ʰ', '\u{1E922}', '\u{3134A}'] {
            assert!(is_letter(c), "{c:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn words_are_those_of_the_reference_implementation(
            text in prop_oneof![
                "['sStTrReEvVlLmMdDſK ]{0,12}",
                "[ \\t\\r\\n\u{A0}\u{2003}\u{85}a1.日'Ⅷ½\u{0903}]{0,16}",
                "( {0,3}[\\r\\n]{0,2}){0,4}[a1!]?",
                "\\PC{0,12}",
                any::<String>(),
            ],
        ) {
            for name in ["gpt-2", "smollm", "llama-bpe"] {
                prop_assert_eq!(words(name, &text), reference(name, &text), "{}", name);
            }
        }
    }
}
