//! Memory that another process may write or read at any moment: the fabric's only unsafe code.
//!
//! No reference into such memory is ever made (a `&[T]` to it would be undefined behaviour whether
//! or not it changes). It is reached through raw pointers, by relaxed atomic loads and stores of
//! 8 or 2 bytes, bounds checked in every build. What was read is judged only in its private copy.
//!
//! Order between the processes: the writer stores a batch's words, then the header's batch word
//! with Release ([`WriteMap::store_release`]); the reader, which has learnt of the batch over the
//! control plane, loads the batch word with Acquire ([`ReadMap::load_acquire`]) before it copies,
//! so that it sees the words if the writer told the truth. If not, it sees any mixture of words:
//! each load is still atomic and of an initialised integer.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("arenas are reached by 64-bit atomic operations");

const WORD: usize = size_of::<u16>();
/// Words in one atomic operation of full width.
const LANE: usize = size_of::<u64>() / WORD;

/// A shared mapping, unmapped on drop.
struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `Map` owns its address range (nobody else unmaps it) and hands out no references; all
// access goes through atomic operations, which are sound from any number of threads.
unsafe impl Send for Map {}
// SAFETY: as above; the methods that take `&self` only perform atomic operations.
unsafe impl Sync for Map {}

impl Map {
    fn new(fd: BorrowedFd<'_>, len: usize, prot: ProtFlags) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a null hint lets the kernel choose an unused range, so no memory of this process
        // is replaced. The range is private to this value until `drop` unmaps it.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0)? };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address 0");
        Ok(Self { base, len })
    }

    /// The address of `bytes` in the map, checked against its length.
    fn at(&self, bytes: &Range<usize>) -> *mut u8 {
        assert!(
            bytes.start <= bytes.end && bytes.end <= self.len,
            "outside of the map"
        );
        // SAFETY: `start` is at most `len`, so the result lies in the mapped range or one behind.
        unsafe { self.base.as_ptr().add(bytes.start) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(size_of::<u64>()), "unaligned");
        let at = self.at(&(offset..offset + size_of::<u64>()));
        // SAFETY: in bounds, aligned (a mapping begins at a page), initialised by the kernel and
        // alive as long as `self`. An atomic allows changes by others behind a shared reference.
        unsafe { &*at.cast::<AtomicU64>() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; no reference into it outlives
        // a method call on `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        // A range that stays mapped could be read after a fence.
        unmapped.expect("unmapping a whole mapping cannot fail");
    }
}

/// The reader's map: read-only, so that the kernel can attest that nobody maps it writable.
pub(crate) struct ReadMap(Map);

impl ReadMap {
    /// Maps `len` bytes of a file that was opened read-only and cannot shrink.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Map::new(fd, len, ProtFlags::READ).map(Self)
    }

    /// Loads the 8-byte word at a byte offset with the effect of Acquire: a relaxed load and a
    /// fence, because only relaxed loads are guaranteed not to touch read-only memory.
    pub(crate) fn load_acquire(&self, offset: usize) -> u64 {
        let value = self.0.word(offset).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// Copies words from a byte offset into private memory.
    pub(crate) fn read(&self, offset: usize, dst: &mut [u16]) {
        assert!(offset.is_multiple_of(WORD), "unaligned");
        let mut at = self
            .0
            .at(&(offset..offset + dst.len() * WORD))
            .cast::<u16>();
        let (head, lanes) = split(offset, dst.len());
        let (head, rest) = dst.split_at_mut(head);
        let (body, tail) = rest.split_at_mut(lanes * LANE);

        let one = |at: &mut *mut u16, word: &mut u16| {
            // SAFETY: `at` walks over the checked range, one step for each word of `dst`; it is
            // aligned to 2 because base and offset are. The map is readable, and a relaxed load
            // of at most 8 bytes does not write.
            unsafe {
                *word = (*at.cast::<AtomicU16>()).load(Ordering::Relaxed);
                *at = at.add(1);
            }
        };
        head.iter_mut().for_each(|word| one(&mut at, word));
        // SAFETY: behind `head` the address is a multiple of 8 (see `split`), and `lanes` loads
        // of 8 bytes stay in the checked range. `body` has exactly `lanes * LANE` words and is
        // private memory, where an unaligned store is allowed; source and destination cannot
        // overlap, since nobody holds a Rust slice into the map.
        unsafe {
            let mut to = body.as_mut_ptr().cast::<u64>();
            for _ in 0..lanes {
                to.write_unaligned((*at.cast::<AtomicU64>()).load(Ordering::Relaxed));
                at = at.add(LANE);
                to = to.add(1);
            }
        }
        tail.iter_mut().for_each(|word| one(&mut at, word));
    }
}

/// The writer's map. A forked child does not inherit it.
pub(crate) struct WriteMap(Map);

impl WriteMap {
    /// Maps `len` bytes of a file that cannot shrink.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let map = Map::new(fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        // SAFETY: advice about this map's own range; it changes what a fork copies, nothing here.
        unsafe {
            rustix::mm::madvise(map.base.as_ptr().cast(), map.len, Advice::LinuxDontFork)?;
        }
        Ok(Self(map))
    }

