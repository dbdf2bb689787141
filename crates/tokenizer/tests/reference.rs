//! Words and merges against the reference implementation, the `tokenizers` crate.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use gguf::{Array, Metadata, Value};
use proptest::prelude::*;
use testkit::weights;
use tokenizer::Tokenizer;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

fn reference(metadata: &Metadata, ignore_merges: bool) -> tokenizers::Tokenizer {
    let texts = metadata.strings("tokenizer.ggml.tokens").unwrap();
    let merges = metadata.strings("tokenizer.ggml.merges").unwrap();
    let pairs = merges.iter().map(|merge| merge.split_once(' ').unwrap());
    let bpe = BPE::builder()
        .vocab_and_merges(
            texts
                .iter()
                .cloned()
                .zip(0..)
                .collect::<tokenizers::models::bpe::Vocab>(),
            pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
        )
        .ignore_merges(ignore_merges)
        .build()
        .unwrap();
    tokenizers::Tokenizer::new(bpe)
}

struct Both {
    ours: Tokenizer,
    reference: tokenizers::Tokenizer,
}

impl Both {
    fn agree_on(&self, text: &str) -> Result<(), TestCaseError> {
        let expected = self.reference.encode_fast(text, false).unwrap();
        prop_assert_eq!(self.ours.encode(text, false), expected.get_ids());
        Ok(())
    }
}

static REAL: LazyLock<Both> = LazyLock::new(|| {
    let metadata = Metadata::open(&weights::path()).unwrap();
    let mut reference = reference(&metadata, false);
    reference.with_pre_tokenizer(Some(Sequence::new(vec![
        PreTokenizerWrapper::Digits(Digits::new(true)),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true)),
    ])));
    Both {
        ours: Tokenizer::from_gguf(&metadata).unwrap(),
        reference,
    }
});

/// A vocabulary in which merges overlap, some tokens are reached by two merges, one by none, and a
/// byte is missing (`d`).
fn small(pre: &str) -> Metadata {
    let tokens = [
        "a", "b", "c", "ab", "bc", "abc", "aa", "aaa", "aaaa", "abab", "cab", "bb", "Ġ", "Ġa",
        "acca",
    ];
    let merges = [
        "a b", "b c", "ab c", "a bc", "a a", "aa a", "a aa", "aa aa", "ab ab", "c ab", "b b", "Ġ a",
    ];
    let strings =
        |all: &[&str]| Value::Array(Array::String(all.iter().map(|s| (*s).to_owned()).collect()));
    let mut writer = testkit::Writer::new();
    writer.key("tokenizer.ggml.model", Value::String("gpt2".into()));
    writer.key("tokenizer.ggml.pre", Value::String(pre.into()));
    writer.key("tokenizer.ggml.tokens", strings(&tokens));
    writer.key("tokenizer.ggml.merges", strings(&merges));
    let kinds = vec![1; tokens.len()];
    writer.key("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    let path = tempfile::NamedTempFile::new().unwrap();
    writer.write(path.path()).unwrap();
    Metadata::open(path.path()).unwrap()
}

static SMALL: LazyLock<[Both; 2]> = LazyLock::new(|| {
    ["gpt-2", "llama-bpe"].map(|pre| {
        let metadata = small(pre);
        let mut reference = reference(&metadata, pre == "llama-bpe");
        reference.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        Both {
            ours: Tokenizer::from_gguf(&metadata).unwrap(),
            reference,
        }
    })
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn merges_are_those_of_the_reference(text in "[abcd]{0,40}( [abcd]{0,8})?") {
        for both in &*SMALL {
            both.agree_on(&text)?;
        }
    }

    #[test]
    fn texts_of_every_kind_have_the_tokens_of_the_reference(
        text in prop_oneof![
            "[a-zA-Z ,.'0-9\\n]{0,80}",
            "(the |ing|tion|'s| {1,9}|\\n{1,3}|[0-9]{1,4}|[äöüßéñ日本語]){0,24}",
            "\\PC{0,30}",
            any::<String>(),
        ],
    ) {
        REAL.agree_on(&text)?;
    }
}

#[test]
fn long_runs_have_the_tokens_of_the_reference() {
    for piece in [
        "1", "a", " ", "\n", "\t ", "ab", "'", "日", "=", "é", "\u{0903}", "🦀",
    ] {
        REAL.agree_on(&piece.repeat(3000)).unwrap();
    }
}
