//! Memory for weights and pages, on huge pages where the system has them.
//!
//! A decode step reads every weight once: with 4 KiB pages the walks of the page tables cost about
//! a third of it (measured on a virtual machine: 84 against 120 tokens a second). The allocator
//! hands out single matrices and KV pages, which are smaller than a huge page; so they are cut from
//! large chunks here.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::matrix::Line;

/// Every piece starts on a cache line.
const LINE: usize = 64;
/// Size and alignment of a huge page.
const HUGE: usize = 2 << 20;
/// Size of a chunk, unless a single piece needs more.
const CHUNK: usize = 32 << 20;

/// Hands out pieces of large chunks of memory. A chunk is freed with its last piece.
#[derive(Debug)]
pub struct Arena {
    chunk_bytes: usize,
    chunk: Option<Arc<Chunk>>,
    used: usize,
}

/// The memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: usize,
}

/// Element types of pieces: plain numbers, for which all bits zero is a value.
pub trait Element: sealed::Plain {}
impl<T: sealed::Plain> Element for T {}

mod sealed {
    /// # Safety
    /// The all-zero pattern is a value, nothing needs dropping, alignment is at most 64.
    pub unsafe trait Plain: Copy + Send + Sync + 'static {}
}
// SAFETY: an integer.
unsafe impl sealed::Plain for i8 {}
// SAFETY: an integer.
unsafe impl sealed::Plain for u16 {}
// SAFETY: an array of integers, aligned to 64.
unsafe impl sealed::Plain for Line<[u8; 64]> {}
// SAFETY: an array of floats, aligned to 64; zero bits are 0.0.
unsafe impl sealed::Plain for Line<[f32; 16]> {}

impl Default for Arena {
    fn default() -> Self {
        Arena {
            chunk_bytes: CHUNK,
            chunk: None,
            used: 0,
        }
    }
}

impl Arena {
    /// An arena whose chunks are no larger than what each piece needs.
    pub fn exact() -> Arena {
        Arena {
            chunk_bytes: 0,
            chunk: None,
            used: 0,
        }
    }

    /// A piece of `len` elements, all zero. Its memory is written, so it is really there.
    pub fn take<T: Element>(&mut self, len: usize) -> Result<Piece<T>, OutOfMemory> {
        let asked = len
            .checked_mul(size_of::<T>())
            .ok_or(OutOfMemory { bytes: usize::MAX })?;
        let bytes = asked
            .max(1)
            .checked_next_multiple_of(LINE)
            .ok_or(OutOfMemory { bytes: asked })?;
        let chunk = match &self.chunk {
            Some(chunk) if chunk.layout.size() - self.used >= bytes => chunk.clone(),
            _ => {
                let chunk = Arc::new(Chunk::allocate(bytes.max(self.chunk_bytes))?);
                self.used = 0;
                self.chunk.insert(chunk).clone()
            }
        };
        // SAFETY: `used + bytes` is inside the chunk, and this range is given out only once, since
        // `used` only grows. It starts on a line, which is enough for any `Element`.
        let start = unsafe {
            let start = chunk.start.add(self.used).cast::<T>();
            start.write_bytes(0, len);
            start
        };
        self.used += bytes;
        Ok(Piece {
            start,
            len,
            _chunk: chunk,
        })
    }
}

/// One allocation, freed when no piece is left.
#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a chunk is only an address and its size; access goes through pieces, which are disjoint.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn allocate(bytes: usize) -> Result<Chunk, OutOfMemory> {
        let align = if bytes >= HUGE { HUGE } else { LINE };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| OutOfMemory { bytes })?;
        // SAFETY: the size is not zero: `take` asks for at least a line.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or(OutOfMemory { bytes })?;
        #[cfg(target_os = "linux")]
        if align == HUGE {
            // A wish: without huge pages everything works, slower.
            // SAFETY: the range is this allocation's own, and the advice changes no content.
            let _ = unsafe {
                let whole = bytes / HUGE * HUGE;
                rustix::mm::madvise(
                    start.as_ptr().cast(),
                    whole,
                    rustix::mm::Advice::LinuxHugepage,
                )
            };
        }
        Ok(Chunk { start, layout })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and every piece that pointed into it is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Owned memory inside a chunk: a `Box<[T]>` in all but where it lies.
pub struct Piece<T> {
    start: NonNull<T>,
    len: usize,
    _chunk: Arc<Chunk>,
}

// SAFETY: a piece owns its elements exclusively; `Element` types are Send.
unsafe impl<T: Send> Send for Piece<T> {}
// SAFETY: shared access gives `&T` only.
unsafe impl<T: Sync> Sync for Piece<T> {}

impl<T> Deref for Piece<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements that are this piece's alone; the chunk is alive.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Piece<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Piece<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements of {} bytes", self.len, size_of::<T>())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot allocate {} bytes", self.bytes)
    }
}

impl std::error::Error for OutOfMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_aligned_disjoint_and_outlive_the_arena() {
        for mut arena in [Arena::default(), Arena::exact()] {
            let mut pieces: Vec<Piece<u16>> =
                (0..50).map(|i| arena.take(i * 37_000).unwrap()).collect();
            drop(arena);
            for (i, piece) in pieces.iter_mut().enumerate() {
                assert_eq!(piece.len(), i * 37_000);
                assert!(piece.iter().all(|word| *word == 0));
                assert_eq!(piece.as_ptr() as usize % LINE, 0);
                piece.fill(i as u16);
            }
            pieces.remove(7);
            for piece in pieces {
                let first = piece.first().copied().unwrap_or_default();
                assert!(piece.iter().all(|word| *word == first));
                assert_eq!(usize::from(first) * 37_000, piece.len());
            }
        }
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        let mut arena = Arena::default();
        assert!(arena.take::<u16>(usize::MAX).is_err());
        assert!(arena.take::<u16>(isize::MAX as usize / 2).is_err());
        assert_eq!(arena.take::<u16>(8).unwrap().len(), 8);
    }
}
