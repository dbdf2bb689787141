//! The cofferdam command: flags and settings, weights, supervision of the parts.
//!
//! ```text
//! cofferdam serve ── supervises ──┬─ cofferdam decode    (one process for each decode worker)
//!                                 ├─ cofferdam prefill   (one process for each prefill worker)
//!                                 └─ cofferdam gateway   (one process, started last)
//! ```
//!
//! [`gate`] asks running servers, ours or others', whether a fleet is safe; [`probe`] plants
//! canaries and looks whose come back; [`watch`] reads access logs for answers that came too fast.
//! [`args`] is what can be typed, [`config`] puts it over environment, configuration file and
//! defaults; [`supervisor`] keeps the parts alive; [`parts`] is the one place that calls
//! the crates which do the work.
#![forbid(unsafe_code)]

pub mod args;
mod commands;
pub mod config;
mod evidence;
pub mod exit;
mod files;
pub mod gate;
mod gauges;
pub mod lifeline;
mod logs;
pub mod parts;
mod plan;
pub mod probe;
pub mod runtime_dir;
mod serve;
mod stop;
pub mod supervisor;
pub mod waits;
pub mod watch;

pub use commands::{main, run, run_part};
pub use serve::run_limited;
