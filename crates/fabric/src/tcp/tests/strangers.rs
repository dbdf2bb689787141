//! Who has no business at the data port gets nothing, and is counted.

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;

use super::{Cluster, OWNER, PATIENCE, Raw, SHAPE, WRITER, World, anywhere, arena};
use crate::tcp::TcpReceiver;
use crate::tcp::landing::TcpLanding;
use crate::{ArenaId, AttachError, Receiver, Refusal, Refusals, Sender};
use pages::{Epoch, WriterLife};
use wire::control::Role;

/// What is said to somebody who asks with TLS like this: nothing, but that he is refused.
fn refused(world: &World, tls: Arc<ClientConfig>) -> String {
    let sender = super::TcpSender::new(WRITER, tls, super::DataDeadlines::default());
    let error = sender.attach(&world.landing, Box::new(drop)).err();
    assert!(matches!(error, Some(AttachError::Io(_))), "{error:?}");
    error.unwrap().to_string()
}

/// So many and nobody else were turned away, as soon as this side has seen it.
fn expect_strangers(receiver: &TcpReceiver, strangers: u64) {
    let expected = Refusals {
        strangers,
        ..Refusals::default()
    };
    let until = Instant::now() + PATIENCE;
    while receiver.refusals().total() < strangers && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(receiver.refusals(), expected);
}

fn with_protocol(tls: &Arc<ClientConfig>, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut tls = ClientConfig::clone(tls);
    tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(tls)
}

#[test]
fn strangers_get_nothing_and_use_nothing_up() {
    let world = World::new();
    let at = world.receiver.addr();

    // No TLS at all: garbage, an HTTP request, silence.
    let silent = TcpStream::connect(at).unwrap();
    for words in [&[7u8; 1000][..], b"GET / HTTP/1.1\r\nHost: d\r\n\r\n"] {
        let mut socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(words).unwrap();
        let mut said = Vec::new();
        let _ = socket.read_to_end(&mut said); // closed, or reset because it had said too much
        assert!(said.len() <= 7, "more than a TLS alert: {said:?}");
    }
    // Another cluster, although its certificate says prefill; another role of this one.
    let other = Cluster::new();
    let said = refused(&world, other.dialler(Role::Prefill));
    assert!(said.contains("certificate"), "{said}");
    let said = refused(&world, world.cluster.dialler(Role::Gateway));
    assert!(said.contains("alert"), "{said}");
    // The right certificate at the wrong port: a control connection, or no protocol at all.
    let prefill = world.cluster.dialler(Role::Prefill);
    refused(&world, with_protocol(&prefill, &[b"cofferdam-control/1"]));
    refused(&world, with_protocol(&prefill, &[]));
    // The right everything, and then no claim.
    let mut raw = Raw::dial(at, prefill);
    raw.say(&[0; 82]);
    assert!(raw.rest().is_empty());

    // All but the silent one, whose time is not over.
    expect_strangers(&world.receiver, 7);
    // The writer gets its arena all the same, while the silent one is still there.
    let sender = world.cluster.sender(WRITER);
    let endpoint = sender.attach(&world.landing, Box::new(drop)).unwrap();
    assert_eq!(endpoint.arena(), arena(1));
    for slot in 0..SHAPE.slots {
        assert!(world.slot(slot).iter().all(|&word| word == 0));
    }
    drop(silent);
}

#[test]
fn a_receiver_without_a_certificate_of_the_cluster_hears_no_claim() {
    let (world, other) = (World::new(), Cluster::new());
    let mut stranger = other.receiver(anywhere());
    let landing = stranger.open_arena(arena(1), WRITER, SHAPE).unwrap();
    let sender = world.cluster.sender(WRITER);
    let error = sender.attach(&landing, Box::new(drop)).err().unwrap();
    assert!(error.to_string().contains("certificate"), "{error}");
    expect_strangers(&stranger, 1);
}

#[test]
fn a_wrong_token_is_refused_and_does_not_use_the_landing_up() {
    let world = World::new();
    let good = TcpLanding::decode(&world.landing).unwrap();
    let sender = world.cluster.sender(WRITER);
    for byte in [0, 15, 31] {
        let mut wrong = good.clone();
        wrong.token[byte] ^= 1;
        let refused = sender.attach(&wrong.encode().unwrap(), Box::new(drop));
        let refused = refused.err().unwrap();
        assert!(
            matches!(refused, AttachError::Refused(Refusal::WrongToken)),
            "{refused}"
        );
    }
    assert_eq!(world.receiver.refusals().wrong_token, 3);
    let attached = sender.attach(&world.landing, Box::new(drop));
    assert!(attached.is_ok(), "still good");
}

/// D-11, D-24: a ticket of one life is worth nothing in another, of either side.
#[test]
fn a_ticket_replayed_in_another_life_is_refused_and_counted() {
    let World {
        cluster,
        mut receiver,
        landing,
    } = World::new();
    let later = WriterLife {
        epoch: Epoch::new(WRITER.epoch.bits() ^ 1 << 127), // in its highest bit alone
        ..WRITER
    };
    let refused = cluster.sender(later).attach(&landing, Box::new(drop)).err();
    assert!(
        matches!(refused, Some(AttachError::Refused(Refusal::OtherLife))),
        "{refused:?}"
    );
    assert_eq!(receiver.refusals().other_life, 1);

    // After the fence the name is known to nobody.
    let _ = receiver.fence(arena(1)).unwrap();
    let refused = cluster.sender(WRITER).attach(&landing, Box::new(drop));
    assert!(
        matches!(refused, Err(AttachError::Refused(Refusal::NotOpen))),
        "{:?}",
        refused.err()
    );
    assert_eq!(receiver.refusals().not_open, 1);

    // D's next life, at the same address, whose first arena even has the same number.
    let at = receiver.addr();
    drop(receiver);
    let mut receiver = cluster.receiver(at);
    let owner = Epoch::new(OWNER.bits() ^ 1 << 120);
    let fresh = ArenaId { owner, n: 1 };
    let fresh_landing = receiver.open_arena(fresh, WRITER, SHAPE).unwrap();
    let refused = cluster.sender(WRITER).attach(&landing, Box::new(drop));
    assert!(
        matches!(refused, Err(AttachError::Refused(Refusal::StaleReceiver))),
        "{:?}",
        refused.err()
    );
    let expected = Refusals {
        stale_receiver: 1,
        ..Refusals::default()
    };
    assert_eq!(receiver.refusals(), expected);
    let attached = cluster
        .sender(WRITER)
        .attach(&fresh_landing, Box::new(drop));
    assert_eq!(attached.unwrap().arena(), fresh);
}
