//! What only shared memory has: descriptors, seals, the kernel's attestation, forked children.

use std::io::{PipeReader, Read, Write as _, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pages::{Config, Epoch, Pool, WriterLife};
use rustix::fs::SealFlags;
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, WaitOptions};

use super::handover::claim;
use super::landing::ShmLanding;
use super::{Limits, ShmReceiver, ShmSender, sender};
use crate::layout::Layout;
use crate::map::WriteMap;
use crate::map::tests::fork;
use crate::{
    ArenaId, AttachError, CopyError, Evidence, Mismatch, OpenError, Receiver, Refusal, Sender,
    Shape, WordRun,
};

const SHAPE: Shape = Shape {
    slots: 4,
    slot_words: 3000,
};
const WRITER: WriterLife = WriterLife {
    epoch: Epoch::new(u128::MAX / 255),
    rank: 0,
};

fn receiver(parent: &Path) -> ShmReceiver {
    let (_, mint) = Pool::new(Config {
        pages: 1,
        page_size: 16,
        scrub: false,
    });
    ShmReceiver::new(parent, mint, Limits { bytes_max: 1 << 20 }).unwrap()
}

fn arena(n: u64) -> ArenaId {
    ArenaId {
        owner: Epoch::new(9 * (u128::MAX / 255)),
        n,
    }
}

/// A receiver with one arena, and its descriptor claimed as by the writer.
struct World {
    receiver: ShmReceiver,
    descriptor: OwnedFd,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut receiver = receiver(dir.path());
        let landing = receiver.open_arena(arena(1), WRITER, SHAPE).unwrap();
        let descriptor = claim(&ShmLanding::decode(&landing).unwrap(), WRITER).unwrap();
        Self {
            receiver,
            descriptor,
            _dir: dir,
        }
    }

    fn len(&self) -> usize {
        Layout::new(SHAPE).unwrap().len()
    }
}

/// A child inherits what other tests map at that moment: one fork at a time.
static FORKS: Mutex<()> = Mutex::new(());

fn wait(child: Pid) {
    let (_, status) = rustix::process::waitpid(Some(child), WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(0));
}

/// In a forked child: waits until the other end is written to or closed.
fn await_byte(from: &PipeReader) {
    let _ = rustix::io::read(from, &mut [0; 1]);
}

#[test]
fn the_kernel_says_whether_a_writer_still_maps_and_its_memory_is_counted() {
    let mut world = World::new();
    let map = WriteMap::new(world.descriptor.as_fd(), world.len()).unwrap();
    let fenced = world.receiver.fence(arena(1)).unwrap();
    assert_eq!(fenced.evidence, Evidence::WriterMaps);
    assert_eq!(world.receiver.lingering(), (1, world.len() as u64));
    assert!(!world.receiver.is_given_back(arena(1)));

    // What lingers counts against the limit: a hung writer cannot make this side use more.
    let most = Shape {
        slots: 1,
        slot_words: (1 << 19) - 4096,
    };
    let refused = world
        .receiver
        .open_arena(arena(2), WRITER, most)
        .unwrap_err();
    assert!(
        matches!(refused, OpenError::Limit { lingering, .. } if lingering > 0),
        "{refused}"
    );
    drop(map);
    assert!(world.receiver.is_given_back(arena(1)));
    assert_eq!(world.receiver.lingering(), (0, 0));
    world.receiver.open_arena(arena(2), WRITER, most).unwrap();
    let fenced = world.receiver.fence(arena(2)).unwrap();
    assert_eq!(fenced.evidence, Evidence::NoWriterMaps);
}