    /// Stores the 8-byte word at a byte offset with Release: after all words written before.
    pub(crate) fn store_release(&self, offset: usize, value: u64) {
        self.0.word(offset).store(value, Ordering::Release);
    }

    /// Copies private words to a byte offset.
    pub(crate) fn write(&self, offset: usize, src: &[u16]) {
        assert!(offset.is_multiple_of(WORD), "unaligned");
        let mut at = self
            .0
            .at(&(offset..offset + size_of_val(src)))
            .cast::<u16>();
        let (head, lanes) = split(offset, src.len());
        let (head, rest) = src.split_at(head);
        let (body, tail) = rest.split_at(lanes * LANE);

        let one = |at: &mut *mut u16, word: u16| {
            // SAFETY: as in `read`; the map is writable.
            unsafe {
                (*at.cast::<AtomicU16>()).store(word, Ordering::Relaxed);
                *at = at.add(1);
            }
        };
        head.iter().for_each(|&word| one(&mut at, word));
        // SAFETY: as in `read`, with the roles of the two sides exchanged.
        unsafe {
            let mut from = body.as_ptr().cast::<u64>();
            for _ in 0..lanes {
                (*at.cast::<AtomicU64>()).store(from.read_unaligned(), Ordering::Relaxed);
                at = at.add(LANE);
                from = from.add(1);
            }
        }
        tail.iter().for_each(|&word| one(&mut at, word));
    }
}

/// How `words` at a byte offset divide: single words up to a multiple of 8 bytes, then full lanes.
fn split(offset: usize, words: usize) -> (usize, usize) {
    let misaligned = offset % size_of::<u64>() / WORD;
    let head = ((LANE - misaligned) % LANE).min(words);
    (head, (words - head) / LANE)
}

/// Private words as the bytes that the checksum is computed over.
pub(crate) fn bytes_of(words: &[u16]) -> &[u8] {
    // SAFETY: the same memory for the same lifetime; bytes have no alignment and no invalid values.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl WriteMap {
        /// What a careless writer does: a forked child inherits this map.
        pub(crate) fn inheritable(fd: BorrowedFd<'_>, len: usize) -> Self {
            Self(Map::new(fd, len, ProtFlags::READ | ProtFlags::WRITE).unwrap())
        }
    }

    /// Forks; the child does `work` and ends. `work` must not allocate or lock: other threads of
    /// this process, and their locks, do not exist in the child.
    pub(crate) fn fork(work: impl FnOnce()) -> rustix::process::Pid {
        // SAFETY: the child only runs `work`, which keeps to async-signal-safe calls (stated
        // above), and `_exit`; it never returns into the test harness.
        unsafe {
            match libc::fork() {
                0 => {
                    // A failed test must not leave a child that waits for it.
                    let kill = Some(rustix::process::Signal::KILL);
                    if rustix::process::set_parent_process_death_signal(kill).is_ok() {
                        work();
                    }
                    libc::_exit(0)
                }
                pid => rustix::process::Pid::from_raw(pid).expect("forks"),
            }
        }
    }
    use proptest::prelude::*;
    use rustix::fs::MemfdFlags;
    use std::os::fd::AsFd;

    const LEN: usize = 4096;

    proptest! {
        /// Every alignment and length, written and read back; neighbours untouched.
        #[test]
        fn words_are_read_as_they_were_written(
            write_at in 0usize..64, read_at in 0usize..64, words in 0usize..200, seed: u16,
        ) {
            let fd = rustix::fs::memfd_create("map-test", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, LEN as u64).unwrap();
            let (to, from) =
                (WriteMap::new(fd.as_fd(), LEN).unwrap(), ReadMap::new(fd.as_fd(), LEN).unwrap());
            let src: Vec<u16> = (0..words).map(|i| seed.wrapping_add(i as u16) | 1).collect();
            to.write(write_at * WORD, &src);

            let mut all = vec![0; LEN / WORD];
            from.read(0, &mut all);
            prop_assert_eq!(&all[write_at..write_at + words], &src[..]);
            prop_assert!(all[..write_at].iter().all(|&word| word == 0));
            prop_assert!(all[write_at + words..].iter().all(|&word| word == 0));

            let mut some = vec![7; words + 2];
            from.read(read_at * WORD, &mut some[1..=words]);
            prop_assert_eq!(&some[1..=words], &all[read_at..read_at + words]);
            prop_assert_eq!((some[0], some[words + 1]), (7, 7));
        }
    }

    #[test]
    #[should_panic(expected = "outside of the map")]
    fn a_read_behind_the_end_is_refused() {
        let fd = rustix::fs::memfd_create("map-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, LEN as u64).unwrap();
        let map = ReadMap::new(fd.as_fd(), LEN).unwrap();
        map.read(LEN - WORD, &mut [0; 2]);
    }
}
