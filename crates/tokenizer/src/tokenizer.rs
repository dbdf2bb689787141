use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gguf::Metadata;

use crate::bpe::{Bpe, Scratch};
use crate::folder::{self, Folder, Strips};
use crate::pre_tokenizer::{Rules, Words};
use crate::specials::{Piece, Specials};
use crate::{Error, byte_level, pre_tokenizer};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const VOCAB_SIZE: &str = "llama.vocab_size";
const MERGES: &str = "tokenizer.ggml.merges";

/// Control tokens that end a generation by their name alone: files often name only one of them.
const END_NAMES: [&str; 6] = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
];

/// The tokenizer of a GGUF (byte-level BPE with the file's own vocabulary, merges and special tokens),
/// or of a folder as Hugging Face has it. Cheap to clone, shared between threads.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    encoder: Encoder,
    specials: Specials,
    strips: BTreeMap<u32, Strips>,
    tokens: Vec<Token>,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: BTreeSet<u32>,
    add_bos: bool,
}

/// What turns text between special tokens into tokens.
enum Encoder {
    Words(Words, Box<Bpe>),
    Folder(Box<folder::Encoder>),
}

struct Token {
    bytes: Vec<u8>,
    special: bool,
}

/// Kinds of tokenizers that are implemented, as `tokenizer.ggml.model` names them: byte-level BPE.
pub const TOKENIZERS: [&str; 1] = ["gpt2"];

/// Whether the file's tokenizer is of a kind that is implemented.
///
/// # Errors
/// It is not; the text says which are.
pub fn check_kind(metadata: &Metadata) -> Result<(), Error> {
    kind(metadata).map(drop)
}

fn kind(metadata: &Metadata) -> Result<Rules, Error> {
    let model = metadata.string(MODEL)?;
    if !TOKENIZERS.contains(&model) {
        return Err(Error::Unsupported {
            key: MODEL,
            found: model.to_owned(),
            expected: TOKENIZERS.join(", "),
        });
    }
    pre_tokenizer::rules(metadata.string(PRE)?)
}

impl Tokenizer {
    /// Builds the tokenizer that the file describes. A kind of tokenizer or pre-tokenizer that is
    /// not implemented is an error, never replaced by another one.
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, Error> {
        let rules = kind(metadata)?;
        let texts = metadata.strings(TOKENS)?;
        let kinds = kinds(metadata.i32s(TOKEN_TYPE)?, texts.len())?;
        same_size(metadata, texts.len())?;

        let merges = merges(texts, metadata.strings(MERGES)?)?;
        let vocabulary = texts.iter().map(String::as_str).zip(0..);
        let bpe = Bpe::new(vocabulary, merges.into_iter(), rules.ignore_merges);

        let of_kind = |wanted: &[Kind]| {
            let pairs = texts.iter().zip(&kinds).zip(0..);
            pairs
                .filter(|((_, kind), _)| wanted.contains(kind))
                .map(|((text, _), id)| (text.as_str(), id))
                .collect::<Vec<(&str, u32)>>()
        };
        let control = of_kind(&[Kind::Control, Kind::Unknown]);
        let specials =
            Specials::new(control.clone(), of_kind(&[Kind::UserDefined])).map_err(|problem| {
                Error::Vocabulary {
                    key: TOKENS,
                    problem,
                }
            })?;

        let id = |key| special_id(metadata, key, texts.len());
        let eos = id("tokenizer.ggml.eos_token_id")?;
        let named_ends = control
            .iter()
            .filter(|(text, _)| END_NAMES.contains(text))
            .map(|(_, id)| *id);
        let ends = named_ends
            .chain(eos)
            .chain(id("tokenizer.ggml.eot_token_id")?)
            .chain(id("tokenizer.ggml.eom_token_id")?)
            .collect();
        let inner = Inner {
            encoder: Encoder::Words(rules.words, Box::new(bpe)),
            specials,
            strips: BTreeMap::new(),
            tokens: texts
                .iter()
                .zip(kinds)
                .map(|(text, kind)| Token::new(text, kind))
                .collect(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos,
            ends,
            add_bos: metadata
                .find_bool("tokenizer.ggml.add_bos_token")?
                .unwrap_or(rules.add_bos),
        };
        Ok(Tokenizer {
            inner: Arc::new(inner),
        })
    }

    /// Builds the tokenizer of a folder: of its `tokenizer.json` (BPE or Unigram), with what the files
    /// beside it say. It gives the tokens that Hugging Face's libraries give, but for special tokens in
    /// texts whose author may not write them ([`Tokenizer::encode`]).
    ///
    /// # Errors
    /// A file is missing, too large, damaged, or of a kind that is not implemented; each is named.
    pub fn from_folder(dir: &Path) -> Result<Tokenizer, Error> {
        let folder = Folder::read(dir)?;
        let control: Vec<(&str, u32)> = folder
            .control
            .iter()
            .map(|(text, id)| (text.as_str(), *id))
            .collect();
        let named = control.iter().filter(|(text, _)| END_NAMES.contains(text));
        let ends = named.map(|(_, id)| *id).chain(folder.ends).collect();
        let specials = Specials::new(control.clone(), Vec::new());
        let specials = specials.map_err(|problem| Error::Folder {
            file: "tokenizer.json",
            problem,
        })?;
        let token = |(bytes, special)| Token { bytes, special };
        let inner = Inner {
            encoder: Encoder::Folder(Box::new(folder.encoder)),
            specials,
            strips: folder.strips,
            tokens: folder.tokens.into_iter().map(token).collect(),
            bos: folder.bos,
            eos: folder.eos,
            ends,
            add_bos: folder.add_bos && folder.bos.is_some(),
        };
        Ok(Tokenizer {
            inner: Arc::new(inner),
        })
    }

    /// The tokens of `text`, without BOS. With `parse_special`, the text of a control token (such
    /// as `<|im_end|>`) becomes that token: for text of somebody who may write such tokens, not
    /// for the content of a chat ([`ChatTemplate::render_chat`](crate::ChatTemplate::render_chat)
    /// sees to that). Without, it is spelled out in ordinary tokens.
    ///
    /// A byte for which the vocabulary has no token is left out, as the reference
    /// implementations do: of SmolLM2's, a few control characters and unassigned planes.
    ///
    /// Time and memory are bounded by the length of the text, whatever is in it.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_at(text, parse_special, true, &mut ids);
        ids
    }

