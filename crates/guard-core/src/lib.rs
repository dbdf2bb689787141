//! Page identity for serving engines that are not ours.
//!
//! SGLang and vLLM have allocators, transports and kernels of their own; what they lack is the
//! proof that the blocks a request attends to are the blocks that were computed for it. This crate
//! is that proof, without the engines: the Python package `cofferdam-guard` (guards/python) binds
//! it and puts it where each engine offers a place for it.
//!
//! - [`Ledger`]: which block stands under which tag, who holds it; over [`pages::Pool`].
//! - [`Reference`]: what a producer says a consumer may fetch: signed, for one prompt, for one use.
//! - [`Statement`]: what a producer says is in the blocks; compared with what has arrived.
//! - [`Producer`] and [`Seen`]: single use and lease, on either side.
//! - [`Envelope`]: authenticated messages of the side channel.
//! - [`Counters`], [`Record`]: what happened, for operators; never a word of a prompt.
//!
//! No sockets, threads, clock or randomness: times, epochs and nonces are arguments.
#![forbid(unsafe_code)]

mod audit;
mod channel;
mod counters;
mod ledger;
mod lineage;
mod producer;
mod reference;
mod secret;
mod seen;
mod statement;
mod sums;

pub use audit::Record;
pub use channel::{Envelope, Nonce, Role};
pub use counters::{Counters, EVENTS};
pub use ledger::{HoldId, Ledger, LedgerFault};
pub use lineage::{Context, Lineage};
pub use producer::{Claim, Producer, Refusal};
pub use reference::{Reference, ReferenceFault};
pub use secret::{SECRET_BYTES_MIN, Secret, WeakSecret};
pub use seen::Seen;
pub use statement::{BlockStatement, Difference, Received, Statement, StatementFault};
pub use sums::block_sums;
