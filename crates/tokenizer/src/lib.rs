//! Text in and text out: the tokenizer and the chat template of a GGUF or of a folder, tokens back to text as
//! they come, and stop strings. Knows nothing of models and kernels: the gateway uses it alone.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let metadata = gguf::Metadata::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref())?;
//! let tokenizer = tokenizer::Tokenizer::from_gguf(&metadata)?;
//! assert_eq!(tokenizer.encode("Hello, world!", false), [19556, 28, 905, 17]);
//!
//! let template = tokenizer::ChatTemplate::from_gguf(&metadata)?;
//! let prompt = template.render_chat(
//!     &tokenizer,
//!     &tokenizer::Chat::new([tokenizer::Message::new("user", "Hi!")]),
//!     8192, // bytes of a prompt, at most
//! )?;
//! assert_eq!(prompt[0], 1); // <|im_start|>
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod chat;
mod detokenizer;
mod error;
mod folder;
mod message;
mod methods;
mod paid;
mod pieces;
mod pre_tokenizer;
mod rewritten;
mod specials;
mod stops;
mod tokenizer;
mod vocabulary;

pub use chat::ChatTemplate;
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use message::{Chat, Message, PromptEnding, ROLES};
pub use pre_tokenizer::PRE_TOKENIZERS;
pub use stops::{Released, StopMatcher};
pub use tokenizer::Tokenizer;
pub use vocabulary::TOKENIZERS;

/// Most instructions that the rendering of a chat template may execute; the data it makes counts
/// too, a unit for each [`FUEL_BYTES`], before it is made where its size can be known. So this bounds
/// time and memory: 64 MB, of which a filter that escapes may make six times as much for a moment. SmolLM2's template takes about 20 a message.
pub const TEMPLATE_FUEL: u64 = 1_000_000;
/// Bytes of data that a unit of fuel pays for.
pub const FUEL_BYTES: u64 = 64;
/// Most stop strings of one request.
pub const STOPS_MAX: usize = 16;
/// Longest stop string, in bytes.
pub const STOP_BYTES_MAX: usize = 1024;
