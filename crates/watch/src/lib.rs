//! Is it too fast to be true?
//!
//! A prefill of N tokens has a floor in time: nobody computes it faster than the hardware can. An
//! answer that came as if its prompt were short was not computed from its prompt, whatever its
//! status code says; in the incident behind this project a prompt of hundreds of thousands of
//! tokens answered like one of a single token.
//!
//! ```text
//! access log ── fields, preset ── Request ── Watch ─┬─ series ── buckets ── quantile sketches
//!                                           ├─ floor: what a prefill of N tokens takes at least
//!                                           └─ signals and notices ── JSON, metrics, table, plot
//! ```
//!
//! [`Detector::see`] judges a request and learns from it; [`Detector::judge`] only judges, which is how
//! [`forensics`] goes through a log a second time. Nothing here reads a clock or opens a file.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod counters;
pub mod fields;
pub mod floor;
pub mod forensics;
pub mod joined;
pub mod metrics;
mod mixture;
pub mod moment;
pub mod plot;
pub mod preset;
pub mod request;
pub mod rules;
pub mod series;
pub mod settings;
pub mod sight;
pub mod signal;
pub mod state;

mod value;
mod watching;

pub use fields::Fields;
pub use preset::Preset;
pub use request::Request;
pub use settings::Settings;
pub use signal::{Anomaly, Notice};
pub use watching::{Detector, Doubt, Judged, Key, Observation, Standing};
