//! Accepting connections, and ending: bounded, timed, and drained.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::config::Config;
use super::heads::Heads;
use super::router::{Door, Shared};
use super::stall::StallGuard;
use super::text::Text;
use crate::engine::Engine;

/// How long a request that missed its drain deadline has to hear so.
const LAST_WORD: Duration = Duration::from_secs(2);
/// Beyond this share of `max_connections`, further connections are closed unanswered; up to it
/// they are told 503.
const LOBBY_SHARE: usize = 8;
/// hyper refuses larger heads itself, with a bare 431; ours has an envelope.
const HEAD_SLACK: usize = 48 << 10;
/// Most header lines of a request.
const MAX_HEADERS: usize = 100;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Running,
    /// Nothing new is taken; what runs may finish.
    Draining,
    /// The drain deadline has passed: what still runs fails now.
    Ending,
}

/// Serves until `shutdown` completes, then drains: running requests have `config.drain` to finish,
/// then they fail with `draining`.
///
/// # Errors
/// The listener failed for good.
pub async fn serve(
    listener: TcpListener,
    config: Config,
    engine: Arc<dyn Engine>,
    text: Arc<dyn Text>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (phase, watching) = watch::channel(Phase::Running);
    let drain = config.drain;
    let places = Arc::new(Semaphore::new(config.max_connections));
    let lobby = Arc::new(Semaphore::new(config.max_connections.div_ceil(LOBBY_SHARE)));
    let shared = Shared::new(config, engine, text, watching);
    tokio::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors or a connection that died in the queue: both pass.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        let (permit, door) = match places.clone().try_acquire_owned() {
            Ok(permit) => (permit, Door::Open),
            Err(_) => match lobby.clone().try_acquire_owned() {
                Ok(permit) => (permit, Door::Full),
                Err(_) => continue,
            },
        };
        tokio::spawn(connection(stream, shared.clone(), door, permit));
    }
    drop(listener);
    let _ = phase.send(Phase::Draining);
    // The connections hold receivers of `phase`; when the last is gone, nobody is served.
    drop(shared);
    if tokio::time::timeout(drain, phase.closed()).await.is_err() {
        let _ = phase.send(Phase::Ending);
        let _ = tokio::time::timeout(LAST_WORD, phase.closed()).await;
    }
    Ok(())
}

async fn connection(
    stream: TcpStream,
    shared: Arc<Shared>,
    door: Door,
    _permit: OwnedSemaphorePermit,
) {
    // Tokens are small and must leave at once.
    if stream.set_nodelay(true).is_err() {
        return; // the peer is gone already
    }
    let _open = shared.count_connection();
    let Some(tls) = &shared.config.tls else {
        return speak(stream, &shared, door).await;
    };
    let mut phase = shared.phase.clone();
    let shaken = tokio::select! {
        shaken = timeout(shared.config.header_timeout, tls.accept(stream)) => shaken,
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
    };
    match shaken {
        Ok(Ok(stream)) => speak(stream, &shared, door).await,
        failed => {
            shared.metrics.handshakes.inc();
            tracing::debug!("no TLS handshake: {:?}", failed.map(|it| it.err()));
        }
    }
}

async fn speak<S>(stream: S, shared: &Arc<Shared>, door: Door)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = &shared.config;
    let heads = Arc::new(Heads::new(config.max_header_bytes + HEAD_SLACK));
    let guarded = StallGuard::new(stream, config.write_stall, heads.clone());
    let io = TokioIo::new(guarded);
    let service = service_fn(|request| shared.clone().answer(request, heads.next(), door));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_header_size(config.max_header_bytes + HEAD_SLACK)
        .keep_alive(door == Door::Open)
        .serve_connection(io, service);
    let mut phase = shared.phase.clone();
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {}
    }
    connection.as_mut().graceful_shutdown();
    // Errors here are the client's leaving, a head that timed out or a stalled write: whoever
    // answered the request has logged it.
    let _ = connection.await;
}
