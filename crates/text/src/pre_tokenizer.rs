//! How text is cut into words before the merges, by the name in `tokenizer.ggml.pre`.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use crate::Error;

/// What the name of a pre-tokenizer decides.
pub(crate) struct Rules {
    pub(crate) pre_tokenizer: PreTokenizerWrapper,
    /// A word that is a token is taken whole, even where no merges lead to it.
    pub(crate) ignore_merges: bool,
    /// Whether a prompt begins with BOS when the file does not say.
    pub(crate) add_bos: bool,
}

/// Words of Llama 3: English contractions, letters with one leading other character, up to three
/// digits, punctuation with its line ends, line ends, and the spaces that remain.
const LLAMA_3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The rules of this name. An unknown name is an error: a guess would give tokens that look right
/// and are not the model's. (`default` is refused as well: what it means has changed over time.)
pub(crate) fn rules(name: &str) -> Result<Rules, Error> {
    let gpt_2_words = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
    match name {
        "smollm" => {
            let digits = PreTokenizerWrapper::Digits(Digits::new(true));
            let sequence = Sequence::new(vec![digits, gpt_2_words]);
            Ok(Rules {
                pre_tokenizer: PreTokenizerWrapper::Sequence(sequence),
                ignore_merges: false,
                add_bos: false,
            })
        }
        "gpt-2" => Ok(Rules {
            pre_tokenizer: gpt_2_words,
            ignore_merges: false,
            add_bos: false,
        }),
        "llama-bpe" | "llama3" | "llama-v3" => {
            let pattern = SplitPattern::Regex(LLAMA_3_WORDS.to_owned());
            let words = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| Error::Tokenizer(error.to_string()))?;
            let bytes = ByteLevel::new(false, true, false);
            let sequence = Sequence::new(vec![
                PreTokenizerWrapper::Split(words),
                PreTokenizerWrapper::ByteLevel(bytes),
            ]);
            Ok(Rules {
                pre_tokenizer: PreTokenizerWrapper::Sequence(sequence),
                ignore_merges: true,
                add_bos: true,
            })
        }
        _ => Err(Error::Unsupported {
            key: "tokenizer.ggml.pre",
            found: name.to_owned(),
            expected: "smollm, gpt-2, llama-bpe",
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    const TEXT: &str = "I'LL pay $1234.50 for  naïve (café)!\n\n  it's\t日本  ";

    fn words(name: &str) -> Vec<&'static str> {
        let mut text = PreTokenizedString::from(TEXT);
        rules(name)
            .unwrap()
            .pre_tokenizer
            .pre_tokenize(&mut text)
            .unwrap();
        let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(_, (start, end), _)| &TEXT[start..end])
            .collect()
    }

    /// Expected: what Python's `regex` finds with the published patterns.
    #[test]
    fn words_are_those_of_the_published_patterns() {
        let gpt_2 = [
            "I", "'", "LL", " pay", " $", "1234", ".", "50", " for", " ", " naïve", " (", "café",
            ")!", "\n\n ", " it", "'s", "\t", "日本", "  ",
        ];
        assert_eq!(words("gpt-2"), gpt_2);
        let llama_3 = [
            "I", "'LL", " pay", " $", "123", "4", ".", "50", " for", " ", " naïve", " (", "café",
            ")!\n\n", " ", " it", "'s", "\t日本", "  ",
        ];
        assert_eq!(words("llama-bpe"), llama_3);
        let smollm = [
            "I", "'", "LL", " pay", " $", "1", "2", "3", "4", ".", "5", "0", " for", " ", " naïve",
            " (", "café", ")!", "\n\n ", " it", "'s", "\t", "日本", "  ",
        ];
        assert_eq!(words("smollm"), smollm);
    }
}
