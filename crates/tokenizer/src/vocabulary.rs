//! The vocabulary of a GGUF, checked.

use std::collections::HashMap;

use gguf::Metadata;

use crate::pieces::{SPACE, byte};
use crate::pre_tokenizer::{self, Rules};
use crate::{Error, byte_level};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const ARCHITECTURE: &str = "general.architecture";
/// Bytes of the longest piece. Real ones have a few hundred at most; all ways to cut each are looked at.
const PIECE_BYTES_MAX: usize = 1024;

/// Kinds of tokenizers that are implemented, as `tokenizer.ggml.model` names them: byte-level BPE, and
/// SentencePiece's BPE.
pub const TOKENIZERS: [&str; 2] = ["gpt2", "llama"];

/// How tokens are written, and made of text.
#[derive(Clone, Copy)]
pub(crate) enum Spelling {
    /// One character of an alphabet for each byte.
    Bytes(Rules),
    /// As text, with `▁` for a space.
    Pieces,
}

impl Spelling {
    fn of(metadata: &Metadata) -> Result<Spelling, Error> {
        let spelling = match metadata.string(MODEL)? {
            "gpt2" => Spelling::Bytes(pre_tokenizer::rules(metadata.string(PRE)?)?),
            "llama" => Spelling::Pieces,
            other => return Err(unsupported(MODEL, other, &TOKENIZERS.join(", "))),
        };
        // Each would change the tokens of a text, and is found in no file of these kinds.
        for key in ["add_eos_token", "remove_extra_whitespaces"] {
            let key = format!("tokenizer.ggml.{key}");
            if metadata.find_bool(&key)? == Some(true) {
                return Err(unsupported(key, "true", "false"));
            }
        }
        let charsmap = "tokenizer.ggml.precompiled_charsmap";
        match metadata.get(charsmap) {
            Some(_) => Err(unsupported(charsmap, "present", "a file without")),
            None => Ok(spelling),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    /// Whether it is no part of anybody's text.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown)
    }
}

/// All tokens of a file.
pub(crate) struct Vocabulary<'m> {
    pub(crate) spelling: Spelling,
    pub(crate) texts: &'m [String],
    pub(crate) kinds: Vec<Kind>,
    metadata: &'m Metadata,
}

impl<'m> Vocabulary<'m> {
    pub(crate) fn read(metadata: &'m Metadata) -> Result<Vocabulary<'m>, Error> {
        let spelling = Spelling::of(metadata)?;
        let texts = metadata.strings(TOKENS)?;
        let mut kinds = kinds(metadata.i32s(TOKEN_TYPE)?, texts.len())?;
        for (kind, text) in kinds.iter_mut().zip(texts) {
            if matches!(kind, Kind::Normal | Kind::UserDefined) && looks_like_control(text) {
                *kind = Kind::Control;
            }
        }
        same_size(metadata, texts.len())?;
        Ok(Vocabulary {
            spelling,
            texts,
            kinds,
            metadata,
        })
    }

    /// Texts and numbers of the tokens of these kinds.
    pub(crate) fn of_kind(&self, wanted: &[Kind]) -> Vec<(&'m str, u32)> {
        let all = self.texts.iter().zip(&self.kinds).zip(0..);
        let wanted = all.filter(|((_, kind), _)| wanted.contains(kind));
        wanted.map(|((text, _), id)| (text.as_str(), id)).collect()
    }

    /// What each token is in a text. Special tokens are written as they are; so is a text that is not of
    /// the alphabet.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = (Vec<u8>, bool)> {
        let bytes = |text: &str, kind| match (self.spelling, kind) {
            (_, Kind::Control | Kind::Unknown) => None,
            (Spelling::Pieces, Kind::Byte) => byte(text).map(|byte| vec![byte]),
            (Spelling::Pieces, _) => Some(text.replace(SPACE, " ").into_bytes()),
            (Spelling::Bytes(_), Kind::UserDefined) => None,
            (Spelling::Bytes(_), _) => byte_level::bytes(text),
        };
        self.texts.iter().zip(&self.kinds).map(move |(text, kind)| {
            let own = || text.as_bytes().to_vec();
            (bytes(text, *kind).unwrap_or_else(own), kind.is_special())
        })
    }

    /// The token that this key names, if there is such a key.
    pub(crate) fn named(&self, key: &'static str) -> Result<Option<u32>, Error> {
        named(self.metadata, key, self.texts.len())
    }

    /// The merges by number. Whatever encoding takes for granted is checked here.
    pub(crate) fn merges(&self) -> Result<Vec<(u32, u32, u32)>, Error> {
        let mut vocab = HashMap::with_capacity(self.texts.len());
        for (text, id) in self.texts.iter().zip(0u32..) {
            if let Some(first) = vocab.insert(text.as_str(), id) {
                return Err(same_text(first, id, text));
            }
        }
        let number = |merge: &str| {
            let (left, right) = merge.split_once(' ')?;
            let id = |text: &str| vocab.get(text).copied().filter(|_| !text.is_empty());
            Some((id(left)?, id(right)?, id(&[left, right].concat())?))
        };
        let all = self.metadata.strings(MERGES)?.iter().enumerate();
        all.map(|(index, merge)| {
            number(merge).ok_or_else(|| {
                let problem = format!(
                    "merge {index} ({merge:?}) is not two tokens, with a space between, whose \
                     concatenation is a token"
                );
                bad(MERGES, problem)
            })
        })
        .collect()
    }

