//! OpenAI-compatible gateway: who may ask, and what they are told.
//!
//! Two halves meet at one trait. [`api`] speaks HTTP: it parses, counts tokens, judges lengths
//! against the measured limit, turns tokens into text and faults into statuses. [`engine::Engine`]
//! owns the request machine of the handoff and the connections to prefill and decode. The HTTP
//! half knows no worker, the engine half knows no HTTP, and either is tested without the other.
//! [`pairs`] is that engine over prefill and decode workers, [`door`] over servers that are not ours;
//! [`verdict`] says in a client's words
//! how a request ended; [`spans`] tell a collector of traces which way it went.
#![forbid(unsafe_code)]

pub mod api;
pub mod door;
pub mod engine;
pub mod pairs;
pub mod spans;
pub mod verdict;

pub use api::config::Config;
pub use api::server::serve;
