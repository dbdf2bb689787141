use gateway::api::text::{Chat, Detokenize, PromptEnding, Text};
use gateway::engine::Fault;

/// A token that ends an answer.
pub const END: u32 = 256;
/// A token whose text is not shown.
pub const SPECIAL: u32 = 257;
/// Bytes of the longest token's text.
pub const LONGEST: usize = 9;
/// Ids are below this.
pub const VOCAB: u32 = 258;

/// Variables that its template reads.
const READ: [&str; 2] = ["mood", "enable_thinking"];

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

    /// Shows when it was asked to add nothing, of which there is nothing.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Fault> {
        let shown = (!add_special).then_some(SPECIAL);
        Ok(text.bytes().map(u32::from).chain(shown).collect())
    }

    fn chat(&self, chat: &Chat, _bytes_max: usize) -> Result<Vec<u32>, Fault> {
        let mut tokens = Vec::new();
        let mut say = |text: &str| tokens.extend(text.bytes().map(u32::from));
        for variable in READ {
            if let Some(value) = chat.variables.get(variable) {
                say(&value.to_string());
            }
        }
        for message in &chat.messages {
            let name = message.name.as_deref().unwrap_or_default();
            let reasoning = message.reasoning.as_deref().unwrap_or_default();
            tokens.push(SPECIAL);
            let text = format!(
                "{}{name}:{reasoning}{}",
                &message.role[..1],
                message.content
            );
            tokens.extend(text.bytes().map(u32::from));
        }
        match chat.ending {
            PromptEnding::Answer => tokens.push(SPECIAL),
            PromptEnding::Closed => {}
            PromptEnding::Continue => tokens.push(b'>'.into()),
        }
        Ok(tokens)
    }

    fn reads(&self, variable: &str) -> bool {
        READ.contains(&variable)
    }

    fn is_given(&self, variable: &str) -> bool {
        variable == "messages"
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

    fn stream(&self, specials: bool) -> Box<dyn Detokenize> {
        Box::new(ByteStream(Vec::new(), specials))
    }
}

struct ByteStream(Vec<u8>, bool);

impl Detokenize for ByteStream {
    fn push(&mut self, token: u32) -> String {
        match token {
            END | SPECIAL if !self.1 => return String::new(),
            token => self.0.extend(ByteText.bytes(token)),
        }
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