    /// What SentencePiece finds in a text: text, number and score of each piece.
    pub(crate) fn pieces(&self) -> Result<Vec<(&'m str, u32, f32)>, Error> {
        let scores = self.metadata.f32s(SCORES)?;
        if scores.len() != self.texts.len() {
            return Err(bad(SCORES, not_as_many(scores.len(), self.texts.len())));
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(bad(SCORES, format!("the score of token {id} is no number")));
        }
        let mut known = HashMap::new();
        let pieces = self.of_kind(&[Kind::Normal, Kind::UserDefined]);
        for (text, id) in &pieces {
            if text.len() > PIECE_BYTES_MAX {
                let problem = format!("token {id} has {} bytes", text.len());
                let limit = format!("{problem}, the limit is {PIECE_BYTES_MAX}");
                return Err(bad(TOKENS, limit));
            }
            if let Some(first) = known.insert(*text, *id) {
                return Err(same_text(first, *id, text));
            }
        }
        let scored = |(text, id): (&'m str, u32)| (text, id, scores[id as usize]);
        Ok(pieces.into_iter().map(scored).collect())
    }

    /// The token of each byte, where a character may be spelled in bytes.
    pub(crate) fn byte_tokens(&self) -> Result<[u32; 256], Error> {
        let mut found = [None; 256];
        for (text, id) in self.of_kind(&[Kind::Byte]) {
            let byte = byte(text).ok_or_else(|| {
                let problem = format!("token {id} is a byte by its type, and its text is {text:?}");
                bad(
                    TOKENS,
                    format!("{problem}; expected one such as \"<0x0A>\""),
                )
            })?;
            found[usize::from(byte)] = Some(id);
        }
        if let Some(byte) = found.iter().position(Option::is_none) {
            let problem =
                format!("there is no token for the byte 0x{byte:02X}, but some texts need it");
            return Err(bad(TOKENS, problem));
        }
        Ok(found.map(Option::unwrap_or_default))
    }
}

/// The token that this key names, if there is such a key; it is one of so many.
pub(crate) fn named(
    metadata: &Metadata,
    key: &'static str,
    tokens: usize,
) -> Result<Option<u32>, Error> {
    let id = metadata.find_u32(key)?;
    match id.filter(|id| *id as usize >= tokens) {
        None => Ok(id),
        Some(id) => {
            let problem = format!("is {id}, but there are only {tokens} tokens");
            Err(bad(key, problem))
        }
    }
}

/// Whether this is the name of a control token, whatever the file says of its type: converters have
/// called them user-defined, and nobody's words may become one.
pub(crate) fn looks_like_control(text: &str) -> bool {
    let within = |open: &str, close: &str| {
        let inner = text
            .strip_prefix(open)
            .and_then(|it| it.strip_suffix(close));
        inner.is_some_and(|inner| !inner.is_empty())
    };
    let turn = ["<start_of_turn>", "<end_of_turn>"].contains(&text);
    turn || within("<|", "|>") || within("<｜", "｜>")
}

fn bad(key: impl Into<String>, problem: String) -> Error {
    let key = key.into();
    Error::Vocabulary { key, problem }
}

fn same_text(first: u32, second: u32, text: &str) -> Error {
    let problem = format!("tokens {first} and {second} have the same text {text:?}");
    bad(TOKENS, problem)
}

fn not_as_many(found: usize, expected: usize) -> String {
    format!("has {found} elements, expected {expected}, as `{TOKENS}` has")
}

fn unsupported(key: impl Into<String>, found: &str, expected: &str) -> Error {
    Error::Unsupported {
        key: key.into(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

fn kinds(numbers: &[i32], expected: usize) -> Result<Vec<Kind>, Error> {
    if numbers.len() != expected {
        return Err(bad(TOKEN_TYPE, not_as_many(numbers.len(), expected)));
    }
    let kind = |(id, number): (usize, &i32)| match number {
        1 => Ok(Kind::Normal),
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 => Ok(Kind::Byte),
        _ => {
            let problem = format!("token {id} has type {number}, expected 1 to 6");
            Err(bad(TOKEN_TYPE, problem))
        }
    };
    numbers.iter().enumerate().map(kind).collect()
}

/// A model of another size than its tokenizer is put together of two files, or cut.
fn same_size(metadata: &Metadata, tokens: usize) -> Result<(), Error> {
    let architecture = metadata.find_string(ARCHITECTURE)?.unwrap_or("llama");
    let key = format!("{architecture}.vocab_size");
    let stated = metadata.find_u32(&key)?;
    match stated.filter(|stated| *stated as usize != tokens) {
        None => Ok(()),
        Some(stated) => {
            let problem = format!(
                "is {stated}, but `{TOKENS}` has {tokens} tokens: the file is damaged, or its \
                 tokenizer is another model's"
            );
            Err(bad(key, problem))
        }
    }
}

/// Whether control tokens take the white space behind them with them: those of Phi-3 do, and its files
/// say it by their architecture alone.
pub(crate) fn strips_behind(metadata: &Metadata) -> Result<bool, Error> {
    let phi_3 = metadata.find_string(ARCHITECTURE)? == Some("phi3");
    Ok(phi_3 && metadata.find_string(MODEL)? == Some("llama"))
}