/// D-26: the writer is dead, its child still maps the arena and writes.
#[test]
fn a_forked_child_that_keeps_the_map_is_noticed_and_its_writes_are_not_seen() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new();
    let map = WriteMap::inheritable(world.descriptor.as_fd(), world.len());
    let offset = Layout::new(SHAPE).unwrap().offset(0, 0);
    let ((go, mut start), (mut done, say)) = (pipe().unwrap(), pipe().unwrap());
    let child = fork(|| {
        for seed in [1, 2] {
            await_byte(&go);
            map.write(offset, &[seed; 100]);
            let _ = rustix::io::write(&say, &[seed as u8]);
        }
        await_byte(&go);
    });
    drop(map); // the parent, which attached, maps it no more

    let run = WordRun {
        offset: 0,
        words: 100,
    };
    let reader = world.receiver.reader(arena(1)).unwrap();
    let mut copy = [0; 100];
    start.write_all(b"x").unwrap();
    done.read_exact(&mut [0]).unwrap();
    reader.copy_out(0, &[run], &mut copy).unwrap();
    assert_eq!(copy, [1; 100], "the child does write into the arena");

    let fenced = world.receiver.fence(arena(1)).unwrap();
    assert_eq!(fenced.evidence, Evidence::WriterMaps);
    start.write_all(b"x").unwrap();
    done.read_exact(&mut [0]).unwrap();
    let copied = reader.copy_out(0, &[run], &mut copy);
    assert_eq!(copied, Err(CopyError::Fenced(arena(1))));
    assert_eq!(copy, [1; 100]);
    assert_eq!(world.receiver.lingering().0, 1);
    start.write_all(b"x").unwrap();
    wait(child);
    assert_eq!(world.receiver.lingering(), (0, 0));
}

#[test]
fn a_forked_child_does_not_inherit_the_product_s_map() {
    let _alone = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new();
    let map = WriteMap::new(world.descriptor.as_fd(), world.len()).unwrap();
    let (go, mut start) = pipe().unwrap();
    let child = fork(|| await_byte(&go));
    drop(map);
    let fenced = world.receiver.fence(arena(1)).unwrap();
    assert_eq!(
        fenced.evidence,
        Evidence::NoWriterMaps,
        "although the child lives"
    );
    start.write_all(b"x").unwrap();
    wait(child);
}

#[test]
fn a_descriptor_that_a_writer_kept_is_worth_nothing_after_the_attestation() {
    let mut world = World::new();
    assert_eq!(rustix::io::pwrite(&world.descriptor, b"wet", 0), Ok(3));
    let fenced = world.receiver.fence(arena(1)).unwrap();
    assert_eq!(fenced.evidence, Evidence::NoWriterMaps);
    assert_eq!(
        rustix::io::pwrite(&world.descriptor, b"wet", 0),
        Err(Errno::PERM)
    );
    assert!(WriteMap::new(world.descriptor.as_fd(), world.len()).is_err());
}

#[test]
fn an_arena_is_populated_sealed_and_not_inherited_by_programs() {
    let world = World::new();
    let stat = rustix::fs::fstat(&world.descriptor).unwrap();
    assert_eq!(stat.st_size as usize, world.len());
    assert!(
        stat.st_blocks as usize * 512 >= world.len(),
        "holes: {} blocks",
        stat.st_blocks
    );
    for len in [0, world.len() as u64 - 1, world.len() as u64 + 1] {
        assert_eq!(
            rustix::fs::ftruncate(&world.descriptor, len),
            Err(Errno::PERM)
        );
    }
    let flags = rustix::io::fcntl_getfd(&world.descriptor).unwrap();
    assert!(flags.contains(FdFlags::CLOEXEC));
    let seals = rustix::fs::fcntl_get_seals(&world.descriptor).unwrap();
    assert_eq!(
        seals,
        SealFlags::SHRINK | SealFlags::GROW,
        "F_SEAL_SEAL would bar the attestation"
    );
}

#[test]
fn a_wrong_token_is_refused_and_does_not_use_the_landing_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut receiver = receiver(dir.path());
    let landing = receiver.open_arena(arena(1), WRITER, SHAPE).unwrap();
    let good = ShmLanding::decode(&landing).unwrap();
    for byte in 0..32 {
        let mut wrong = good.clone();
        wrong.token[byte] ^= 1;
        let refused = claim(&wrong, WRITER).unwrap_err();
        assert!(
            matches!(refused, AttachError::Refused(Refusal::WrongToken)),
            "{refused}"
        );
    }
    claim(&good, WRITER).expect("still good");
}

#[test]
fn whoever_does_not_claim_gets_nothing_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mut receiver = receiver(dir.path());
    let landing = receiver.open_arena(arena(1), WRITER, SHAPE).unwrap();
    let good = ShmLanding::decode(&landing).unwrap();
    let silent = UnixStream::connect(&good.socket).unwrap();
    let mut garbage = UnixStream::connect(&good.socket).unwrap();
    garbage.write_all(&[7; 1000]).unwrap();
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer); // closed, or reset because it had said too much
    assert!(answer.is_empty());
    claim(&good, WRITER).expect("while the silent one is still connected");
    drop(silent);
}

