//! One choice of an answer on its way from tokens to text: detokenized, cut at a stop string,
//! its log-probabilities kept beside the text that they belong to.

use serde_json::Value;

use super::ask::Rules;
use super::calls::{Call, Calling, Reader};
use super::text::{Detokenize, Text};
use crate::engine::{Finish, TokenOut};

/// A sampled token and where its text begins in the answer, in characters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenLog {
    /// The token with its log-probabilities.
    pub token: TokenOut,
    /// Characters of the answer before this token.
    pub offset: usize,
}

/// What may now be shown of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// Index of the choice.
    pub choice: u16,
    /// New text; empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// Log-probabilities of the tokens whose text begins in what was shown.
    pub logs: Vec<TokenLog>,
    /// Calls of tools that were complete, behind that text.
    pub calls: Vec<Call>,
    /// Whether any was made so far.
    pub called: bool,
    /// What the engine itself has written, instead of all this.
    pub said: Option<Value>,
    /// The choice ended here.
    pub finish: Option<Finish>,
}

/// The text of one choice so far.
pub(super) struct ChoiceText {
    index: u16,
    detokenize: Box<dyn Detokenize>,
    rules: Rules,
    keep_logs: bool,
    /// What its first piece begins with: the prompt, if it is to be repeated.
    before: String,
    /// Tokens counted.
    tokens: u32,
    /// Characters decoded, shown or held.
    decoded: usize,
    /// Characters shown.
    shown: usize,
    /// Log-probabilities of text that is still held.
    held: Vec<TokenLog>,
    finish: Option<Finish>,
    /// Tells calls of tools from text.
    reader: Option<Reader>,
    /// The control token before a call, and its name, which nothing else shows.
    marker: Option<(u32, &'static str)>,
    called: bool,
    /// It was ended here, at a stop string; the engine may not have heard of it yet.
    cut: bool,
    /// The engine writes it itself.
    written: bool,
}

impl ChoiceText {
    /// A choice without tokens, whose first piece begins with `before`.
    pub(super) fn new(
        index: u16,
        text: &dyn Text,
        rules: Rules,
        logs: bool,
        before: String,
        calling: Option<&Calling>,
    ) -> Self {
        let marker = calling.and_then(|calling| calling.style.marker());
        Self {
            index,
            detokenize: text.stream(rules.specials),
            rules,
            keep_logs: logs,
            before,
            tokens: 0,
            decoded: 0,
            shown: 0,
            held: Vec::new(),
            finish: None,
            reader: calling.cloned().map(Reader::new),
            marker: marker.and_then(|name| Some((text.control(name)?, name))),
            called: false,
            cut: false,
            written: false,
        }
    }

    /// Tokens sampled for this choice, a stop token and those of a stop string included.
    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Why it ended, once it has.
    pub(super) fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Takes the next token. The piece ends the choice if a stop string is complete.
    pub(super) fn push(&mut self, token: TokenOut, text: &dyn Text) -> Piece {
        debug_assert!(self.finish.is_none(), "nothing follows the end");
        self.tokens += 1;
        if !self.rules.keep_stop && self.ends_with(token.id, text) {
            return self.piece(String::new());
        }
        let new = match self.marker {
            Some((marker, name)) if marker == token.id => self.detokenize.finish() + name,
            _ => self.detokenize.push(token.id),
        };
        if self.keep_logs {
            self.held.push(TokenLog {
                token,
                offset: self.decoded,
            });
        }
        if self.tokens <= self.rules.min_tokens {
            // It may not end here, whatever it says.
            self.decoded += new.chars().count();
            return self.piece(new);
        }
        let piece = self.scan(&new);
        self.cut = piece.finish.is_some();
        piece
    }

    fn ends_with(&self, token: u32, text: &dyn Text) -> bool {
        let own = !self.rules.ignore_eos && text.is_end(token);
        own || self.rules.stop_tokens.binary_search(&token).is_ok()
    }

    /// Takes what the engine itself has written, and how many tokens that is by its count.
    pub(super) fn said(&mut self, said: Vec<Value>, sampled: Option<u32>) -> Vec<Piece> {
        self.tokens = sampled.unwrap_or(self.tokens).max(1);
        self.written = true;
        let piece = |said| Piece {
            choice: self.index,
            said: Some(said),
            ..Piece::default()
        };
        said.into_iter().map(piece).collect()
    }

    /// Whether a stop string ended it here, before the engine did.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// The engine ended the choice: shows what was held. Of what it has written itself nothing was.
    pub(super) fn end(&mut self, reason: Finish) -> Option<Piece> {
        if self.written {
            self.finish = Some(reason);
            return None;
        }
        let tail = self.detokenize.finish();
        let mut piece = self.scan(&tail);
        if piece.finish.is_none() {
            let rest = self.rules.stop.flush();
            self.shown += rest.chars().count();
            self.finish = Some(reason);
            piece.finish = self.finish;
            piece.logs.append(&mut self.held);
            self.tell(rest, &mut piece);
        }
        Some(piece)
    }

    fn scan(&mut self, new: &str) -> Piece {
        self.decoded += new.chars().count();
        let mut scan = self.rules.stop.push(new);
        if let Some(stop) = scan.stopped {
            self.finish = Some(Finish::Stop);
            if self.rules.keep_stop {
                scan.text += self.rules.stop.stop(stop);
            }
        }
        self.piece(scan.text)
    }

    fn piece(&mut self, text: String) -> Piece {
        self.shown += text.chars().count();
        // In order, so the first token whose text is still held ends the run. Tokens of a matched
        // stop string begin at or behind the cut: they are counted, not shown.
        let ready = self
            .held
            .iter()
            .take_while(|log| log.offset < self.shown)
            .count();
        let logs = self.held.drain(..ready).collect();
        let mut piece = Piece {
            choice: self.index,
            text: std::mem::take(&mut self.before),
            logs,
            finish: self.finish,
            ..Piece::default()
        };
        self.tell(text, &mut piece);
        piece
    }

    /// Adds what is shown: text, and the calls in it.
    fn tell(&mut self, text: String, piece: &mut Piece) {
        let Some(reader) = &mut self.reader else {
            piece.text += &text;
            return;
        };
        let mut all = vec![reader.push(&text)];
        if piece.finish.is_some() {
            all.push(reader.finish());
        }
        for told in all {
            piece.text += &told.text;
            piece.calls.extend(told.calls);
        }
        self.called = self.called || !piece.calls.is_empty();
        piece.called = self.called;
    }
}
