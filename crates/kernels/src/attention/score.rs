//! Scores of a block's positions.

use std::ops::Range;

use super::{AttendScratch, Attention, BLOCK};
use crate::lanes::{LANES, Lanes};

/// Positions between the keys that are read and those that are asked for. The pages of a sequence lie
/// anywhere, so the processor does not foresee them.
const AHEAD: usize = 2 * LANES;

/// Writes the scores of `block` for `queries`: 16 keys are transposed once and used by every query
/// that attends to at least one of them.
///
/// # Safety
/// The CPU has L's features; the pages hold the block; scratch is prepared for `a`.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes>(
    a: &Attention<'_>,
    block: &Range<usize>,
    queries: Range<usize>,
    scratch: &mut AttendScratch,
) {
    if queries.is_empty() {
        return;
    }
    let begin = a.seen(queries.start, block).start / LANES * LANES;
    let mut slots = Slots::at(a, begin);
    let mut ahead = Slots::at(a, begin + AHEAD);
    for start in (begin..block.end).step_by(LANES) {
        let keys: [*const u16; LANES] = std::array::from_fn(|i| {
            if start + i < a.positions() {
                slots.next(a.keys, a.key_dim).as_ptr()
            } else {
                scratch.zeros.as_ptr()
            }
        });
        // SAFETY: 16 rows of `key_dim` f16; `keys` holds `key_dim * 16` f32; the rest as the caller's
        // contract has it.
        unsafe {
            ahead.fetch::<L>(a, start + AHEAD);
            for d in (0..a.key_dim).step_by(LANES) {
                L::transpose_f16(&keys, d, scratch.keys.as_mut_ptr().add(d * LANES));
            }
            // Rows before these end before this group of 16.
            let before = start.saturating_sub(a.first_position) * a.group;
            let queries = queries.start.max(before)..queries.end;
            group::<L>(a.key_dim, queries, start - block.start, scratch);
        }
    }
}

/// Walks over the slots of consecutive positions.
struct Slots {
    page: usize,
    slot: usize,
    page_size: usize,
}

impl Slots {
    fn at(a: &Attention<'_>, position: usize) -> Slots {
        Slots {
            page: position / a.page_size,
            slot: position % a.page_size,
            page_size: a.page_size,
        }
    }

    #[inline(always)]
    fn next<'a>(&mut self, pages: &'a [&'a [u16]], dim: usize) -> &'a [u16] {
        let words = &pages[self.page][self.slot * dim..][..dim];
        self.step();
        words
    }

    #[inline(always)]
    fn step(&mut self) {
        self.slot += 1;
        if self.slot == self.page_size {
            (self.page, self.slot) = (self.page + 1, 0);
        }
    }

    /// Asks for the keys and values of 16 positions from `position` on.
    ///
    /// # Safety
    /// The CPU has L's features.
    #[inline(always)]
    unsafe fn fetch<L: Lanes>(&mut self, a: &Attention<'_>, position: usize) {
        for position in position..position + LANES {
            if position >= a.positions() {
                return;
            }
            let key = &a.keys[self.page][self.slot * a.key_dim..][..a.key_dim];
            let value = &a.values[self.page][self.slot * a.value_stride..][..a.value_dim];
            for words in [key, value] {
                // Half a cache line holds 32 words; a slot need not begin on one.
                for line in words.chunks(32) {
                    // SAFETY: the caller's contract; the address is that of a word.
                    unsafe { L::prefetch(line.as_ptr()) };
                }
            }
            self.step();
        }
    }
}

/// The scores of 16 positions, from `at` of the block on, in register tiles.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn group<L: Lanes>(
    key_dim: usize,
    queries: Range<usize>,
    at: usize,
    scratch: &mut AttendScratch,
) {
    let mut query = queries.start;
    macro_rules! tiles {
        ($($n:literal if $fits:expr),*) => {$(
            while $fits && queries.end - query >= $n {
                // SAFETY: these queries and 16 scores from `at` on are inside scratch.
                unsafe { tile::<L, $n>(key_dim, query, at, scratch) };
                query += $n;
            }
        )*};
    }
    // Two accumulators for each query: as many as the registers hold beside two vectors of keys.
    tiles!(8 if L::TILE >= 8, 4 if L::TILE >= 8, 3 if L::TILE >= 4, 2 if L::TILE >= 4, 1 if true);
}

/// # Safety
/// Scratch holds `T` queries from `query` on and their scores from `at` on; CPU has L.
#[inline(always)]
unsafe fn tile<L: Lanes, const T: usize>(
    key_dim: usize,
    query: usize,
    at: usize,
    scratch: &mut AttendScratch,
) {
    debug_assert!((query + T) * key_dim <= scratch.queries.len());
    debug_assert!((query + T - 1) * BLOCK + at + LANES <= scratch.scores.len());
    // SAFETY: the caller's contract; key_dim is even, being a multiple of 16.
    unsafe {
        let q = scratch.queries.as_ptr().add(query * key_dim);
        let keys = scratch.keys.as_ptr();
        let mut even = [L::splat(0.0); T];
        let mut odd = [L::splat(0.0); T];
        for d in (0..key_dim).step_by(2) {
            let (k0, k1) = (
                L::load(keys.add(d * LANES)),
                L::load(keys.add((d + 1) * LANES)),
            );
            for t in 0..T {
                let q = q.add(t * key_dim + d);
                even[t] = L::fma(k0, L::splat(*q), even[t]);
                odd[t] = L::fma(k1, L::splat(*q.add(1)), odd[t]);
            }
        }
        let scores = scratch.scores.as_mut_ptr().add(query * BLOCK + at);
        for t in 0..T {
            L::store(scores.add(t * BLOCK), L::add(even[t], odd[t]));
        }
    }
}
