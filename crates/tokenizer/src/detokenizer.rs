use crate::Tokenizer;

/// Turns tokens into text as they come. A character whose bytes are spread over several tokens is
/// held back until it is whole; U+FFFD appears only for bytes that can never become a character.
/// Joined, all pushes and the flush are what decoding all tokens at once gives.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    held: Vec<u8>, // the beginning of a character: at most three bytes
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer) -> Detokenizer {
        Detokenizer {
            tokenizer: tokenizer.clone(),
            held: Vec::new(),
        }
    }

    /// The text that becomes whole with this token; often empty. An id that the vocabulary does
    /// not have becomes U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        match self.tokenizer.token_bytes(id) {
            Some(bytes) => self.held.extend(bytes),
            None => self.held.extend("\u{FFFD}".as_bytes()),
        }
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len() + chunk.invalid().len();
            if done == self.held.len() && is_beginning(chunk.invalid()) {
                done -= chunk.invalid().len();
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held.drain(..done);
        text
    }

    /// Whether the beginning of a character is held back.
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// The end of the text: U+FFFD if a character was begun and not finished.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
