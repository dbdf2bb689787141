//! Accepting connections: handshakes run side by side, a stuck peer holds up nobody.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

pub use crate::control::socket::BindError;

use crate::control::connection::{Connection, Limits};
use crate::control::handshake::{self, HandshakeError};
use crate::control::socket::Bound;
use crate::control::{Addr, Identity, Role};

/// Handshakes under way at one time; further peers wait in the system's backlog.
const HANDSHAKES_MAX: usize = 64;
/// Finished connections and refusals that wait for [`Listener::accept`].
const ACCEPT_QUEUE: usize = 64;
/// Pause after the system refused to accept (no descriptor left, say), instead of a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A peer that was turned away.
#[derive(Debug, thiserror::Error)]
#[error("refused a peer from {from}: {error}")]
pub struct Refused {
    /// Its network address, or "unix".
    pub from: String,
    /// Why.
    pub error: HandshakeError,
}

/// Listens on an address. Dropping it stops listening and removes the Unix socket's file;
/// connections that were accepted live on.
pub struct Listener {
    addr: Addr,
    accepted: mpsc::Receiver<Result<Connection, Refused>>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Binds and begins to accept peers that prove one of the `allowed` roles.
    ///
    /// A Unix socket is made with mode 0600 in a directory of mode 0700, which is created where
    /// it is missing; a stale socket file is replaced only when nobody listens on it.
    pub async fn bind(
        addr: &Addr,
        identity: &Identity,
        allowed: &[Role],
        limits: &Limits,
    ) -> Result<Self, BindError> {
        limits.check().map_err(BindError::Own)?;
        let config = identity
            .server_config(allowed)
            .map_err(|fault| BindError::Own(fault.to_string()))?;
        let bound = Bound::new(addr).await?;
        let failed = |source| BindError::Io {
            addr: addr.clone(),
            source,
        };
        let addr = bound.addr().map_err(failed)?;
        let (finished, accepted) = mpsc::channel(ACCEPT_QUEUE);
        let task = tokio::spawn(serve(bound, Arc::new(config), limits.clone(), finished));
        Ok(Self {
            addr,
            accepted,
            task,
        })
    }

    /// The address as bound, with the port that the system chose.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// The next peer, or the next that was refused (for the log; the listener goes on). Safe to
    /// cancel.
    pub async fn accept(&mut self) -> Result<Connection, Refused> {
        let next = self.accepted.recv().await;
        next.unwrap_or_else(|| {
            let error = HandshakeError::Io(io::Error::other("the listener has ended"));
            Err(Refused {
                from: self.addr.to_string(),
                error,
            })
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    bound: Bound,
    config: Arc<rustls::ServerConfig>,
    limits: Limits,
    finished: mpsc::Sender<Result<Connection, Refused>>,
) {
    let room = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut handshakes = JoinSet::new(); // dropped, and with it aborted, together with this task
    loop {
        let permit = room.clone().acquire_owned().await.expect("never closed");
        while handshakes.try_join_next().is_some() {}
        let (socket, from) = match bound.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (config, limits, finished) = (config.clone(), limits.clone(), finished.clone());
        handshakes.spawn(async move {
            let result = handshake::receive(socket, config, &limits).await;
            if let Err(error) = &result {
                tracing::warn!(%from, %error, "refused a control connection");
            }
            let result = result.map_err(|error| Refused { from, error });
            let _ = finished.send(result).await; // the listener is gone: so is the peer
            drop(permit); // only now: an owner that does not accept stops handshakes, too
        });
    }
}
