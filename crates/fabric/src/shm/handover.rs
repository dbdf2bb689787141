//! Passing an arena's descriptor to the one life that may write to it.
//!
//! The writer connects, says [`Claim`], and gets one byte: granted, with the descriptor beside it,
//! or the reason of the refusal. A socket that says nothing is closed after a deadline; a bounded
//! number of them is served at one time, so that a stuck writer holds up neither the others nor
//! the receiver's own thread.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pages::WriterLife;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};

use crate::claim::{Claim, GRANTED, Magic, Offers, code, refusal};
use crate::places::{Place, Served};
use crate::sender::AttachError;
use crate::shm::landing::ShmLanding;

/// Time for one side to say its part.
const DEADLINE: Duration = Duration::from_secs(5);
/// Sockets served at one time.
const SERVED_MAX: usize = 16;

/// Begins every claim of this fabric.
const MAGIC: &Magic = b"cfd-fd?\x02";

/// What a claim gives.
pub(crate) type Given = (Arc<OwnedFd>, Arc<Notice>);

/// Tells a writer that its arena was dropped, so that it gives the memory up: the socket of its
/// claim stays open for as long as the arena is. It is a courtesy and no fence: nobody waits for it.
#[derive(Default)]
pub(crate) struct Notice(Mutex<Line>);

#[derive(Default)]
struct Line {
    dropped: bool,
    stream: Option<UnixStream>,
}

impl Notice {
    fn keep(&self, stream: UnixStream) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !line.dropped {
            line.stream = Some(stream);
        }
    }

    /// The arena is dropped.
    pub(crate) fn tell(&self) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        line.dropped = true;
        line.stream = None;
    }
}

/// Whether the other end of a claim's socket, which does not block, says that the arena is dropped.
pub(crate) fn is_told(mut socket: &UnixStream) -> bool {
    match socket.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

/// [`claim_and_listen`] for those who only want the descriptor.
#[cfg(test)]
pub(crate) fn claim(landing: &ShmLanding, writer: WriterLife) -> Result<OwnedFd, AttachError> {
    claim_and_listen(landing, writer).map(|(descriptor, _)| descriptor)
}

/// The writer's side: shows the token and returns the arena's descriptor, and the socket that ends
/// when the arena is dropped.
pub(crate) fn claim_and_listen(
    landing: &ShmLanding,
    writer: WriterLife,
) -> Result<(OwnedFd, UnixStream), AttachError> {
    let stream = UnixStream::connect(&landing.socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let claim = Claim {
        arena: landing.arena,
        token: landing.token,
        writer,
    };
    io::Write::write_all(&mut &stream, &claim.encode(MAGIC))?;

    let mut answer = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &stream,
        &mut [IoSliceMut::new(&mut answer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    );
    if received.map_err(io::Error::from)?.bytes != 1 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if answer[0] != GRANTED {
        return Err(refusal(answer[0]).map_or_else(
            || AttachError::Mismatch(format!("unknown answer {}", answer[0])),
            AttachError::Refused,
        ));
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let descriptor = descriptor
        .ok_or_else(|| AttachError::Mismatch("granted without a descriptor".to_owned()))?;
    stream.set_nonblocking(true)?;
    Ok((descriptor, stream))
}

/// The thread that hands descriptors over.
pub(crate) struct Desk {
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    /// Listens at `path`, which must not exist and whose directory must be private.
    pub(crate) fn open(path: &Path, offers: Offers<Given>) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let own = listener.try_clone()?;
        let thread = std::thread::Builder::new().name("fabric-handover".to_owned());
        let thread = thread.spawn(move || serve(&own, &offers))?;
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // Wakes the thread out of its accept.
        let woken = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, offers: &Offers<Given>) {
    let served = Served::default();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return, // shut down
            Err(error) => {
                tracing::warn!(%error, "cannot accept a writer");
                std::thread::sleep(Duration::from_millis(50)); // no descriptor left, say
                continue;
            }
        };
        let place = Place::take(&served, SERVED_MAX);
        let offers = offers.clone();
        let Some(place) = place else {
            offers.count_stranger();
            continue; // the writer sees its socket close
        };
        let served = std::thread::Builder::new()
            .name("fabric-claim".to_owned())
            .spawn(move || {
                let _place = place;
                if let Err(error) = answer(stream, &offers) {
                    offers.count_stranger();
                    tracing::warn!(%error, "a writer did not get its arena's descriptor");
                }
            });
        if let Err(error) = served {
            tracing::warn!(%error, "cannot serve a writer");
        }
    }
}

fn answer(stream: UnixStream, offers: &Offers<Given>) -> io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut bytes = [0; Claim::BYTES];
    (&stream).read_exact(&mut bytes)?;
    let Some(claim) = Claim::decode(&bytes, MAGIC) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a claim"));
    };
    match offers.redeem(&claim) {
        Ok((descriptor, notice)) => {
            send(&stream, GRANTED, Some(&descriptor))?;
            notice.keep(stream);
            Ok(())
        }
        Err(refusal) => send(&stream, code(refusal), None),
    }
}

fn send(stream: &UnixStream, answer: u8, descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let fds: Vec<_> = descriptor
        .iter()
        .map(|descriptor| descriptor.as_fd())
        .collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let answer = [answer];
    let parts = [IoSlice::new(&answer)];
    rustix::net::sendmsg(stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
