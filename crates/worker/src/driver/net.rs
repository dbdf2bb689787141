//! The I/O runtime: control connections and signals become inputs of the engine thread.

use super::stop::Wish;
use super::{Input, Stop};
use crate::WorkerError;
use handoff::{Conn, codec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use wire::control::{Addr, Connection, Identity, Limits, Listener, Role};

/// Connections at one time; further peers wait.
const CONNECTIONS_MAX: usize = 128;
/// Bytes received on one connection and not yet processed, at most; above that it is not read.
const UNPROCESSED_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// A message of the core and the byte that says that it is one.
const FRAME_BYTES_MAX: usize = codec::MAX_BYTES + 1;
/// First pause before a peer is dialled again, and the longest.
const REDIAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Pause after a peer was refused.
const REFUSED: Duration = Duration::from_millis(10);
/// Time for the first word of a peer that has connected. Until it has said Hello no machine knows of
/// it, and it holds one of the places.
const GREETING: Duration = Duration::from_secs(10);
/// Time for what is queued when the worker ends.
const FLUSH: Duration = Duration::from_millis(100);

/// Limits of every control connection of a worker.
fn limits() -> Limits {
    Limits {
        frame_bytes_max: FRAME_BYTES_MAX,
        queue_frames_max: 16_384,
        queue_bytes_max: 4 * FRAME_BYTES_MAX,
        ..Limits::default()
    }
}

/// See the module's documentation. Dropping it ends all I/O.
pub(crate) struct Net<Own> {
    runtime: Option<Runtime>,
    inbox: Inbox<Own>,
}

/// The way into the engine thread.
pub(crate) struct Inbox<Own> {
    inputs: Sender<Input<Own>>,
    conns: Arc<AtomicU64>,
}

impl<Own> Clone for Inbox<Own> {
    fn clone(&self) -> Self {
        Self {
            inputs: self.inputs.clone(),
            conns: self.conns.clone(),
        }
    }
}

impl<Own> Inbox<Own> {
    /// An engine that has ended needs no inputs, so a failure to send is none.
    fn put(&self, input: Input<Own>) -> bool {
        self.inputs.send(input).is_ok()
    }

    /// For the worker's own threads: reports that something has ended.
    pub(crate) fn report(&self, own: Own) {
        self.put(Input::Own(own));
    }

    /// For them too: there may be something to compute.
    pub(crate) fn wake(&self) {
        self.put(Input::Wake);
    }
}

impl<Own: Send + 'static> Net<Own> {
    /// A runtime without connections.
    pub(crate) fn new() -> Result<(Self, Receiver<Input<Own>>), WorkerError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(|source| WorkerError::System {
                what: "cannot start I/O",
                source,
            })?;
        let (inputs, inbox) = channel();
        let conns = Arc::new(AtomicU64::new(1));
        Ok((
            Self {
                runtime: Some(runtime),
                inbox: Inbox { inputs, conns },
            },
            inbox,
        ))
    }

    /// The way into the engine thread.
    pub(crate) fn inbox(&self) -> Inbox<Own> {
        self.inbox.clone()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken by drop alone")
    }

    /// Listens for peers of these roles; gives the address as bound.
    pub(crate) fn listen(
        &self,
        addr: &Addr,
        identity: &Identity,
        allowed: &[Role],
    ) -> Result<Addr, WorkerError> {
        let limits = limits();
        let bound = Listener::bind(addr, identity, allowed, &limits);
        let mut listener = self.runtime().block_on(bound)?;
        let addr = listener.addr().clone();
        let inbox = self.inbox.clone();
        self.runtime().spawn(async move {
            let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            loop {
                let permit = room.clone().acquire_owned().await.expect("never closed");
                let Ok(connection) = listener.accept().await else {
                    // Logged where it happened; the pause keeps a flood of refusals from the CPU.
                    tokio::time::sleep(REFUSED).await;
                    continue;
                };
                let inbox = inbox.clone();
                tokio::spawn(async move {
                    read(inbox, connection, Some(GREETING)).await;
                    drop(permit);
                });
            }
        });
        Ok(addr)
    }

    /// Dials a peer of this role and dials again whenever the connection is lost.
    pub(crate) fn keep_dialled(&self, addr: Addr, identity: Identity, role: Role) {
        let inbox = self.inbox.clone();
        self.runtime().spawn(async move {
            let mut pause = REDIAL.0;
            let mut failing: Option<String> = None;
            loop {
                match wire::control::dial(&addr, &identity, &[role], &limits()).await {
                    Ok(connection) => {
                        (pause, failing) = (REDIAL.0, None);
                        // Its Hello is the machine's to wait for.
                        if !read(inbox.clone(), connection, None).await {
                            return;
                        }
                    }
                    // Said once for each reason, and tried again and again.
                    Err(error) => {
                        let error = error.to_string();
                        if failing.as_ref() != Some(&error) {
                            let what = "a worker cannot be reached: tried again until it can";
                            tracing::warn!(%addr, %role, %error, "{what}");
                            failing = Some(error);
                        }
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(REDIAL.1);
            }
        });
    }

    /// Turns `stop`, and SIGTERM and SIGINT if they are this worker's business, into inputs. The
    /// second signal ends at once.
    pub(crate) fn watch(&self, stop: &Stop, signals: bool) -> Result<(), WorkerError> {
        let (inbox, mut wish) = (self.inbox.clone(), stop.watch());
        self.runtime().spawn(async move {
            while let Ok(seen) = wish
                .wait_for(|wish| *wish != Wish::GoOn)
                .await
                .map(|wish| *wish)
            {
                let input = if seen == Wish::Drain {
                    Input::Drain
                } else {
                    Input::Stop
                };
                let last = seen == Wish::Now;
                if !inbox.put(input) || last || wish.changed().await.is_err() {
                    return;
                }
            }
        });
        if !signals {
            return Ok(());
        }
        let _entered = self.runtime().enter();
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            let mut signals = signal(kind).map_err(|source| WorkerError::System {
                what: "cannot watch signals",
                source,
            })?;
            let stop = stop.clone();
            self.runtime().spawn(async move {
                signals.recv().await;
                stop.drain();
                signals.recv().await;
                stop.now();
            });
        }
        Ok(())
    }
}

