//! Writers that break the protocol, are cut, or leave their socket to somebody else.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::AsFd;

use super::{Raw, SHAPE, WRITER, World, arena};
use crate::map::tests::fork;
use crate::tcp::wire::{FRAME_WORDS_MAX, Header};
use crate::{Evidence, Receiver, Sender};
use pages::{Epoch, WriterLife};
use rustix::process::WaitOptions;

/// A frame of the same word, over and over.
fn words(submission: u64, slot: u32, offset: u32, words: u32, word: u16) -> Vec<u8> {
    let header = Header::Words {
        submission,
        slot,
        offset,
        words,
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend((0..words).flat_map(|_| word.to_le_bytes()));
    bytes
}

fn end(submission: u64, frames: u32) -> Vec<u8> {
    Header::End { submission, frames }.encode().to_vec()
}

fn land(raw: &mut Raw, submission: u64, frame: &[u8]) {
    use std::io::Read;
    raw.say(&[frame.to_vec(), end(submission, 1)].concat());
    let mut ack = [0; 8];
    raw.0.read_exact(&mut ack).unwrap();
    assert_eq!(u64::from_le_bytes(ack), submission);
}

/// Whatever is not exactly the protocol costs the connection, acknowledges nothing and touches no
/// word outside of the arena's slots; what had landed stays, and the arena can be fenced.
#[test]
fn a_writer_that_breaks_the_protocol_is_cut_off() {
    let (slots, slot_words) = (SHAPE.slots, SHAPE.slot_words as u32);
    let mut raw_header = [0xff; Header::BYTES].to_vec();
    raw_header.extend([1; 64]);
    let broken: &[(&str, Vec<u8>)] = &[
        ("a slot that is none", words(2, slots, 0, 1, 9)),
        ("a run behind the slot", words(2, 0, 1, slot_words, 9)),
        ("a start behind the slot", words(2, 0, u32::MAX, 1, 9)),
        ("no words", words(2, 0, 0, 0, 9)),
        (
            "a frame above the limit",
            words(2, 0, 0, FRAME_WORDS_MAX as u32 + 1, 9),
        ),
        ("no header", raw_header),
        ("a submission again", words(1, 0, 0, 1, 9)),
        ("an end again", end(1, 0)),
        (
            "fewer frames than stated",
            [words(2, 1, 0, 1, 0), end(2, 2)].concat(),
        ),
        (
            "two at once",
            [words(2, 1, 0, 1, 0), words(3, 1, 0, 1, 9)].concat(),
        ),
        (
            "the end of another",
            [words(2, 1, 0, 1, 0), end(3, 1)].concat(),
        ),
    ];
    for (what, bytes) in broken {
        let mut world = World::new();
        let mut raw = world.raw_writer();
        land(&mut raw, 1, &words(1, 0, 0, slot_words, 5));
        raw.say(bytes);
        assert!(raw.rest().is_empty(), "{what} was acknowledged");
        assert!(world.slot(0).iter().all(|&word| word == 5), "{what}");
        for slot in 1..slots {
            assert!(world.slot(slot).iter().all(|&word| word == 0), "{what}");
        }
        let fenced = world.receiver.fence(arena(1)).unwrap();
        assert_eq!(fenced.evidence, Evidence::NoWriterMaps, "{what}");
    }
}

#[test]
fn a_frame_that_is_cut_is_not_applied_in_part() {
    let mut world = World::new();
    let mut raw = world.raw_writer();
    land(&mut raw, 1, &words(1, 0, 0, 1000, 5));
    let frame = words(2, 0, 0, 1000, 6);
    raw.say(&frame[..frame.len() - 1]);
    raw.0.sock.shutdown(Shutdown::Write).unwrap();
    assert!(raw.rest().is_empty());
    assert!(world.slot(0).iter().all(|&word| word == 5));
    let fenced = world.receiver.fence(arena(1)).unwrap();
    assert_eq!(fenced.evidence, Evidence::NoWriterMaps);
}

/// D-26 over TCP: the writer is gone, a child of it has the socket and a frame that is encrypted
/// already. Before the fence that is the writer's frame as any other; after it nobody hears it.
#[test]
fn a_forked_child_that_keeps_the_socket_writes_to_nobody_after_the_fence() {
    let mut world = World::new();
    let mut raw = world.raw_writer();
    land(&mut raw, 1, &words(1, 0, 0, 1000, 5));
    let mut late = Vec::new();
    let frames = [words(2, 0, 0, 1000, 6), end(2, 1)].concat();
    raw.0.conn.writer().write_all(&frames).unwrap();
    while raw.0.conn.wants_write() {
        raw.0.conn.write_tls(&mut late).unwrap();
    }
    let (go, mut start) = std::io::pipe().unwrap();
    let (mut done, say) = std::io::pipe().unwrap();
    let socket = raw.0.sock.try_clone().unwrap();
    let child = fork(|| {
        let _ = rustix::io::read(&go, &mut [0; 1]);
        // The first may still be taken by this side's kernel; the answer to it is a reset.
        for _ in 0..2 {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            let _ = rustix::net::send(socket.as_fd(), &late, flags);
        }
        let _ = rustix::io::write(&say, b"x");
    });
    drop((raw, socket)); // the parent, which attached, is gone

    let old = world.receiver.reader(arena(1)).unwrap();
    let fenced = world.receiver.fence(arena(1)).unwrap();
    assert_eq!(
        fenced.evidence,
        Evidence::NoWriterMaps,
        "although the child lives"
    );
    // Reuse: another life has the next arena.
    let life = WriterLife {
        epoch: Epoch::new(2),
        ..WRITER
    };
    let landing = world.receiver.open_arena(arena(2), life, SHAPE).unwrap();
    let endpoint = world.cluster.sender(life).attach(&landing, Box::new(drop));
    start.write_all(b"x").unwrap();
    std::io::Read::read_exact(&mut done, &mut [0]).unwrap();
    let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(0));

    let mut copy = vec![7; SHAPE.slot_words];
    assert!(old.copy_out(0, &[super::WHOLE], &mut copy).is_err());
    let fresh = world.receiver.reader(arena(2)).unwrap();
    fresh.copy_out(0, &[super::WHOLE], &mut copy).unwrap();
    assert!(copy.iter().all(|&word| word == 0), "a late write was seen");
    drop(endpoint);
}
