//! The one place that calls the crates which do the work.
//!
//! Each function runs a part until `stop` resolves, after it has said on standard output that it
//! is ready ([`Report`](crate::supervisor::Report)).

use crate::exit::Failure;
use crate::settings::{Gateway, Serve, Worker};
use anyhow::anyhow;
use std::path::Path;

/// Days for which the certificates of `certs new` are accepted.
pub const CERTIFICATE_DAYS: u32 = 365;

/// Runs a prefill worker on these weights.
pub async fn prefill(
    _settings: Worker,
    _weights: &Path,
    _stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    Err(not_built_in("prefill"))
}

/// Runs a decode worker on these weights.
pub async fn decode(
    _settings: Worker,
    _weights: &Path,
    _stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    Err(not_built_in("decode"))
}

/// Runs a gateway for these weights.
pub async fn gateway(
    _settings: Gateway,
    _weights: &Path,
    _stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    Err(not_built_in("gateway"))
}

/// Runs everything in this process, without a handoff.
pub async fn in_process(
    _settings: Serve,
    _weights: &Path,
    _stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    Err(not_built_in("serve --in-process"))
}

fn not_built_in(part: &str) -> Failure {
    Failure::unreachable(anyhow!("{part} is not built into this version"))
}