impl<Own> Drop for Net<Own> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // What is queued on connections goes out first; a peer that does not read it in this
            // time does not get it.
            runtime.block_on(async { tokio::time::sleep(FLUSH).await });
            runtime.shutdown_background();
        }
    }
}

/// Reads frames until the connection ends, or the first does not come in its time; false if the
/// engine has ended.
async fn read<Own>(inbox: Inbox<Own>, connection: Connection, greeting: Option<Duration>) -> bool {
    let Connection {
        peer,
        sender,
        mut receiver,
    } = connection;
    let conn = Conn(inbox.conns.fetch_add(1, Ordering::Relaxed));
    let room = Arc::new(Semaphore::new(UNPROCESSED_BYTES_MAX));
    let aborting = sender.clone();
    let mut alive = inbox.put(Input::Up(conn, peer.role, sender));
    let mut greeting = greeting;
    while alive {
        let received = match greeting.take() {
            None => receiver.recv().await,
            Some(within) => match tokio::time::timeout(within, receiver.recv()).await {
                Ok(received) => received,
                Err(_) => {
                    tracing::warn!(conn = conn.0, role = %peer.role, ?within, "no first word: closed");
                    break;
                }
            },
        };
        match received {
            Ok(Some(frame)) => {
                let bytes = frame.len().max(64) as u32;
                let permit = room
                    .clone()
                    .acquire_many_owned(bytes)
                    .await
                    .expect("never closed");
                alive = inbox.put(Input::Frame(conn, frame, permit));
            }
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(conn = conn.0, role = %peer.role, %error, "connection ended");
                break;
            }
        }
    }
    aborting.abort();
    inbox.put(Input::Down(conn)) && alive
}
