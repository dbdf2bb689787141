//! The receiver's side of TCP.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use pages::{FenceMint, WriterLife};
use rustls::ServerConfig;

use crate::arena::{ArenaId, Landing, Shape};
use crate::arenas::{Arenas, Limits};
use crate::claim::{Offers, draw_token};
use crate::map::WriteMap;
use crate::receiver::{FenceError, Fenced, OpenError, Reader, Receiver, Refusals};
use crate::tcp::apply::Site;
use crate::tcp::attach_listener::AttachListener;
use crate::tcp::landing::TcpLanding;

/// Where a receiver is reached, and by whom.
#[derive(Clone)]
pub struct Listen {
    /// The socket that it binds; port 0 asks the system for a free one.
    pub at: SocketAddr,
    /// The address that writers are told; without one, that which was bound. Its port 0 stands for
    /// the port that was bound.
    pub advertised: Option<SocketAddr>,
    /// TLS with a certificate of this side's own that asks for one of the writer.
    pub tls: Arc<ServerConfig>,
}

/// Owns landing arenas that are written over TCP.
pub struct TcpReceiver {
    at: SocketAddr,
    arenas: Arenas,
    offers: Offers<Arc<Site>>,
    sites: BTreeMap<ArenaId, Arc<Site>>,
    /// None while it is dropped.
    listener: Option<AttachListener>,
}

impl TcpReceiver {
    /// Binds the data port and begins to answer writers.
    ///
    /// The mint is the capability to prove fences; the receiver is the only one who uses it.
    ///
    /// # Errors
    /// The socket cannot be bound, or nobody could reach it at the address that would be told.
    pub fn new(listen: Listen, mint: FenceMint, limits: Limits) -> io::Result<Self> {
        let offers = Offers::default();
        let listener = AttachListener::open(listen.at, listen.tls, offers.clone())?;
        let bound = listener.addr()?;
        let mut at = listen.advertised.unwrap_or(bound);
        if at.port() == 0 {
            at.set_port(bound.port());
        }
        if at.ip().is_unspecified() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{at} is no address that a writer could reach: name the one to be told"),
            ));
        }
        Ok(Self {
            at,
            arenas: Arenas::new(mint, limits),
            offers,
            sites: BTreeMap::new(),
            listener: Some(listener),
        })
    }

    /// The address that writers are told.
    pub fn addr(&self) -> SocketAddr {
        self.at
    }
}

impl Receiver for TcpReceiver {
    fn open_arena(
        &mut self,
        arena: ArenaId,
        writer: WriterLife,
        shape: Shape,
    ) -> Result<Landing, OpenError> {
        if u32::try_from(shape.slot_words).is_err() {
            return Err(OpenError::Shape(shape)); // offsets travel as 32 bits
        }
        let token = draw_token()?;
        let landing = TcpLanding {
            arena,
            token,
            shape,
            at: self.at,
        };
        let landing = landing.encode().expect("an address is short");
        let memory = self.arenas.open(arena, writer, shape)?;
        let layout = memory.layout();
        let map = WriteMap::new(memory.descriptor().as_fd(), layout.len());
        let map = match map {
            Ok(map) => map,
            Err(error) => {
                // Nobody has heard of it: what is fenced here was never open for anybody.
                let _ = self.arenas.fence(arena);
                return Err(error.into());
            }
        };
        let site = Arc::new(Site::new(arena, writer, layout, map));
        self.sites.insert(arena, site.clone());
        self.offers.put(arena, writer, token, site);
        Ok(landing)
    }

    fn reader(&self, arena: ArenaId) -> Result<Arc<dyn Reader>, FenceError> {
        self.arenas.reader(arena)
    }

    fn fence(&mut self, arena: ArenaId) -> Result<Fenced, FenceError> {
        // First nobody can begin to write, then nobody writes, then nobody reads.
        self.offers.withdraw(arena);
        if let Some(site) = self.sites.remove(&arena) {
            site.close();
        }
        self.arenas.fence(arena)
    }

    fn arenas(&self) -> Vec<ArenaId> {
        self.arenas.ids()
    }

    fn lingering(&mut self) -> (usize, u64) {
        self.arenas.lingering()
    }

    fn is_given_back(&mut self, arena: ArenaId) -> bool {
        self.arenas.is_given_back(arena)
    }

    fn refusals(&self) -> Refusals {
        self.offers.refusals()
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        drop(self.listener.take());
        for (arena, site) in std::mem::take(&mut self.sites) {
            self.offers.withdraw(arena);
            site.close();
        }
    }
}
