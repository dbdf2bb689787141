//! Dialling workers, again and again, and reading what they send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use handoff::Conn;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use wire::control::{Addr, Connection, Role};

use super::Config;
use super::actor::Input;

/// Charged for a frame beside its bytes, so that empty frames are not free.
const FRAME_COST_BYTES: usize = 64;

/// One task for each worker. They end when the inbox is closed.
pub(super) fn keep_all_dialled(
    config: &Config,
    inbox: &mpsc::UnboundedSender<Input>,
    tasks: &mut JoinSet<()>,
) {
    let conns = Arc::new(AtomicU64::new(1));
    let prefill = config.prefill.iter().map(|addr| (addr, Role::Prefill));
    let decode = config.decode.iter().map(|addr| (addr, Role::Decode));
    for (place, (addr, role)) in prefill.chain(decode).enumerate() {
        let dialler = Dialler {
            place,
            addr: addr.clone(),
            role,
            config: config.clone(),
            inbox: inbox.clone(),
            conns: conns.clone(),
        };
        tasks.spawn(dialler.run());
    }
}

struct Dialler {
    /// Index of the worker.
    place: usize,
    addr: Addr,
    role: Role,
    config: Config,
    inbox: mpsc::UnboundedSender<Input>,
    conns: Arc<AtomicU64>,
}

impl Dialler {
    async fn run(self) {
        let Config {
            identity, limits, ..
        } = &self.config;
        let (first, longest) = self.config.redial;
        let mut pause = first;
        let mut failing: Option<String> = None;
        loop {
            match wire::control::dial(&self.addr, identity, &[self.role], limits).await {
                Ok(connection) => {
                    failing = None;
                    let since = Instant::now();
                    self.read(connection).await;
                    // A peer that accepts and hangs up at once (another model, say) is not
                    // dialled in a tight loop.
                    if since.elapsed() > longest {
                        pause = first;
                    }
                }
                // Said once for each reason, and tried again and again.
                Err(error) => {
                    let error = error.to_string();
                    if failing.as_ref() != Some(&error) {
                        tracing::warn!(
                            addr = %self.addr, role = %self.role, %error,
                            "a worker cannot be reached: tried again until it can"
                        );
                        failing = Some(error);
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.inbox.closed() => return,
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// Hands frames on until the connection ends. Bytes that wait to be processed are bounded;
    /// above that the connection is not read, which its peer feels.
    async fn read(&self, connection: Connection) {
        let Connection {
            sender,
            mut receiver,
            ..
        } = connection;
        let conn = Conn(self.conns.fetch_add(1, Ordering::Relaxed));
        let room_bytes = 2 * (self.config.limits.frame_bytes_max + FRAME_COST_BYTES);
        let room = Arc::new(Semaphore::new(room_bytes));
        let aborting = sender.clone();
        let mut alive = self.put(Input::Up(conn, self.place, sender));
        while alive {
            let frame = tokio::select! {
                frame = receiver.recv() => frame,
                () = self.inbox.closed() => return, // drops the halves: what is queued is sent
            };
            match frame {
                Ok(Some(frame)) => {
                    let bytes = (frame.len() + FRAME_COST_BYTES) as u32;
                    let held = room.clone().acquire_many_owned(bytes).await;
                    let held = held.expect("this semaphore is never closed");
                    alive = self.put(Input::Frame(conn, frame, held));
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(conn = conn.0, role = %self.role, %error, "connection ended");
                    break;
                }
            }
        }
        aborting.abort();
        self.put(Input::Down(conn));
    }

    /// False once the engine has ended.
    fn put(&self, input: Input) -> bool {
        self.inbox.send(input).is_ok()
    }
}