    /// `first`: nothing stands before this text.
    fn encode_at(&self, text: &str, parse_special: bool, first: bool, ids: &mut Vec<u32>) {
        for (at, piece) in self.split(text, parse_special).into_iter().enumerate() {
            match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text(text) => self.encode_words(text, first && at == 0, ids),
            }
        }
    }

    /// The special tokens of a text and what is between them.
    fn split<'t>(&self, text: &'t str, control: bool) -> Vec<Piece<'t>> {
        let mut pieces = self.inner.specials.split(text, control);
        if self.inner.strips.is_empty() {
            return pieces;
        }
        let strips = |piece: Option<&Piece<'_>>| match piece {
            Some(Piece::Token(id)) => self.inner.strips.get(id).copied(),
            _ => None,
        };
        for at in 0..pieces.len() {
            let before = at.checked_sub(1).and_then(|at| strips(pieces.get(at)));
            let behind = strips(pieces.get(at + 1));
            if let Piece::Text(text) = &mut pieces[at] {
                if before.is_some_and(|it| it.right) {
                    *text = text.trim_start();
                }
                if behind.is_some_and(|it| it.left) {
                    *text = text.trim_end();
                }
            }
        }
        pieces.retain(|piece| *piece != Piece::Text(""));
        pieces
    }

    /// The tokens of a whole prompt: [`Tokenizer::encode`], special tokens parsed, after BOS if
    /// the file asks for one and the text does not begin with it.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        let mut ids = self.encode(text, true);
        if let Some(bos) = self
            .bos()
            .filter(|bos| self.adds_bos() && ids.first() != Some(bos))
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Encodes a rendered chat: control tokens count where no `mark` is in them; then the marks,
    /// which are no part of anybody's text, are taken out.
    pub(crate) fn encode_marked(&self, text: &str, mark: char) -> Vec<u32> {
        let mut ids = Vec::new();
        for (at, piece) in self.split(text, true).into_iter().enumerate() {
            match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text(text) if text.contains(mark) => {
                    self.encode_at(&text.replace(mark, ""), false, at == 0, &mut ids);
                }
                Piece::Text(text) => self.encode_words(text, at == 0, &mut ids),
            }
        }
        ids
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.inner.specials
    }

    /// Word by word, so that no more is held than the tokens and one word's merges.
    fn encode_words(&self, text: &str, first: bool, ids: &mut Vec<u32>) {
        match &self.inner.encoder {
            Encoder::Words(words, bpe) => {
                let mut scratch = Scratch::default();
                for word in words.of(text) {
                    bpe.encode(word.as_bytes(), &mut scratch, ids);
                }
            }
            Encoder::Folder(encoder) => encoder.encode(text, first, ids),
        }
    }

    /// The text of these tokens, special ones included. Bytes that are no UTF-8 become U+FFFD;
    /// for tokens that come one by one use a [`Detokenizer`](crate::Detokenizer). Where a folder's
    /// tokenizer puts a space before a text, that one is taken off; a detokenizer, whose tokens go on a
    /// text that has begun, keeps it.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let mut bytes = Vec::new();
        for &id in ids {
            let unknown = Error::UnknownToken {
                id,
                vocab_size: self.vocab_size(),
            };
            bytes.extend(self.token_bytes(id).ok_or(unknown)?);
        }
        if let Encoder::Folder(encoder) = &self.inner.encoder {
            return Ok(encoder.decode(ids));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of a token (often part of a character only); `None` for an id that the
    /// vocabulary does not have.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.token(id).map(|token| token.bytes.as_slice())
    }

    /// Whether this is a control token, which is no part of an answer's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.token(id).is_some_and(|token| token.special)
    }

    /// Whether a generation ends with this token: the file's EOS or end of turn, or a control
    /// token whose name says the same (such as `<|endoftext|>`).
    pub fn is_end(&self, id: u32) -> bool {
        self.inner.ends.contains(&id)
    }

    /// All tokens of which [`Tokenizer::is_end`] is true, ascending.
    pub fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        self.inner.ends.iter().copied()
    }

    /// The token that begins a sequence, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// The token that ends a sequence, if the file names one.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// Whether a prompt that is no chat begins with BOS. (A chat template writes its own.)
    pub fn adds_bos(&self) -> bool {
        self.inner.add_bos
    }

    /// Bytes of the longest token: a text of more than `n` times as many has more than `n` tokens.
    pub fn longest_token(&self) -> usize {
        let lengths = self.inner.tokens.iter().map(|token| token.bytes.len());
        lengths.max().unwrap_or(0)
    }

    /// Number of tokens; all ids are smaller.
    pub fn vocab_size(&self) -> usize {
        self.inner.tokens.len()
    }

    fn token(&self, id: u32) -> Option<&Token> {
        self.inner.tokens.get(usize::try_from(id).ok()?)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tokenizer of {} tokens", self.vocab_size())
    }
}

