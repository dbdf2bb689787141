//! A scripted engine: SGLang, vLLM or llama.cpp as far as a router sees them, on real sockets, without
//! a model. Never shipped.
//!
//! - Answers have meaning ([`expected`], [`whose`]): they follow from the prompt's tokens, and what a
//!   decode engine says follows from what its prefill has handed over.
//! - Legs meet as real ones do: by bootstrap room, or by reference.
//! - A [`Script`] says which requests are refused, delayed, aborted inside a 200, answered with
//!   garbage or with another's words, cut, or not answered at all.
//! - Everything is noted in order ([`Fleet::log`]) and counted ([`Counts`]).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use scripted::{Act, Engine, Fleet, Rule};
//! let fleet = Fleet::start(Engine::sglang_pair()).await?;
//! fleet.rule(Rule::new(Act::Incident).on("prefill").marked("secret"));
//! let (prefill, decode) = (fleet.url("prefill"), fleet.url("decode"));
//! // … a router in front of both, a request through it …
//! # let _ = (prefill, decode);
//! assert_eq!(fleet.counts("decode").orphans, 0);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod ask;
mod content;
mod control;
mod engine;
mod fleet;
mod generate;
mod log;
mod meeting;
mod pages;
mod part;
mod script;
mod serve;
mod shapes;
mod speak;
mod state;
mod tell;
mod tokenize;
pub mod tokens;
mod wire;
mod work;

pub use content::{Seed, Whose, copied, expected, expected_text, whose};
pub use engine::{Dialect, Engine, Role};
pub use fleet::Fleet;
pub use log::{Arrival, Counts, Event, Stage, What};
pub use script::{Act, Rule, Script};
