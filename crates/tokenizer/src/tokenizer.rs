use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gguf::Metadata;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::Error;
use crate::bpe::{Bpe, Scratch};
use crate::folder::{self, Folder, Strips};
use crate::pieces::{Pieces, SPACE};
use crate::pre_tokenizer::Rules;
use crate::specials::{Piece, Specials};
use crate::vocabulary::{Kind, Spelling, TOKENS, Vocabulary, strips_behind};

/// Control tokens that end a generation by their name alone: files often name only one of them.
const END_NAMES: [&str; 9] = [
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
];

const ADDS_BOS: &str = "tokenizer.ggml.add_bos_token";

/// The tokenizer of a GGUF (byte-level or SentencePiece's BPE with the file's own vocabulary and special
/// tokens), or of a folder as Hugging Face has it. Cheap to clone, shared between threads.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    /// Whether `▁` in a text is a space.
    same_spaces: bool,
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
    Words(Rules, Box<Bpe>),
    Pieces(Box<Pieces>),
    Folder(Box<folder::Encoder>),
}

struct Token {
    bytes: Vec<u8>,
    special: bool,
}

impl Tokenizer {
    /// Builds the tokenizer that the file describes. A kind of tokenizer or pre-tokenizer that is
    /// not implemented is an error, never replaced by another one.
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, Error> {
        let vocabulary = Vocabulary::read(metadata)?;
        let flag = |key: &str| metadata.find_bool(key);
        let stated_bos = flag(ADDS_BOS)?;
        let (encoder, adds_bos) = match vocabulary.spelling {
            Spelling::Bytes(rules) => {
                let (texts, merges) = (vocabulary.texts.iter(), vocabulary.merges()?);
                let texts = texts.map(String::as_str).zip(0..);
                let bpe = Bpe::new(texts, merges.into_iter(), rules.ignore_merges);
                let encoder = Encoder::Words(rules, Box::new(bpe));
                (encoder, stated_bos.unwrap_or(rules.add_bos))
            }
            Spelling::Pieces => {
                let pieces = Pieces::new(
                    &vocabulary.pieces()?,
                    vocabulary.byte_tokens()?,
                    vocabulary.texts.len() as u32, // the format allows far fewer
                    flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
                );
                (
                    Encoder::Pieces(Box::new(pieces)),
                    stated_bos.unwrap_or(true),
                )
            }
        };
        let control = vocabulary.of_kind(&[Kind::Control, Kind::Unknown]);
        let spaced = vocabulary.of_kind(&[Kind::UserDefined]).into_iter();
        let spaced = spaced.map(|(text, id)| (text.replace(SPACE, " "), id));
        let spaced: Vec<(String, u32)> = spaced.collect();
        let user_defined = spaced.iter().map(|(text, id)| (text.as_str(), *id));
        let specials = Specials::new(control.clone(), user_defined.collect());
        let specials = specials.map_err(|problem| Error::Vocabulary {
            key: TOKENS.to_owned(),
            problem,
        })?;

        let id = |key| vocabulary.named(key);
        let bos = id("tokenizer.ggml.bos_token_id")?;
        if stated_bos == Some(true) && bos.is_none() {
            let problem = "is true, but no `tokenizer.ggml.bos_token_id` says which token that is";
            return Err(Error::Vocabulary {
                key: ADDS_BOS.to_owned(),
                problem: problem.to_owned(),
            });
        }
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
        let strips = match strips_behind(metadata)? {
            true => strips_of_phi_3(&control),
            false => BTreeMap::new(),
        };
        let token = |(bytes, special)| Token { bytes, special };
        // Not if anybody's `▁` could become the space of a control token that way.
        let apart = |(text, _): &(&str, u32)| !text.contains([' ', SPACE]);
        let inner = Inner {
            same_spaces: matches!(encoder, Encoder::Pieces(_)) && control.iter().all(apart),
            encoder,
            specials,
            strips,
            tokens: vocabulary.bytes().map(token).collect(),
            bos,
            eos,
            ends,
            add_bos: adds_bos,
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
            same_spaces: false,
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
        let text = self.spaced(text);
        for (at, piece) in self.split(&text, parse_special).into_iter().enumerate() {
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
        let text = self.spaced(text);
        for (at, piece) in self.split(&text, true).into_iter().enumerate() {
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

    /// To SentencePiece `▁` and a space are the same, in user-defined tokens as well.
    fn spaced<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.inner.same_spaces && text.contains(SPACE) {
            true => Cow::Owned(text.replace(SPACE, " ")),
            false => Cow::Borrowed(text),
        }
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.inner.specials
    }

    /// Word by word, so that no more is held than the tokens and one word's merges.
    fn encode_words(&self, text: &str, first: bool, ids: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        match &self.inner.encoder {
            Encoder::Words(rules, bpe) => {
                let composed =
                    match rules.composed && is_nfc_quick(text.chars()) != IsNormalized::Yes {
                        true => Some(text.nfc().collect::<String>()),
                        false => None,
                    };
                for word in rules.words.of(composed.as_deref().unwrap_or(text)) {
                    bpe.encode(word.as_bytes(), &mut scratch, ids);
                }
            }
            // A text stands at the beginning or behind a special token: nothing else cuts it.
            Encoder::Pieces(pieces) => pieces.encode(text, &mut scratch, ids),
            Encoder::Folder(encoder) => encoder.encode(text, first, ids),
        }
    }

    /// The text of these tokens, special ones included. Bytes that are no UTF-8 become U+FFFD;
    /// for tokens that come one by one use a [`Detokenizer`](crate::Detokenizer). Where a
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
        let text = String::from_utf8_lossy(&bytes);
        Ok(match &self.inner.encoder {
            Encoder::Folder(encoder) => encoder.decode(ids),
            Encoder::Pieces(pieces) if pieces.adds_space => {
                text.strip_prefix(' ').unwrap_or(&text).to_owned()
            }
            Encoder::Pieces(_) | Encoder::Words(..) => text.into_owned(),
        })
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

    /// Whether a model of so many embeddings has one for each token. More are of no matter: they are
    /// numbers without a token, of which folders have some behind the last.
    ///
    /// # Errors
    /// Some token has none.
    pub fn check_embeddings(&self, rows: usize) -> Result<(), Error> {
        let tokens = self.vocab_size();
        match self.inner.tokens.get(rows) {
            None => Ok(()),
            Some(first) => Err(Error::NoEmbedding {
                tokens,
                rows,
                text: String::from_utf8_lossy(&first.bytes).into_owned(),
            }),
        }
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

/// `</s>` and what is in `<|…|>`, but for the end of a text.
fn strips_of_phi_3(control: &[(&str, u32)]) -> BTreeMap<u32, Strips> {
    let strip = |text: &str| text.starts_with("<|") && text != "<|endoftext|>" || text == "</s>";
    let strips = Strips {
        left: false,
        right: true,
    };
    let stripping = control.iter().filter(|(text, _)| strip(text));
    stripping.map(|(_, id)| (*id, strips)).collect()
}
