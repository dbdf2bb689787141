//! The HTTP half. See `docs/api.md` for what it speaks and `docs/errors.md` for how it refuses.
//!
//! A request's way: [`server`] accepts, `router` judges the head, `body` reads under limits, `ask`
//! turns JSON into a checked request, `generate` judges its length and submits it, `run` keeps the
//! engine to its contract, `choice` turns tokens into text, `render` and `stream` answer.

mod absent;
mod access_line;
mod access_log;
mod ask;
pub mod auth;
mod body;
mod calls;
mod choice;
pub mod config;
pub mod errors;
mod fields;
pub mod figures;
mod generate;
mod heads;
mod identity;
mod metrics;
mod models;
pub mod observe;
pub mod origins;
mod page;
pub mod private;
pub mod quota;
mod render;
mod responses;
mod router;
mod run;
pub mod server;
mod stall;
mod status;
mod stream;
mod strict_json;
pub mod text;
pub mod tls;
mod tokenize;
mod turns;

pub use access_log::AccessLog;
pub use metrics::Reloads;
