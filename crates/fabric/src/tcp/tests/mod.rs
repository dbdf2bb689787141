//! What only TCP has: strangers, stale lives, writers and receivers that break the protocol,
//! sockets that outlive their owner. The contract of a fabric is in `tests/tcp.rs`.

mod broken_receivers;
mod broken_writers;
mod strangers;

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pages::{Config, Epoch, Pool, WriterLife};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use wire::control::certs::{Validity, new_cluster};
use wire::control::{Identity, Role};

use super::landing::TcpLanding;
use super::wire::{Answer, CLAIM};
use super::{DataDeadlines, Listen, TcpReceiver, TcpSender};
use crate::claim::{Claim, GRANTED, refusal};
use crate::{ArenaId, Landing, Limits, Receiver, Refusal, Shape, WordRun};

const SHAPE: Shape = Shape {
    slots: 3,
    slot_words: 1000,
};
const WHOLE: WordRun = WordRun {
    offset: 0,
    words: SHAPE.slot_words,
};
const WRITER: WriterLife = WriterLife {
    epoch: Epoch::new(u128::MAX / 255),
    rank: 0,
};
const OWNER: Epoch = Epoch::new(9 * (u128::MAX / 255));
/// Only a broken test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn arena(n: u64) -> ArenaId {
    ArenaId { owner: OWNER, n }
}

/// Certificates of one cluster.
struct Cluster {
    certs: PathBuf,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certs = dir.path().join("certs");
        new_cluster(&certs, Validity::days(1)).unwrap();
        Self { certs, _dir: dir }
    }

    fn identity(&self, role: Role) -> Identity {
        Identity::load(&self.certs, role).unwrap()
    }

    /// How a process of this role dials a data port.
    fn dialler(&self, role: Role) -> Arc<ClientConfig> {
        self.identity(role).data_dialler(&[Role::Decode]).unwrap()
    }

    fn listen(&self, at: SocketAddr) -> Listen {
        let tls = self.identity(Role::Decode);
        let tls = tls.data_listener(&[Role::Prefill]).unwrap();
        Listen {
            at,
            advertised: None,
            tls,
        }
    }

    fn receiver(&self, at: SocketAddr) -> TcpReceiver {
        let (_, mint) = Pool::new(Config {
            pages: 1,
            page_size: 16,
            scrub: false,
        });
        TcpReceiver::new(self.listen(at), mint, Limits { bytes_max: 1 << 20 }).unwrap()
    }

    fn sender(&self, life: WriterLife) -> TcpSender {
        TcpSender::new(life, self.dialler(Role::Prefill), DataDeadlines::default())
    }
}

/// A free port of this host.
fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A receiver with one arena for [`WRITER`].
struct World {
    cluster: Cluster,
    receiver: TcpReceiver,
    landing: Landing,
}

impl World {
    fn new() -> Self {
        let cluster = Cluster::new();
        let mut receiver = cluster.receiver(anywhere());
        let landing = receiver.open_arena(arena(1), WRITER, SHAPE).unwrap();
        Self {
            cluster,
            receiver,
            landing,
        }
    }

    /// Connects as [`WRITER`], and says what the test wants from there on.
    fn raw_writer(&self) -> Raw {
        let landing = TcpLanding::decode(&self.landing).unwrap();
        let mut raw = Raw::dial(landing.at, self.cluster.dialler(Role::Prefill));
        let answer = raw.claim(&landing, WRITER);
        assert_eq!(answer, Ok(()));
        raw
    }

    /// The words of a slot.
    fn slot(&self, slot: u32) -> Vec<u16> {
        let reader = self.receiver.reader(arena(1)).unwrap();
        let mut words = vec![7; SHAPE.slot_words];
        reader.copy_out(slot, &[WHOLE], &mut words).unwrap();
        words
    }
}

/// A connection with certificates whose bytes the test writes itself.
struct Raw(StreamOwned<ClientConnection, TcpStream>);

impl Raw {
    fn dial(at: SocketAddr, tls: Arc<ClientConfig>) -> Self {
        let socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::IpAddress(at.ip().into());
        let tls = ClientConnection::new(tls, name).unwrap();
        Self(StreamOwned::new(tls, socket))
    }

    fn claim(&mut self, landing: &TcpLanding, writer: WriterLife) -> Result<(), Refusal> {
        let claim = Claim {
            arena: landing.arena,
            token: landing.token,
            writer,
        };
        self.say(&claim.encode(CLAIM));
        let mut answer = [0; Answer::BYTES];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer, Answer::encode(answer[0], landing.arena, writer));
        match answer[0] {
            GRANTED => Ok(()),
            code => Err(refusal(code).expect("known")),
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        self.0.flush().unwrap();
    }

    /// Everything that is still said, once the peer has ended the connection.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let ended = self.0.read_to_end(&mut rest);
        if let Err(error) = ended {
            let kind = error.kind();
            assert_ne!(kind, std::io::ErrorKind::WouldBlock, "it was not ended");
        }
        rest
    }
}

#[test]
fn an_address_that_nobody_could_reach_is_not_told() {
    let cluster = Cluster::new();
    let everywhere = ([0, 0, 0, 0], 0).into();
    let (_, mint) = Pool::new(Config {
        pages: 1,
        page_size: 16,
        scrub: false,
    });
    let limits = Limits { bytes_max: 1 << 20 };
    let error = TcpReceiver::new(cluster.listen(everywhere), mint.lend(), limits);
    assert!(error.err().unwrap().to_string().contains("no address"));
    let listen = Listen {
        advertised: Some(([192, 0, 2, 7], 0).into()),
        ..cluster.listen(everywhere)
    };
    let receiver = TcpReceiver::new(listen, mint, limits).unwrap();
    assert_eq!(receiver.addr().ip().to_string(), "192.0.2.7");
    assert_ne!(receiver.addr().port(), 0, "the port that was bound");
}
