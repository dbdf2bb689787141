//! Test helpers, never part of the product: the reference figures of the real model, where its
//! weights are, and small random models with its tokenizer. They panic with the reason when they
//! cannot do what a test needs.
#![forbid(unsafe_code)]

mod golden;
mod small;
pub mod weights;
mod writer;

pub use golden::{Case, Golden, Kind, Perplexity, TokenizerVector, golden};
pub use small::{SmallSpec, small_gguf};
pub use writer::{Writer, quantize_q8_0};
