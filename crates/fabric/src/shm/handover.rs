//! Passing an arena's descriptor to the one life that may write to it.
//!
//! The writer connects, says [`Claim`], and gets one byte: granted, with the descriptor beside it,
//! or the reason of the refusal. A socket that says nothing is closed after a deadline; a bounded
//! number of them is served at one time, so that a stuck writer holds up neither the others nor
//! the receiver's own thread.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pages::{Epoch, WriterLife};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};

use crate::arena::ArenaId;
use crate::sender::{AttachError, Refusal};
use crate::shm::landing::{ShmLanding, Token, take};

/// Time for one side to say its part.
const DEADLINE: Duration = Duration::from_secs(5);
/// Sockets served at one time.
const SERVED_MAX: usize = 16;

const CLAIM_BYTES: usize = 8 + 16 + 8 + 32 + 16 + 2;
const CLAIM_MAGIC: &[u8; 8] = b"cfd-fd?\x01";

/// What a writer says to get a descriptor.
struct Claim {
    arena: ArenaId,
    token: Token,
    writer: WriterLife,
}

impl Claim {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = CLAIM_MAGIC.to_vec();
        bytes.extend(self.arena.owner.bits().to_le_bytes());
        bytes.extend(self.arena.n.to_le_bytes());
        bytes.extend(self.token);
        bytes.extend(self.writer.epoch.bits().to_le_bytes());
        bytes.extend(self.writer.rank.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; CLAIM_BYTES]) -> Option<Self> {
        let mut rest = &bytes[..];
        if take::<8>(&mut rest).ok()? != *CLAIM_MAGIC {
            return None;
        }
        let owner = Epoch::new(u128::from_le_bytes(take(&mut rest).ok()?));
        let n = u64::from_le_bytes(take(&mut rest).ok()?);
        let token = take(&mut rest).ok()?;
        let epoch = Epoch::new(u128::from_le_bytes(take(&mut rest).ok()?));
        let rank = u16::from_le_bytes(take(&mut rest).ok()?);
        Some(Self {
            arena: ArenaId { owner, n },
            token,
            writer: WriterLife { epoch, rank },
        })
    }
}

const GRANTED: u8 = 0;

fn code(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::NotOpen => 1,
        Refusal::OtherLife => 2,
        Refusal::WrongToken => 3,
        Refusal::Used => 4,
    }
}

fn refusal(code: u8) -> Option<Refusal> {
    [
        Refusal::NotOpen,
        Refusal::OtherLife,
        Refusal::WrongToken,
        Refusal::Used,
    ]
    .into_iter()
    .find(|&known| self::code(known) == code)
}

/// The writer's side: shows the token and returns the arena's descriptor.
pub(crate) fn claim(landing: &ShmLanding, writer: WriterLife) -> Result<OwnedFd, AttachError> {
    let stream = UnixStream::connect(&landing.socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let claim = Claim {
        arena: landing.arena,
        token: landing.token,
        writer,
    };
    io::Write::write_all(&mut &stream, &claim.encode())?;

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
    descriptor.ok_or_else(|| AttachError::Mismatch("granted without a descriptor".to_owned()))
}

/// An arena whose descriptor may be claimed once.
struct Offer {
    writer: WriterLife,
    token: Token,
    /// Taken by the claim; a second one finds nothing.
    descriptor: Option<Arc<OwnedFd>>,
}

/// The arenas that may be claimed, shared by the receiver and its desk.
#[derive(Clone, Default)]
pub(crate) struct Offers(Arc<Mutex<BTreeMap<ArenaId, Offer>>>);

impl Offers {
    pub(crate) fn put(
        &self,
        arena: ArenaId,
        writer: WriterLife,
        token: Token,
        descriptor: Arc<OwnedFd>,
    ) {
        self.lock().insert(
            arena,
            Offer {
                writer,
                token,
                descriptor: Some(descriptor),
            },
        );
    }

    /// From here on the arena cannot be claimed.
    pub(crate) fn withdraw(&self, arena: ArenaId) {
        self.lock().remove(&arena);
    }

    fn redeem(&self, claim: &Claim) -> Result<Arc<OwnedFd>, Refusal> {
        let mut offers = self.lock();
        let offer = offers.get_mut(&claim.arena).ok_or(Refusal::NotOpen)?;
        if !equal(&offer.token, &claim.token) {
            return Err(Refusal::WrongToken);
        }
        // A landing that strayed to another life stays good for the one it is for.
        if offer.writer != claim.writer {
            return Err(Refusal::OtherLife);
        }
        offer.descriptor.take().ok_or(Refusal::Used)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ArenaId, Offer>> {
        // No code that can panic runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares without telling by its duration where the first difference is.
fn equal(a: &Token, b: &Token) -> bool {
    a.iter()
        .zip(b)
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}

/// The thread that hands descriptors over.
pub(crate) struct Desk {
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    /// Listens at `path`, which must not exist and whose directory must be private.
    pub(crate) fn open(path: &Path, offers: Offers) -> io::Result<Self> {
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

fn serve(listener: &UnixListener, offers: &Offers) {
    let served = Arc::new(AtomicUsize::new(0));
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
        let place = Place::take(&served);
        let offers = offers.clone();
        let Some(place) = place else { continue }; // the writer sees its socket close
        let served = std::thread::Builder::new()
            .name("fabric-claim".to_owned())
            .spawn(move || {
                let _place = place;
                if let Err(error) = answer(&stream, &offers) {
                    tracing::warn!(%error, "a writer did not get its arena's descriptor");
                }
            });
        if let Err(error) = served {
            tracing::warn!(%error, "cannot serve a writer");
        }
    }
}

/// One of the bounded number of places at the desk.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(served: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(served.clone());
        (served.fetch_add(1, Ordering::Relaxed) < SERVED_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(stream: &UnixStream, offers: &Offers) -> io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut bytes = [0; CLAIM_BYTES];
    (&*stream).read_exact(&mut bytes)?;
    let Some(claim) = Claim::decode(&bytes) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a claim"));
    };
    match offers.redeem(&claim) {
        Ok(descriptor) => send(stream, GRANTED, Some(&descriptor)),
        Err(refusal) => {
            tracing::warn!(arena = %claim.arena, writer = ?claim.writer, %refusal, "claim refused");
            send(stream, code(refusal), None)
        }
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
