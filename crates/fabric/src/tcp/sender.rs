//! The writer's side of TCP: reaching an arena.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use pages::WriterLife;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::arena::{BadLanding, Landing};
use crate::claim::{Claim, GRANTED, refusal};
use crate::deadlined::Deadlined;
use crate::layout::Layout;
use crate::mover::{MovedEndpoint, Mover};
use crate::sender::{AttachError, Endpoint, Mismatch, OnCompletion, Sender};
use crate::tcp::flow::{self, Line, Waker};
use crate::tcp::landing::TcpLanding;
use crate::tcp::socket;
use crate::tcp::wire::{Answer, CLAIM};

/// How long a writer waits for a receiver. A deadline ends an endpoint; it says nothing about what
/// may still land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataDeadlines {
    /// For connecting; and as long again for TLS and the answer to the claim together.
    pub attach: Duration,
    /// For anything to move while a submission is under way.
    pub progress: Duration,
}

impl Default for DataDeadlines {
    /// Five seconds to attach, ten without progress.
    fn default() -> Self {
        Self {
            attach: Duration::from_secs(5),
            progress: Duration::from_secs(10),
        }
    }
}

/// Attaches to arenas as one life of one writer.
#[derive(Clone)]
pub struct TcpSender {
    life: WriterLife,
    tls: Arc<ClientConfig>,
    deadlines: DataDeadlines,
}

impl TcpSender {
    /// A sender that shows itself as `life`, with the certificate that `tls` has; which receivers
    /// are believed is up to `tls` as well. It must not look at names: receivers are addresses.
    pub fn new(life: WriterLife, tls: Arc<ClientConfig>, deadlines: DataDeadlines) -> Self {
        Self {
            life,
            tls,
            deadlines,
        }
    }

    /// Whether a landing is one of this fabric.
    pub fn knows(landing: &Landing) -> bool {
        TcpLanding::is_one(landing)
    }

    fn connect(&self, landing: &TcpLanding) -> Result<(ClientConnection, TcpStream), AttachError> {
        let socket = TcpStream::connect_timeout(&landing.at, self.deadlines.attach)?;
        socket::prepare(&socket)?;
        let name = ServerName::IpAddress(landing.at.ip().into());
        let tls = ClientConnection::new(self.tls.clone(), name);
        let mut tls = tls.map_err(io::Error::other)?;
        let claim = Claim {
            arena: landing.arena,
            token: landing.token,
            writer: self.life,
        };
        let mut peer = Deadlined::new(&socket, self.deadlines.attach);
        // The certificate first: nobody else gets to see the claim.
        while tls.is_handshaking() {
            tls.complete_io(&mut peer)?;
        }
        let mut stream = rustls::Stream::new(&mut tls, &mut peer);
        stream.write_all(&claim.encode(CLAIM))?;
        stream.flush()?;
        let mut answer = [0; Answer::BYTES];
        stream.read_exact(&mut answer)?;
        if answer != Answer::encode(answer[0], landing.arena, self.life) {
            return Err(Mismatch::OtherLife.into());
        }
        match (answer[0], refusal(answer[0])) {
            (GRANTED, _) => Ok((tls, socket)),
            (_, Some(refusal)) => Err(AttachError::Refused(refusal)),
            (code, None) => Err(Mismatch::Answer(code).into()),
        }
    }
}

impl Sender for TcpSender {
    fn attach(
        &self,
        landing: &Landing,
        on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        let landing = TcpLanding::decode(landing)?;
        let (arena, shape) = (landing.arena, landing.shape);
        if Layout::new(shape).is_none() || u32::try_from(shape.slot_words).is_err() {
            return Err(BadLanding::Shape.into());
        }
        let (mut tls, socket) = self.connect(&landing)?;
        tls.set_buffer_limit(None); // what is staged at one time is the limit
        socket.set_nonblocking(true)?;
        let waker = Waker::new()?;
        let line = Line {
            tls,
            socket,
            waker: waker.clone(),
            progress: self.deadlines.progress,
        };
        let wake = Box::new(move || waker.wake());
        let mover = Mover::start(arena, on_completion, wake, move |jobs, stop, teller| {
            flow::carry_out(line, arena, &jobs, stop, teller)
        })?;
        Ok(Box::new(MovedEndpoint::new(arena, shape, mover)))
    }
}
