//! The data port: who connects, proves a certificate, and claims an arena.
//!
//! A peer that says nothing, or says it slowly, is dropped after a deadline over the whole of its
//! handshake; a bounded number of peers is served at one time, and the receiver's own thread by
//! nobody of them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::Shutdown;
use rustls::{ServerConfig, ServerConnection};

use crate::claim::{Claim, Offers, code};
use crate::deadlined::Deadlined;
use crate::places::{Place, Served};
use crate::sender::Refusal;
use crate::tcp::apply::Site;
use crate::tcp::socket;
use crate::tcp::wire::{Answer, CLAIM};

/// Time for TLS and the claim together.
const DEADLINE: Duration = Duration::from_secs(5);
/// Peers served at one time; above that they are dropped at once.
const SERVED_MAX: usize = 64;
/// Pause after the system refused to accept (no descriptor left, say), instead of a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens until it is dropped.
pub(crate) struct AttachListener {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

/// What the threads of a listener share.
#[derive(Clone)]
struct Work {
    tls: Arc<ServerConfig>,
    offers: Offers<Arc<Site>>,
    served: Served,
}

impl AttachListener {
    pub(crate) fn open(
        at: SocketAddr,
        tls: Arc<ServerConfig>,
        offers: Offers<Arc<Site>>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        let own = listener.try_clone()?;
        let served = Arc::default();
        let work = Work {
            tls,
            offers,
            served,
        };
        let thread = std::thread::Builder::new().name("fabric-data".to_owned());
        let thread = thread.spawn(move || serve(&own, &work))?;
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }

    /// The address as bound, with the port that the system chose.
    pub(crate) fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for AttachListener {
    fn drop(&mut self) {
        // Wakes the thread out of its accept.
        let woken = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, work: &Work) {
    loop {
        let (socket, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return, // shut down
            Err(error) => {
                tracing::warn!(%error, "cannot accept a data connection");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let Some(place) = Place::take(&work.served, SERVED_MAX) else {
            work.offers.count_stranger();
            continue; // it sees its socket close
        };
        let work = work.clone();
        let thread = std::thread::Builder::new().name("fabric-claim".to_owned());
        let served = thread.spawn(move || {
            let _place = place;
            if let Err(error) = work.answer(socket) {
                work.offers.count_stranger();
                tracing::warn!(%from, %error, "refused a data connection");
            }
        });
        if let Err(error) = served {
            tracing::warn!(%from, %error, "cannot serve a data connection");
        }
    }
}

impl Work {
    /// An error is about somebody who made no claim.
    fn answer(&self, socket: TcpStream) -> io::Result<()> {
        socket::prepare(&socket)?;
        let mut tls = ServerConnection::new(self.tls.clone()).map_err(io::Error::other)?;
        let mut peer = Deadlined::new(&socket, DEADLINE);
        let mut bytes = [0; Claim::BYTES];
        rustls::Stream::new(&mut tls, &mut peer).read_exact(&mut bytes)?;
        // rustls lets a peer that offers no protocol at all pass.
        if tls.alpn_protocol() != self.tls.alpn_protocols.first().map(Vec::as_slice) {
            return Err(io::Error::other("no agreement on the data protocol"));
        }
        let claim = Claim::decode(&bytes, CLAIM);
        let claim = claim.ok_or_else(|| io::Error::other("not a claim"))?;
        let (mut tls, socket, refusal) = match self.offers.redeem(&claim) {
            Err(refusal) => (tls, socket, refusal),
            // The task answers: what it grants is what it applies.
            Ok(site) => match site.begin(tls, socket)? {
                Ok(()) => return Ok(()),
                Err(late) => {
                    self.offers.count(late.2);
                    late
                }
            },
        };
        self.refuse(&mut tls, &socket, &claim, refusal);
        Ok(())
    }

    fn refuse(
        &self,
        tls: &mut ServerConnection,
        socket: &TcpStream,
        claim: &Claim,
        refusal: Refusal,
    ) {
        let answer = Answer::encode(code(refusal), claim.arena, claim.writer);
        let mut peer = Deadlined::new(socket, DEADLINE);
        let mut stream = rustls::Stream::new(tls, &mut peer);
        let said = stream.write_all(&answer).and_then(|()| stream.flush());
        if let Err(error) = said {
            tracing::debug!(%error, "a writer did not hear that it was refused");
        }
    }
}
