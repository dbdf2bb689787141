//! The async runtime that a command works in.

use crate::exit::Failure;
use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// One that works on the thread that waits for it.
pub(crate) fn on_this_thread() -> Result<Runtime, Failure> {
    built(Builder::new_current_thread().enable_all())
}

/// One with so many threads of its own.
pub(crate) fn on_threads(threads: usize) -> Result<Runtime, Failure> {
    built(
        Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all(),
    )
}

/// One with a thread for each core.
#[cfg(feature = "engine")]
pub(crate) fn on_all_cores() -> Result<Runtime, Failure> {
    built(Builder::new_multi_thread().enable_all())
}

fn built(runtime: &mut Builder) -> Result<Runtime, Failure> {
    runtime
        .build()
        .context("cannot start the async runtime")
        .map_err(Failure::found)
}
