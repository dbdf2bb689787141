use cofferdam_gateway::api::text::{ChatMessage, Detokenize, Text};
use cofferdam_gateway::engine::Fault;

/// A token that ends an answer.
pub const END: u32 = 256;
/// A token whose text is not shown.
pub const SPECIAL: u32 = 257;
/// Bytes of the longest token's text.
pub const LONGEST: usize = 9;
/// Ids are below this.
pub const VOCAB: u32 = 258;

/// A tokenizer whose tokens are bytes, so that tests can write text as tokens. Its template frames
/// every message with [`SPECIAL`].
pub struct ByteText;

impl Text for ByteText {
    fn vocab(&self) -> u32 {
        VOCAB
    }

    fn longest(&self) -> usize {
        LONGEST
    }

    fn is_end(&self, token: u32) -> bool {
        token == END
    }

    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, Fault> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn chat(
        &self,
        messages: &[ChatMessage],
        open_answer: bool,
        _bytes_max: usize,
    ) -> Result<Vec<u32>, Fault> {
        let mut tokens = Vec::new();
        for message in messages {
            tokens.push(SPECIAL);
            tokens.extend(
                format!("{}:{}", &message.role[..1], message.content)
                    .bytes()
                    .map(u32::from),
            );
        }
        if open_answer {
            tokens.push(SPECIAL);
        }
        Ok(tokens)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, Fault> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&id| self.bytes(id)).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        match token {
            END => b"<end>".to_vec(),
            SPECIAL => b"<special>".to_vec(),
            byte => vec![byte as u8],
        }
    }

    fn stream(&self) -> Box<dyn Detokenize> {
        Box::new(ByteStream(Vec::new()))
    }
}

struct ByteStream(Vec<u8>);

impl Detokenize for ByteStream {
    fn push(&mut self, token: u32) -> String {
        if token >= END {
            return String::new();
        }
        self.0.push(token as u8);
        match std::str::from_utf8(&self.0) {
            Ok(text) => {
                let text = text.to_owned();
                self.0.clear();
                text
            }
            Err(_) => String::new(),
        }
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}
