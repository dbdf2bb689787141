//! Prefill and decode workers, and the engine in one process.
//!
//! A worker decides **when** something runs. Who may touch a page is decided in `pages`, what
//! happens next in a handoff in `handoff`, how bytes move in `fabric`, what they mean in `model`.
//!
//! * [`prefill::run`] and [`decode::run`] are whole workers: they measure memory, allocate and
//!   populate their pool, listen, and then carry out the effects of their machine on one engine
//!   thread until they are told to end.
//! * [`local::Local`] is the same engine in one process, without a handoff: the reference.
//!
//! Every forward pass is over [`pages::Verified`] block tables. A rule that must hold and does not
//! ends the worker with the evidence ([`WorkerError::FailStop`]).
#![forbid(unsafe_code)]

mod choose;
pub mod decode;
mod driver;
mod error;
mod fabric_layer;
mod facts;
mod fail_stop;
pub mod local;
mod masks;
pub mod memory;
pub mod prefill;
mod quarantine;
mod start;

pub use driver::{Caps, Deadlines, Stop};
pub use error::WorkerError;
pub use fabric_layer::{FabricLayer, Nothing};
pub use fail_stop::FailStop;
pub use start::{EngineConfig, Ready};

/// The words of a page's filled slots, as the fabric names them.
fn runs_of(layout: &model::KvLayout, filled: usize) -> Vec<fabric::WordRun> {
    let runs = layout.filled_runs(filled);
    runs.map(|run| fabric::WordRun {
        offset: run.start,
        words: run.len(),
    })
    .collect()
}

/// Opens the audit log of a worker; one that was asked to keep it does not start without.
fn open_audit(path: Option<&std::path::Path>) -> Result<wire::trace::AuditLog, WorkerError> {
    let what = "cannot open the audit log";
    wire::trace::AuditLog::open(path).map_err(|source| WorkerError::System { what, source })
}

/// Begins what says whose pages were whose; a worker that was asked to keep it does not start without.
fn open_owners(
    config: &EngineConfig,
    role: &'static str,
    epoch: pages::Epoch,
) -> Result<Option<wire::trace::OwnersLog>, WorkerError> {
    let what = "cannot begin the file of owners";
    let open = |dir| wire::trace::OwnersLog::create(dir, role, epoch);
    let opened = config.owners.as_deref().map(open).transpose();
    opened.map_err(|source| WorkerError::System { what, source })
}

/// A worker's last words.
fn say_end(role: &str, ended: &Result<(), WorkerError>) {
    match ended {
        Ok(()) => tracing::info!(role, "drained and ended"),
        Err(error) => tracing::error!(target: "audit", role, %error, "the worker ends now"),
    }
}