#[test]
fn the_socket_is_private_and_gone_with_its_receiver() {
    let dir = tempfile::tempdir().unwrap();
    let mut receiver = receiver(dir.path());
    let landing = receiver.open_arena(arena(1), WRITER, SHAPE).unwrap();
    let socket = ShmLanding::decode(&landing).unwrap().socket;
    let mode = socket
        .parent()
        .unwrap()
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    drop(receiver);
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    assert!(
        ShmSender::new(WRITER)
            .attach(&landing, Box::new(drop))
            .is_err()
    );
}

/// A receiver's mistake must not kill the writer (SIGBUS behind the end of a file).
#[test]
fn a_writer_refuses_memory_that_is_short_or_could_become_so() {
    let layout = Layout::new(SHAPE).unwrap();
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("test", flags).unwrap();
    let mismatch = |memory: &OwnedFd| match sender::check(memory, &layout) {
        Err(AttachError::Mismatch(what)) => what,
        other => panic!("{other:?}"),
    };
    let expected = layout.len() as u64;
    assert_eq!(mismatch(&memory), Mismatch::Size { size: 0, expected });
    for wrong in [layout.len() - 1, layout.len() + 1, 2 * layout.len()] {
        rustix::fs::ftruncate(&memory, wrong as u64).unwrap();
        let size = wrong as i64;
        assert_eq!(mismatch(&memory), Mismatch::Size { size, expected });
    }
    // Each seal alone is not enough, nor is another one.
    let (shrink, grow) = (SealFlags::SHRINK, SealFlags::GROW);
    for seals in [
        SealFlags::empty(),
        shrink,
        grow,
        shrink | SealFlags::WRITE,
        shrink | grow,
    ] {
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&memory, layout.len() as u64).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        if seals == shrink | grow {
            sender::check(&memory, &layout).unwrap();
        } else {
            let seals = seals.bits();
            assert_eq!(mismatch(&memory), Mismatch::NotSealed { seals });
        }
    }
}

/// The same where it matters: a receiver that hands over such memory gets no writer.
#[test]
fn a_writer_attaches_to_nothing_that_could_become_short() {
    let dir = tempfile::tempdir().unwrap();
    let len = Layout::new(SHAPE).unwrap().len() as u64;
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    for (n, (size, seals)) in [
        (len, SealFlags::GROW),
        (len, SealFlags::SHRINK),
        (len - 4096, sealed),
        (len, sealed),
    ]
    .into_iter()
    .enumerate()
    {
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&memory, size).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        let socket = dir.path().join(n.to_string());
        let (offers, token) = (crate::claim::Offers::default(), [n as u8; 32]);
        let descriptors = super::handover::DescriptorServer::open(&socket, offers.clone()).unwrap();
        let given = (Arc::new(memory), Arc::default());
        offers.put(arena(1), WRITER, token, given);
        let landing = ShmLanding {
            arena: arena(1),
            token,
            shape: SHAPE,
            socket,
        };
        let attached = ShmSender::new(WRITER).attach(&landing.encode().unwrap(), Box::new(drop));
        match (n, attached) {
            (3, Ok(_)) | (0..3, Err(AttachError::Mismatch(_))) => {}
            (_, other) => panic!("case {n}: {:?}", other.err()),
        }
        drop(descriptors);
    }
}

#[test]
fn an_arena_that_the_machine_cannot_hold_is_refused_before_it_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (_, mint) = Pool::new(Config {
        pages: 1,
        page_size: 16,
        scrub: false,
    });
    let limits = Limits {
        bytes_max: u64::MAX,
    };
    let mut receiver = ShmReceiver::new(dir.path(), mint, limits).unwrap();
    let shape = Shape {
        slots: 1 << 16,
        slot_words: 1 << 28,
    };
    let refused = receiver.open_arena(arena(1), WRITER, shape).unwrap_err();
    assert!(matches!(refused, OpenError::Memory(_)), "{refused}");
    assert!(receiver.arenas().is_empty());
}
