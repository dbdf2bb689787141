//! Transformers on verified pages, and sampling.
//!
//! * [`Architecture`] describes what is computed: which of the shared blocks, under which names.
//! * [`Model`] reads its weights from a [`gguf::File`] and runs [`Model::forward`]: a batch that may
//!   mix prefill chunks with decode rows. Attention takes [`pages::Verified`] and nothing else, so
//!   an unchecked block table does not compile.
//! * [`KvMemory`] is the payload of the pages: f16 keys and values, populated before anybody may
//!   advertise it. f16 and not bf16: keys and values of these models lie far inside f16's range
//!   (SmolLM2-135M: below 21), and its 3 more bits of mantissa count: f16 costs the exact path
//!   0.0004 of log-probability on average, 0.004 at most. A value that does leave the range is an
//!   error, never an infinity in the cache.
//! * [`sampling`] turns logits into a token as a pure function of its arguments.
//!
//! # Two numeric paths
//! [`Numeric::Exact`] dequantizes every weight to f32 and keeps activations in f32: the oracle.
//! [`Numeric::Fast`] keeps Q4_0, Q4_1 and Q8_0 as they are and quantizes activations to int8 in
//! runs of 16; every other tensor type is requantized to Q8_0 at load. Both share attention.
//!
//! # Batch invariance
//! The bits of a row's logits depend on that row's tokens, the numeric path and the instruction
//! set; not on batch, chunk, page size, thread count or neighbours (see the `kernels` crate for how,
//! and `tests/invariance.rs` for the evidence). That is why "equals its answer alone" is equality.
#![forbid(unsafe_code)]

mod architecture;
mod attention;
mod config;
mod cost;
mod error;
mod exec;
mod forward;
mod keys;
mod kv;
mod latent;
mod layer;
mod logits;
mod mixture;
mod rope;
pub mod sampling;
mod weights;

pub use architecture::{ARCHITECTURES, Architecture};
pub use config::{Config, Experts, Latent, Windowed, check_architecture};
pub use cost::Cost;
pub use error::{Error, KvError, Quantity};
pub use forward::{Scratch, SequenceInput, Want};
pub use kernels::Isa;
pub use kv::{KvLayout, KvMemory, PageBuf};
pub use logits::Logits;
pub use weights::{LoadOptions, Model, Numeric};
