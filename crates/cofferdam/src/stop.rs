//! SIGINT and SIGTERM as an event.

use crate::exit::Failure;
use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, from the moment that this exists; they do not end the process any more.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Must be called inside of a runtime.
    pub(crate) fn new() -> Result<Stop, Failure> {
        let listen = |kind| {
            let listened = signal(kind).context("cannot listen to signals");
            listened.map_err(Failure::found)
        };
        Ok(Stop {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
