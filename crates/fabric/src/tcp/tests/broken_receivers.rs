//! Receivers that read and do not acknowledge, lie, or go away: nothing but an acknowledgement
//! says that something has landed.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Completions, channel};
use std::time::Duration;

use rustls::{ServerConnection, StreamOwned};

use super::{Cluster, PATIENCE, SHAPE, WHOLE, WRITER, anywhere, arena};
use crate::claim::{Claim, GRANTED};
use crate::tcp::landing::TcpLanding;
use crate::tcp::wire::{Answer, Header};
use crate::tcp::{DataDeadlines, TcpSender};
use crate::{
    AttachError, Completion, Endpoint, Landing, Sender, SlotWrite, SubmissionId, SubmitError,
    WriteEnding,
};
use wire::control::Role;

/// What the test's own receiver speaks through.
type Line = StreamOwned<ServerConnection, TcpStream>;

/// An endpoint, what it is told, and the receiver's side of it.
type Attached = (Box<dyn Endpoint>, Completions<Completion>, Line);

/// A listener with decode's certificate whose bytes the test writes itself.
struct Fake {
    cluster: Cluster,
    listener: TcpListener,
}

impl Fake {
    fn new() -> Self {
        let (cluster, listener) = (Cluster::new(), TcpListener::bind(anywhere()).unwrap());
        Self { cluster, listener }
    }

    fn landing(&self) -> Landing {
        let landing = TcpLanding {
            arena: arena(1),
            token: [3; 32],
            shape: SHAPE,
            at: self.at(),
        };
        landing.encode().unwrap()
    }