impl Token {
    /// Special tokens are written as they are; so is a text that is not of the byte alphabet.
    fn new(text: &str, kind: Kind) -> Token {
        let verbatim = matches!(kind, Kind::Control | Kind::Unknown | Kind::UserDefined);
        let bytes = if verbatim {
            None
        } else {
            byte_level::bytes(text)
        };
        let bytes = bytes.unwrap_or_else(|| text.as_bytes().to_vec());
        Token {
            bytes,
            special: matches!(kind, Kind::Control | Kind::Unknown),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

fn kinds(numbers: &[i32], expected: usize) -> Result<Vec<Kind>, Error> {
    let refused = |problem| Error::Vocabulary {
        key: TOKEN_TYPE,
        problem,
    };
    if numbers.len() != expected {
        let problem = format!(
            "has {} elements, expected {expected}, as `{TOKENS}` has",
            numbers.len()
        );
        return Err(refused(problem));
    }
    let kind = |(id, number): (usize, &i32)| match number {
        1 => Ok(Kind::Normal),
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 => Ok(Kind::Byte),
        _ => Err(refused(format!(
            "token {id} has type {number}, expected 1 to 6"
        ))),
    };
    numbers.iter().enumerate().map(kind).collect()
}

/// The merges by number. Whatever encoding takes for granted is checked here.
fn merges(texts: &[String], merges: &[String]) -> Result<Vec<(u32, u32, u32)>, Error> {
    let mut vocab = HashMap::with_capacity(texts.len());
    for (text, id) in texts.iter().zip(0u32..) {
        if let Some(first) = vocab.insert(text.as_str(), id) {
            let problem = format!("tokens {first} and {id} have the same text {text:?}");
            return Err(Error::Vocabulary {
                key: TOKENS,
                problem,
            });
        }
    }
    let number = |merge: &str| {
        let (left, right) = merge.split_once(' ')?;
        let id = |text: &str| vocab.get(text).copied().filter(|_| !text.is_empty());
        Some((id(left)?, id(right)?, id(&[left, right].concat())?))
    };
    let mut numbers = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let Some(known) = number(merge) else {
            let problem = format!(
                "merge {index} ({merge:?}) is not two tokens, with a space between, whose \
                 concatenation is a token"
            );
            return Err(Error::Vocabulary {
                key: MERGES,
                problem,
            });
        };
        numbers.push(known);
    }
    Ok(numbers)
}

/// A model of another size than its tokenizer is put together of two files, or cut.
fn same_size(metadata: &Metadata, tokens: usize) -> Result<(), Error> {
    let stated = metadata.find_u32(VOCAB_SIZE)?;
    match stated.filter(|stated| *stated as usize != tokens) {
        None => Ok(()),
        Some(stated) => Err(Error::Vocabulary {
            key: VOCAB_SIZE,
            problem: format!(
                "is {stated}, but `{TOKENS}` has {tokens} tokens: the file is damaged, or its \
                 tokenizer is another model's"
            ),
        }),
    }
}

fn special_id(
    metadata: &Metadata,
    key: &'static str,
    vocab_size: usize,
) -> Result<Option<u32>, Error> {
    let id = metadata.find_u32(key)?;
    if let Some(id) = id.filter(|id| *id as usize >= vocab_size) {
        let problem = format!("is {id}, but there are only {vocab_size} tokens");
        return Err(Error::Vocabulary { key, problem });
    }
    Ok(id)
}
