//! What the HTTP half needs of a tokenizer and a chat template: a trait, so that tests can bring a
//! small one, and [`ServedText`], which is crate `tokenizer` with its errors in a client's words.

use std::sync::OnceLock;

use grammar::{Grammars, NoForm};
use tokenizer::{ChatTemplate, Detokenizer, Error, Tokenizer};

use crate::engine::{Code, Fault};

pub use tokenizer::{Chat, Message, PromptEnding};

/// Tokenizer and chat template of the served model.
pub trait Text: Send + Sync + 'static {
    /// Number of token ids; every id is below it.
    fn vocab(&self) -> u32;

    /// Bytes of the longest token; at least 1.
    fn longest(&self) -> usize;

    /// Whether this token ends an answer.
    fn is_end(&self, token: u32) -> bool;

    /// Token ids of a text. `add_special`: with the marks that the model wants around a bare
    /// prompt. Slow for long texts: call it where blocking is allowed.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Fault>;

    /// Token ids of a conversation by the model's template.
    ///
    /// # Errors
    /// The template refuses the conversation (its words are passed on), or makes more than
    /// `bytes_max` bytes of it.
    fn chat(&self, chat: &Chat, bytes_max: usize) -> Result<Vec<u32>, Fault>;

    /// Whether the template looks at a variable of this name.
    fn reads(&self, variable: &str) -> bool;

    /// Whether the template is given a variable of this name by the server.
    fn is_given(&self, variable: &str) -> bool;

    /// The chat template as it is written.
    fn template(&self) -> &str {
        ""
    }

    /// The control token of this name.
    fn control(&self, name: &str) -> Option<u32> {
        let _ = name;
        None
    }

    /// Whether answers can be held to a form. Slow: call it where blocking is allowed.
    ///
    /// # Errors
    /// What is wrong with it, in a client's words.
    fn compiles(&self, form: &wire::Form) -> Result<(), String> {
        let _ = form;
        Ok(())
    }

    /// Text of token ids, all of which are below [`Text::vocab`]; special tokens are shown.
    ///
    /// # Errors
    /// The ids cannot be decoded.
    fn decode(&self, tokens: &[u32]) -> Result<String, Fault>;

    /// The bytes that one token stands for; not always whole characters.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// Begins to turn the tokens of one answer into text, special tokens shown or not.
    fn stream(&self, specials: bool) -> Box<dyn Detokenize>;
}

/// Turns the tokens of one answer into text, as they come.
pub trait Detokenize: Send {
    /// The text that this token completes; bytes that are not yet a whole character are held.
    fn push(&mut self, token: u32) -> String;

    /// What is still held, with U+FFFD for what never became a character.
    fn finish(&mut self) -> String;
}

/// Tokenizer and chat template of a GGUF.
pub struct ServedText {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    longest: usize,
    /// Read when the first form comes.
    grammars: OnceLock<Result<Grammars, NoForm>>,
}

impl ServedText {
    /// What clients of this model speak.
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Self {
        Self {
            longest: tokenizer.longest_token().max(1),
            tokenizer,
            template,
            grammars: OnceLock::new(),
        }
    }
}

impl Text for ServedText {
    fn vocab(&self) -> u32 {
        self.tokenizer.vocab_size().try_into().unwrap_or(u32::MAX)
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn is_end(&self, token: u32) -> bool {
        self.tokenizer.is_end(token)
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Fault> {
        Ok(if add_special {
            self.tokenizer.encode_prompt(text)
        } else {
            self.tokenizer.encode(text, true)
        })
    }

    fn chat(&self, chat: &Chat, bytes_max: usize) -> Result<Vec<u32>, Fault> {
        let tokens = self.template.render_chat(&self.tokenizer, chat, bytes_max);
        tokens.map_err(|error| blame(error, "messages"))
    }

    fn reads(&self, variable: &str) -> bool {
        self.template.reads(variable)
    }

    fn is_given(&self, variable: &str) -> bool {
        self.template.is_given(variable)
    }

    fn template(&self) -> &str {
        self.template.source()
    }

    fn control(&self, name: &str) -> Option<u32> {
        match self.tokenizer.encode(name, true)[..] {
            [token] if self.tokenizer.is_special(token) => Some(token),
            _ => None,
        }
    }

    fn compiles(&self, form: &wire::Form) -> Result<(), String> {
        let read = || Grammars::new(&self.tokenizer);
        let grammars = self.grammars.get_or_init(read).as_ref();
        let compiled = grammars.map_err(Clone::clone);
        let compiled = compiled.and_then(|grammars| grammar::compiles(grammars, form));
        compiled.map_err(|no_form| no_form.to_string())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, Fault> {
        self.tokenizer
            .decode(tokens)
            .map_err(|error| blame(error, "tokens"))
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer
            .token_bytes(token)
            .unwrap_or_default()
            .to_vec()
    }

    fn stream(&self, specials: bool) -> Box<dyn Detokenize> {
        Box::new(ServedStream {
            specials,
            detokenizer: Detokenizer::new(&self.tokenizer),
            tokenizer: self.tokenizer.clone(),
        })
    }
}

/// Whose fault it is: what a client sent is told to it, what the model's file has wrong is ours.
fn blame(error: Error, param: &'static str) -> Fault {
    match error {
        Error::Refused(_) | Error::TemplateFuel | Error::UnknownToken { .. } => {
            Fault::new(Code::InvalidRequest, error.to_string()).on(param)
        }
        Error::TemplateText { .. } => {
            Fault::new(Code::ContextLengthExceeded, error.to_string()).on(param)
        }
        _ => Fault::new(Code::Internal, error.to_string()),
    }
}

struct ServedStream {
    specials: bool,
    detokenizer: Detokenizer,
    tokenizer: Tokenizer,
}

impl Detokenize for ServedStream {
    fn push(&mut self, token: u32) -> String {
        if !self.specials && self.tokenizer.is_special(token) {
            return String::new();
        }
        self.detokenizer.push(token)
    }

    fn finish(&mut self) -> String {
        self.detokenizer.flush()
    }
}