    fn at(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Accepts, takes the claim, and answers with these bytes.
    fn accept(&self, answer: &[u8]) -> Line {
        let (socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let tls = self.cluster.listen(anywhere()).tls;
        let mut line = StreamOwned::new(ServerConnection::new(tls).unwrap(), socket);
        line.read_exact(&mut [0; Claim::BYTES]).unwrap();
        line.write_all(answer).unwrap();
        line.flush().unwrap();
        line
    }

    /// An endpoint that hears `answer`, and the receiver's side of it.
    fn attach(&self, answer: &[u8], progress: Duration) -> Result<Attached, AttachError> {
        let deadlines = DataDeadlines {
            progress,
            ..DataDeadlines::default()
        };
        let tls = self.cluster.dialler(Role::Prefill);
        let sender = TcpSender::new(WRITER, tls, deadlines);
        let (told, completions) = channel();
        let told = Box::new(move |completion| told.send(completion).unwrap());
        std::thread::scope(|scope| {
            let line = scope.spawn(|| self.accept(answer));
            let endpoint = sender.attach(&self.landing(), told)?;
            Ok((endpoint, completions, line.join().unwrap()))
        })
    }

    fn granted(&self, progress: Duration) -> Attached {
        let granted = Answer::encode(GRANTED, arena(1), WRITER);
        self.attach(&granted, progress).unwrap()
    }
}

fn write(slot: u32) -> SlotWrite {
    SlotWrite {
        source: Arc::new(vec![5; SHAPE.slot_words]),
        runs: Arc::new([WHOLE]),
        slot,
    }
}

/// A submission of one write, as it arrives.
const ARRIVES: usize = 2 * Header::BYTES + 2 * SHAPE.slot_words;

fn expect(completions: &Completions<Completion>, id: u64, ending: WriteEnding) {
    let completion = completions.recv_timeout(PATIENCE).unwrap();
    assert_eq!((completion.id.0, completion.ending), (id, ending));
}

#[test]
fn that_the_receiver_has_read_everything_is_not_a_completion() {
    let fake = Fake::new();
    let (mut endpoint, completions, mut line) = fake.granted(PATIENCE);
    for id in [1, 2, 3] {
        endpoint.submit(SubmissionId(id), vec![write(0)]).unwrap();
    }
    line.read_exact(&mut [0; 3 * ARRIVES]).unwrap();
    assert!(completions.try_recv().is_err(), "nothing was acknowledged");
    line.write_all(&1u64.to_le_bytes()).unwrap();
    line.flush().unwrap();
    expect(&completions, 1, WriteEnding::Landed);
    // Half an acknowledgement is none.
    line.write_all(&2u64.to_le_bytes()[..4]).unwrap();
    line.flush().unwrap();
    drop(line);
    expect(&completions, 2, WriteEnding::Failed);
    expect(&completions, 3, WriteEnding::Failed);
    let again = endpoint.submit(SubmissionId(4), vec![write(0)]);
    assert_eq!(again, Err(SubmitError::EndpointFailed));
    let unsettled = [SubmissionId(2), SubmissionId(3)];
    assert_eq!(endpoint.destroy().unsettled(), unsettled);
}

#[test]
fn a_receiver_that_hangs_is_given_up_after_the_deadline() {
    let fake = Fake::new();
    let (mut endpoint, completions, mut line) = fake.granted(Duration::from_millis(200));
    endpoint.submit(SubmissionId(1), vec![write(0)]).unwrap();
    line.read_exact(&mut [0; ARRIVES]).unwrap();
    // It neither acknowledges nor goes away.
    expect(&completions, 1, WriteEnding::Failed);
    assert_eq!(endpoint.destroy().unsettled(), [SubmissionId(1)]);
    drop(line);
}

#[test]
fn acknowledging_what_was_not_sent_fails_everything() {
    for lie in [0u64, 2, 7, u64::MAX] {
        let fake = Fake::new();
        let (mut endpoint, completions, mut line) = fake.granted(PATIENCE);
        endpoint.submit(SubmissionId(1), vec![write(0)]).unwrap();
        line.read_exact(&mut [0; ARRIVES]).unwrap();
        line.write_all(&lie.to_le_bytes()).unwrap();
        line.flush().unwrap();
        expect(&completions, 1, WriteEnding::Failed);
        drop(endpoint);
    }
}

/// More than sockets hold, so that the end of it cannot have been sent before it is read.
fn long_batch() -> Vec<SlotWrite> {
    let words = Arc::new(vec![5u16; SHAPE.slot_words]);
    let one = |n| SlotWrite {
        source: words.clone(),
        runs: Arc::new([WHOLE]),
        slot: n % SHAPE.slots,
    };
    (0..16_000).map(one).collect() // 32 MB
}

#[test]
fn acknowledging_before_the_end_fails_everything() {
    for before in [0, 1] {
        let fake = Fake::new();
        let (mut endpoint, completions, mut line) = fake.granted(PATIENCE);
        for id in 1..=before {
            endpoint.submit(SubmissionId(id), vec![write(0)]).unwrap();
            line.read_exact(&mut [0; ARRIVES]).unwrap();
        }
        let long = before + 1;
        endpoint.submit(SubmissionId(long), long_batch()).unwrap();
        line.read_exact(&mut [0; ARRIVES]).unwrap();
        for id in 1..=long {
            line.write_all(&id.to_le_bytes()).unwrap();
        }
        line.flush().unwrap();
        for id in 1..=before {
            expect(&completions, id, WriteEnding::Landed);
        }
        expect(&completions, long, WriteEnding::Failed);
        assert_eq!(endpoint.destroy().unsettled(), [SubmissionId(long)]);
    }
}

#[test]
fn a_connection_that_is_cut_while_idle_fails_the_endpoint() {
    let fake = Fake::new();
    let (mut endpoint, completions, line) = fake.granted(PATIENCE);
    drop(line);
    // Whether the cut is noticed before or after: it is not landed, and no hang.
    match endpoint.submit(SubmissionId(1), vec![write(0)]) {
        Ok(()) => expect(&completions, 1, WriteEnding::Failed),
        Err(error) => assert_eq!(error, SubmitError::EndpointFailed),
    }
}

#[test]
fn an_answer_for_another_life_or_arena_is_a_mismatch() {
    let fake = Fake::new();
    let other = pages::WriterLife { rank: 1, ..WRITER };
    for answer in [
        Answer::encode(GRANTED, arena(2), WRITER),
        Answer::encode(GRANTED, arena(1), other),
        Answer::encode(99, arena(1), WRITER),
    ] {
        let attached = fake.attach(&answer, PATIENCE);
        let error = attached.err().expect("refused");
        assert!(matches!(error, AttachError::Mismatch(_)), "{error}");
    }
}
