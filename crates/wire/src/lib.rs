//! Every word said between our processes, and how it is carried and kept.
//!
//! Here: what the bytes mean that the handoff carries without reading. [`control`]: authenticated
//! connections. [`trace`]: what a machine was told and answered, on disk, and its replay. [`Timers`]:
//! what every driver keeps for its machine.
//!
//! The handoff's machines move three kinds of bytes that mean nothing to them: how a request is to
//! be sampled ([`Ask`], in `Spec::sampling`), what was sampled ([`TokenOut`], in the payload of an
//! output, and [`encode_first`], in `Closed`), and, beside the core's own messages, what a worker
//! says about itself ([`Facts`]). Gateway and workers share this crate, and nothing else.
//!
//! Parsing is total: any bytes give a value inside its limits or an error, never a panic, and never
//! an allocation beyond what the bytes themselves justify.
#![forbid(unsafe_code)]

pub mod control;
#[cfg(feature = "trace")]
pub mod trace;

mod ask;
mod codec;
mod facts;

mod frame;
mod short_name;
mod timers;
mod token;

pub use ask::{
    Ask, FORM_BYTES_MAX, Form, LOGIT_BIAS_MAX, OutOfRange, STOP_TOKENS_MAX, Sampling, TOP_MAX,
};
pub use codec::{BYTES_MAX, Malformed, VERSION};
pub use facts::{Counters, Facts, Held, Pages, Quarantine};
pub use frame::{Frame, FrameError};
pub use short_name::short_name;
pub use timers::Timers;
pub use token::{CHOICES_MAX, TokenOut, decode_first, encode_first};
