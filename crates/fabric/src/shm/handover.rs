//! Passing an arena's descriptor to the one life that may write to it.
//!
//! The writer connects, says [`Claim`], and gets one byte: granted, with the descriptor beside it,
//! or the reason of the refusal. One deadline stands over the whole exchange, on both sides: a socket
//! that says nothing, or says it byte by byte, is closed when it has passed. A bounded number of
//! them is served at one time, so that a stuck writer holds up neither the others nor the receiver's
//! own thread.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pages::WriterLife;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::claim::{Claim, GRANTED, Magic, Offers, code, refusal};
use crate::deadlined::{self, Deadlined, Until};
use crate::places::{Place, Served};
use crate::sender::{AttachError, Mismatch};
use crate::shm::landing::ShmLanding;

/// Time for the whole exchange, connecting included.
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
    claim_within(landing, writer, DEADLINE)
}

/// A receiver that is stopped accepts nobody, and its backlog is soon full: connecting waits, too.
fn connect(path: &Path, until: Until) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(until.left()?))?;
    let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
    connected.map_err(|error| deadlined::explain(error.into()))?;
    Ok(UnixStream::from(socket))
}

pub(crate) fn claim_within(
    landing: &ShmLanding,
    writer: WriterLife,
    deadline: Duration,
) -> Result<(OwnedFd, UnixStream), AttachError> {
    let until = Until::within(deadline);
    let stream = connect(&landing.socket, until)?;
    let mut peer = Deadlined::until(&stream, until);
    let claim = Claim {
        arena: landing.arena,
        token: landing.token,
        writer,
    };
    peer.write_all(&claim.encode(MAGIC))?;

    let mut answer = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    peer.before_read()?;
    let received = rustix::net::recvmsg(
        &stream,
        &mut [IoSliceMut::new(&mut answer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    );
    let received = received.map_err(|error| deadlined::explain(error.into()))?;
    if received.bytes != 1 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if answer[0] != GRANTED {
        return Err(refusal(answer[0]).map_or_else(
            || AttachError::Mismatch(Mismatch::Answer(answer[0])),
            AttachError::Refused,
        ));
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let descriptor = descriptor.ok_or(Mismatch::NoDescriptor)?;
    stream.set_nonblocking(true)?;
    Ok((descriptor, stream))
}

/// The thread that hands descriptors over.
pub(crate) struct DescriptorServer {
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl DescriptorServer {
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

impl Drop for DescriptorServer {
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
                if let Err(error) = answer(stream, &offers, DEADLINE) {
                    offers.count_stranger();
                    tracing::warn!(%error, "a writer did not get its arena's descriptor");
                }
            });
        if let Err(error) = served {
            tracing::warn!(%error, "cannot serve a writer");
        }
    }
}

fn answer(stream: UnixStream, offers: &Offers<Given>, deadline: Duration) -> io::Result<()> {
    let mut peer = Deadlined::new(&stream, deadline);
    let mut bytes = [0; Claim::BYTES];
    peer.read_exact(&mut bytes)?;
    peer.before_write()?; // the answer is one byte, written at once or not
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{ArenaId, Shape};
    use pages::Epoch;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(200);

    fn landing(dir: &Path) -> (UnixListener, ShmLanding) {
        let socket = dir.join("arenas.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (slots, slot_words) = (1, 1);
        let arena = ArenaId {
            owner: Epoch::new(9),
            n: 1,
        };
        let landing = ShmLanding {
            arena,
            token: [7; 32],
            shape: Shape { slots, slot_words },
            socket,
        };
        (listener, landing)
    }

    const WRITER: WriterLife = WriterLife {
        epoch: Epoch::new(1),
        rank: 0,
    };

    fn is_late<T>(ended: Result<T, AttachError>) -> bool {
        matches!(ended, Err(AttachError::Io(error)) if error.kind() == io::ErrorKind::TimedOut)
    }

    /// A stopped receiver: its kernel takes connections until the backlog is full, then nobody gets
    /// through. Neither wait is for ever.
    #[test]
    fn a_receiver_that_accepts_nobody_costs_a_writer_the_deadline_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, landing) = landing(dir.path());
        rustix::net::listen(&listener, 0).unwrap();
        // The first one is taken by the kernel and waits for the answer, the next for the backlog.
        for _ in 0..3 {
            assert!(is_late(claim_within(&landing, WRITER, SHORT)));
        }
    }

    /// One byte a read kept its place for as long as it had bytes.
    #[test]
    fn a_writer_that_says_its_claim_byte_by_byte_gets_one_deadline() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (say, said) = std::sync::mpsc::channel::<()>();
        let drip = std::thread::spawn(move || {
            let pause = || {
                said.recv_timeout(SHORT / 4)
                    .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
            };
            while far.write_all(&[7]).is_ok() && pause() {}
        });
        let begun = Instant::now();
        let ended = answer(near, &Offers::default(), SHORT).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut, "{ended}");
        assert!(begun.elapsed() >= SHORT, "not before its time either");
        drop(say);
        drip.join().unwrap();
    }
}
