//! Test helpers, never part of the product: the reference figures of the real model, where its
//! weights are, a collector of spans, random schemas, small random models with its tokenizer, real processes, a client of their API, and
//! crowds of requests, the memory of processes, and Python for other people's clients. They panic with the reason when they cannot do what a test needs.
#![forbid(unsafe_code)]

pub mod collector;
mod copying;
pub mod crowd;
mod drawn;
mod folders;
mod golden;
mod http;
pub mod memory;
mod packages;
pub mod process;
mod schemas;
mod small;
pub mod weights;
mod writer;

pub use copying::copying_gguf;
pub use drawn::draw;
pub use folders::{FolderKind, folder};
pub use golden::{Case, Golden, Kind, Perplexity, TokenizerVector, golden};
pub use http::{Api, Events, Pending, Reply};
pub use packages::{node, python};
pub use schemas::schemas;
pub use small::{SmallSpec, small_gguf};
pub use writer::{Writer, quantize_q8_0};
