//! On call: what was found out about engines while they serve, what is done about it at once, and the
//! record of both.
//!
//! ```text
//! signals ──▶ policy ──▶ duty ──▶ entries ──▶ journal (SQLite, hash-chained, appended only)
//!                         │  ▲                   │
//!  who may ask now ◀──────┘  └── book: what the entries add up to ◀──┘
//! ```
//! [`duty`] decides, and is deterministic: the same entries lead to the same book. It never opens again
//! what it has closed; a person does, and only with proofs about the lives that run ([`book`]). The
//! journal is written by a thread of its own ([`recorder`]): what was decided holds whether or not it
//! could be written yet, and no request waits for a disk.
#![forbid(unsafe_code)]

pub mod book;
pub mod chain;
pub mod duty;
pub mod entry;
pub mod journal;
pub mod policy;
pub mod recorder;
pub mod report;
mod served;
pub mod times;

pub use book::{Book, Incident, Restriction};
pub use duty::{Asked, Duty, Proving, Refusal};
pub use entry::{Entry, Life, Openness, Proof, ProofKind, Scope, Signal, SignalKind};
pub use journal::{Journal, JournalError};
pub use policy::Policy;
pub use recorder::{Recorder, Status};
pub use served::{AFTER_TEXT, Canaried, Served};
