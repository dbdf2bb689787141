//! The listener: connections bounded in number and time.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::Desk;
use crate::answer::Answers;
use crate::feed::feed;
use crate::keys::Keys;
use crate::stall::Impatient;

/// Bytes of a head.
const HEAD_MAX: usize = 16 << 10;
/// Lines of a head.
const HEADERS_MAX: usize = 64;

/// What everybody may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections. Beyond it a new one is closed unanswered.
    pub connections: usize,
    /// Of these, most from one address: one client cannot keep the others out.
    pub connections_of_one: usize,
    /// A head, a handshake, or silence between two requests.
    pub head_within: Duration,
    /// A body.
    pub body_within: Duration,
    /// A peer that takes no byte for so long is gone.
    pub stall: Duration,
    /// An action. It goes on afterwards, but nobody waits for it any more.
    pub act_within: Duration,
    /// At most one event in this time.
    pub every: Duration,
    /// What an answer under way may still take at the end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_of_one: 64,
            head_within: Duration::from_secs(10),
            body_within: Duration::from_secs(10),
            stall: Duration::from_secs(20),
            act_within: Duration::from_secs(30),
            every: Duration::from_secs(1),
            drain: Duration::from_secs(5),
        }
    }
}

/// Serves the desk until `shutdown` completes. Streams end with it; an action that has begun is carried
/// to its end.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    keys: Keys,
    desk: Arc<dyn Desk>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_within(Limits::default(), listener, tls, keys, desk, shutdown).await
}

/// The same, within other limits.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    keys: Keys,
    desk: Arc<dyn Desk>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    listener.local_addr()?;
    let (feed, look) = feed(desk.clone(), limits.every);
    let look = tokio::spawn(look);
    let (ending, end) = watch::channel(false);
    let answers = Arc::new(Answers::new(keys, desk, feed, end.clone(), limits));
    let tls = tls.map(TlsAcceptor::from);
    let places = Places::default();
    tokio::pin!(shutdown);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or a connection that died in the queue: both pass.
                    tracing::warn!(%error, "the operators' listener: accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        let Some(place) = places.take(peer.ip(), &limits) else {
            tracing::warn!(peer = %peer.ip(), "the operators' listener: too many connections");
            continue;
        };
        let (answers, tls, end) = (answers.clone(), tls.clone(), end.clone());
        tokio::spawn(async move {
            connection(stream, tls, answers, limits, end).await;
            drop(place);
        });
    }
    drop((listener, end, answers));
    let _ = ending.send(true);
    let _ = timeout(limits.drain, ending.closed()).await;
    look.abort();
    Ok(())
}

/// Who holds a connection.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One connection's place; given back when it is dropped.
struct Place(Places, IpAddr);

impl Places {
    fn take(&self, peer: IpAddr, limits: &Limits) -> Option<Place> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = held.values().sum();
        let own = held.get(&peer).copied().unwrap_or_default();
        if all >= limits.connections || own >= limits.connections_of_one {
            return None;
        }
        held.insert(peer, own + 1);
        Some(Place(self.clone(), peer))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = held.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.1);
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    answers: Arc<Answers>,
    limits: Limits,
    end: watch::Receiver<bool>,
) {
    if stream.set_nodelay(true).is_err() {
        return; // the peer is gone already
    }
    let Some(tls) = tls else {
        return speak(stream, answers, limits, end).await;
    };
    match timeout(limits.head_within, tls.accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, answers, limits, end).await,
        failed => tracing::debug!("no TLS handshake: {:?}", failed.map(|it| it.err())),
    }
}

async fn speak<S>(stream: S, answers: Arc<Answers>, limits: Limits, mut end: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(Impatient::new(stream, limits.stall));
    let service = service_fn(|request| answers.clone().answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_MAX)
        .serve_connection(io, service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = end.wait_for(|end| *end) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
