//! The cofferdam command: flags and settings, weights, supervision of the parts.
//!
//! ```text
//! cofferdam serve ── supervises ──┬─ cofferdam decode    (one process for each decode worker)
//!                                 ├─ cofferdam prefill   (one process for each prefill worker)
//!                                 └─ cofferdam gateway   (one process, started last)
//! ```
//!
//! [`gate`] asks running servers, ours or others', whether a fleet is safe; [`probe`] plants
//! canaries and looks whose come back; [`watch`] reads access logs for answers that came too fast, and
//! [`affected`] says whose text they may have been. Those need no engine: without the feature `engine`
//! nothing else is built. [`top`] shows what an operator of our gateway sees.
//! [`args`] is what can be typed, [`config`] puts it over environment, configuration file and
//! defaults; [`supervisor`] keeps the parts alive; [`parts`] is the one place that calls
//! the crates which do the work.
#![forbid(unsafe_code)]

pub mod affected;
pub mod args;
mod colour;
mod commands;
pub mod config;
mod evidence;
pub mod exit;
mod files;
pub mod gate;
mod gauges;
mod healthcheck;
pub mod probe;
mod report_arg;
mod runtime;
mod screen;
mod stop;
mod times;
mod tokens;
pub mod watch;

#[cfg(feature = "engine")]
pub mod bench;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
pub mod lifeline;
#[cfg(feature = "engine")]
mod logs;
#[cfg(feature = "engine")]
mod manuals;
#[cfg(feature = "engine")]
mod notify;
#[cfg(feature = "engine")]
mod oncall;
#[cfg(feature = "engine")]
pub mod parts;
#[cfg(feature = "engine")]
mod plan;
#[cfg(feature = "engine")]
mod reload;
#[cfg(feature = "engine")]
pub mod runtime_dir;
#[cfg(feature = "engine")]
mod serve;
#[cfg(feature = "engine")]
pub mod supervisor;
#[cfg(feature = "engine")]
pub mod top;
#[cfg(feature = "engine")]
pub mod waits;

pub use commands::{main, run};
#[cfg(feature = "engine")]
pub use engine::run_part;
#[cfg(feature = "engine")]
pub use serve::run_limited;
