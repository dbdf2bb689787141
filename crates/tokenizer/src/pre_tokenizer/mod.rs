//! How text is cut into words before the merges, by the name in `tokenizer.ggml.pre`.
//!
//! The published patterns are regular expressions. Here they are written out, because a word is then
//! found in the time that reading it takes and without memory, whatever the text is: the run of one
//! character that a regular expression goes over again and again is what an attacker sends.

mod classes;
mod patterns;
mod steps;

use crate::Error;

/// What the name of a pre-tokenizer decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    pub(crate) words: Words,
    /// A word that is a token is taken whole, even where no merges lead to it.
    pub(crate) ignore_merges: bool,
    /// Whether a prompt begins with BOS when the file does not say.
    pub(crate) add_bos: bool,
    /// Whether text is brought into Unicode's composed form first.
    pub(crate) composed: bool,
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
    /// The same with every digit alone.
    Qwen2,
    /// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Tekken,
    /// The same with up to three digits, and contractions at the end of words.
    Gpt4o,
    /// What these cut is written in `steps`.
    DeepseekLlm,
    DeepseekCoder,
    Deepseek3,
}

/// No more than how words are cut.
const PLAIN: Rules = Rules {
    words: Words::Gpt2,
    ignore_merges: false,
    add_bos: false,
    composed: false,
};
const LLAMA_3: Rules = Rules {
    words: Words::Llama3,
    ignore_merges: true,
    add_bos: true,
    ..PLAIN
};

/// Every name that is known, and what it decides.
const NAMES: [(&str, Rules); 12] = [
    ("smollm", of(Words::Digits)),
    ("gpt-2", PLAIN),
    ("llama-bpe", LLAMA_3),
    ("llama3", LLAMA_3),
    ("llama-v3", LLAMA_3),
    (
        "qwen2",
        Rules {
            composed: true,
            ..of(Words::Qwen2)
        },
    ),
    (
        "tekken",
        Rules {
            ignore_merges: true,
            add_bos: true,
            ..of(Words::Tekken)
        },
    ),
    ("dbrx", of(Words::Llama3)),
    ("gpt-4o", of(Words::Gpt4o)),
    ("deepseek-llm", of(Words::DeepseekLlm)),
    ("deepseek-coder", of(Words::DeepseekCoder)),
    ("deepseek-v3", of(Words::Deepseek3)),
];

const fn of(words: Words) -> Rules {
    Rules { words, ..PLAIN }
}

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
    let known = NAMES.iter().find(|(known, _)| *known == name);
    let (_, rules) = known.ok_or_else(|| Error::Unsupported {
        key: "tokenizer.ggml.pre".to_owned(),
        found: name.to_owned(),
        expected: PRE_TOKENIZERS.join(", "),
    })?;
    Ok(*rules)
}

impl Words {
    /// The words of `text`, in order; together they are the text.
    pub(crate) fn of(self, text: &str) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Words::DeepseekLlm => steps::cut(text, steps::DEEPSEEK_LLM),
            Words::DeepseekCoder => steps::cut(text, steps::DEEPSEEK_CODER),
            Words::Deepseek3 => steps::cut(text, steps::DEEPSEEK_3),
            _ => Box::new(self.by_one_pattern(text)),
        }
    }

    fn by_one_pattern(self, text: &str) -> impl Iterator<Item = &str> {
        let (mut rest, mut piece) = (text, 0);
        std::iter::from_fn(move || {
            if piece == 0 {
                piece = self.piece(rest);
            }
            let first = rest[..piece].chars().next()?;
            let len = self.first(first, &rest[..piece]);
            piece -= len;
            let (word, after) = rest.split_at(len);
            rest = after;
            Some(word)
        })
    }

    /// Length of the first word of `text`, which begins with `first`.
    fn first(self, first: char, text: &str) -> usize {
        match self {
            Words::Digits if first.is_numeric() => first.len_utf8(),
            Words::Gpt2 | Words::Digits => patterns::gpt_2(first, text),
            Words::Llama3 => patterns::llama_3(first, text, 3),
            Words::Qwen2 => patterns::llama_3(first, text, 1),
            Words::Tekken => patterns::cased(first, text, 1, false),
            Words::Gpt4o => patterns::cased(first, text, 3, true),
            Words::DeepseekLlm | Words::DeepseekCoder | Words::Deepseek3 => text.len(),
        }
    }

    /// Length of the beginning of `rest` beyond which no word looks.
    fn piece(self, rest: &str) -> usize {
        match self {
            Words::Digits => match rest.chars().next() {
                Some(digit) if digit.is_numeric() => digit.len_utf8(),
                _ => rest.find(char::is_numeric).unwrap_or(rest.len()),
            },
            _ => rest.len(),
        }
    }
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

    use super::classes::LETTER;
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
            assert!(!LETTER.has(c), "{c:?}");
        }
        for c in ['a', 'Z', 'ß', 'ſ', 'ª', '日', 'ʰ', '\u{1E922}', '\u{3134A}'] {
            assert!(LETTER.has(c), "{c:?}");
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
