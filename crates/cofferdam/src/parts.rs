//! The one place that calls the crates which do the work.
//!
//! Each function runs a part until it is told to stop (SIGINT, SIGTERM), after it has said on
//! standard output that it is ready ([`Report`](crate::supervisor::Report)).

use crate::args::{Decode, Gateway, Prefill, Serve};
use crate::config::required;
use crate::exit::Failure;
use anyhow::anyhow;
use std::path::Path;

/// Days for which certificates are accepted.
pub const CERTIFICATE_DAYS: u32 = 365;

/// Runs a prefill worker on these weights.
pub fn prefill(settings: Prefill, _weights: &Path) -> Result<(), Failure> {
    required("listen", settings.listen)?;
    required("certs", settings.part.certs)?;
    Err(not_built_in("prefill"))
}

/// Runs a decode worker on these weights.
pub fn decode(settings: Decode, _weights: &Path) -> Result<(), Failure> {
    required("listen", settings.listen)?;
    required("certs", settings.part.certs)?;
    Err(not_built_in("decode"))
}

/// Runs a gateway for these weights.
pub fn gateway(settings: Gateway, _weights: &Path) -> Result<(), Failure> {
    required("certs", settings.part.certs)?;
    Err(not_built_in("gateway"))
}

/// Runs everything in this process, without a handoff.
pub fn in_process(_settings: Serve, _weights: &Path) -> Result<(), Failure> {
    Err(not_built_in("serve --in-process"))
}

fn not_built_in(part: &str) -> Failure {
    Failure::unreachable(anyhow!("{part} is not built into this version"))
}
