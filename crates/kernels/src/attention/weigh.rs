//! Values of a block's positions, times their weights.

use std::ops::Range;

use super::{AttendPart, AttendScratch, Attention, BLOCK};
use crate::lanes::{LANES, Lanes};

/// From so many queries on the values of a block are made f32 once, for all of them.
const SHARED: usize = 16;

/// Writes the weighted sums of `block` for the queries of `part`.
///
/// # Safety
/// The CPU has L's features; the pages hold the block; scratch is prepared for `a` and holds the
/// weights; `part` has room for all queries.
#[inline(always)]
pub(super) unsafe fn values<L: Lanes>(
    a: &Attention<'_>,
    block: &Range<usize>,
    part: &mut AttendPart,
    scratch: &mut AttendScratch,
) {
    let queries = part.queries.clone();
    let sums = part.sums.as_mut_ptr();
    // SAFETY: the caller's contract.
    unsafe {
        if queries.len() >= SHARED {
            let first = a.seen(queries.start, block).start;
            widen::<L>(a, block, first, scratch);
            let widened = Widened {
                start: block.start,
                values: scratch.values.as_ptr(),
            };
            tiles::<L, _>(a, block, queries, &scratch.scores, &widened, sums);
        } else {
            tiles::<L, _>(a, block, queries, &scratch.scores, &Paged(a), sums);
        }
    }
}

/// Where values are read from. What is added, and in which order, does not depend on it.
trait Values {
    /// Calls `each` with every position, and the address of its dimensions from `d` on.
    ///
    /// # Safety
    /// `positions` are held; `d` is below the dimensions.
    unsafe fn each(
        &self,
        positions: Range<usize>,
        d: usize,
        each: impl FnMut(usize, *const Self::Word),
    );

    type Word;

    /// Vector `v` of what `each` gave.
    ///
    /// # Safety
    /// The vector is inside the dimensions; the CPU has L's features.
    unsafe fn load<L: Lanes>(at: *const Self::Word, v: usize) -> L::F;
}

/// The pages themselves: for few queries.
struct Paged<'a>(&'a Attention<'a>);

impl Values for Paged<'_> {
    type Word = u16;

    #[inline(always)]
    unsafe fn each(
        &self,
        positions: Range<usize>,
        d: usize,
        mut each: impl FnMut(usize, *const u16),
    ) {
        let a = self.0;
        let mut at = positions.start;
        while at < positions.end {
            let slot = at % a.page_size;
            let end = positions.end.min(at - slot + a.page_size);
            let words = &a.values[at / a.page_size][slot * a.value_stride + d..];
            let mut word = words.as_ptr();
            while at < end {
                each(at, word);
                at += 1;
                // `wrapping`: after the last slot this points behind the page's run.
                word = word.wrapping_add(a.value_stride);
            }
        }
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(at: *const u16, v: usize) -> L::F {
        // SAFETY: the caller's contract.
        unsafe { L::load_f16(at.add(v * LANES)) }
    }
}

/// The values of a block as f32.
struct Widened {
    start: usize,
    values: *const f32,
}

impl Values for Widened {
    type Word = f32;

    #[inline(always)]
    unsafe fn each(
        &self,
        positions: Range<usize>,
        d: usize,
        mut each: impl FnMut(usize, *const f32),
    ) {
        // SAFETY: positions of the block, `d` below the dimensions: inside `values`.
        unsafe {
            let dimensions = self.values.add(d * BLOCK);
            for at in positions {
                each(at, dimensions.add((at - self.start) * LANES));
            }
        }
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(at: *const f32, v: usize) -> L::F {
        // SAFETY: the caller's contract.
        unsafe { L::load(at.add(v * LANES * BLOCK)) }
    }
}

/// Makes the values of `block` from `first` on f32.
///
/// # Safety
/// As [`values`].
#[inline(always)]
unsafe fn widen<L: Lanes>(
    a: &Attention<'_>,
    block: &Range<usize>,
    first: usize,
    scratch: &mut AttendScratch,
) {
    debug_assert!(scratch.values.len() >= a.value_dim * BLOCK);
    let values = scratch.values.as_mut_ptr();
    // SAFETY: the caller's contract; a vector goes to its dimensions and its position in the block.
    unsafe {
        Paged(a).each(first..block.end, 0, |at, words| {
            for d in (0..a.value_dim).step_by(LANES) {
                let to = values.add(d * BLOCK + (at - block.start) * LANES);
                L::store(to, L::load_f16(words.add(d)));
            }
        });
    }
}

/// All queries, in tiles of registers.
///
/// # Safety
/// As [`values`]; `from` holds the block.
#[inline(always)]
unsafe fn tiles<L: Lanes, S: Values>(
    a: &Attention<'_>,
    block: &Range<usize>,
    queries: Range<usize>,
    weights: &[f32],
    from: &S,
    sums: *mut f32,
) {
    let mut query = queries.start;
    macro_rules! tiles {
        ($($n:literal of $v:literal if $fits:expr),*) => {$(
            while $fits && queries.end - query >= $n {
                // SAFETY: the caller's contract.
                unsafe { dimensions::<L, S, $v, $n>(a, block, query, weights, from, sums) };
                query += $n;
            }
        )*};
    }
    // Queries times vectors of dimensions: as many accumulators as the registers hold.
    if L::TILE >= 8 {
        tiles!(6 of 4 if true, 4 of 4 if true, 3 of 4 if true, 2 of 4 if true, 1 of 4 if true);
    } else {
        let fits = L::TILE >= 4;
        tiles!(6 of 1 if fits, 4 of 1 if fits, 3 of 1 if fits, 2 of 2 if fits, 1 of 4 if fits, 1 of 2 if true);
    }
}

/// All dimensions of `T` queries, `V` vectors (or what remains) at a time.
///
/// # Safety
/// As [`tiles`]; `T` queries from `query` on are of the part.
#[inline(always)]
unsafe fn dimensions<L: Lanes, S: Values, const V: usize, const T: usize>(
    a: &Attention<'_>,
    block: &Range<usize>,
    query: usize,
    weights: &[f32],
    from: &S,
    sums: *mut f32,
) {
    let mut d = 0;
    while d < a.value_dim {
        let left = (a.value_dim - d) / LANES;
        // SAFETY: the vectors from `d` on are inside a value.
        unsafe {
            if left >= V {
                tile::<L, S, V, T>(a, block, query, d, weights, from, sums);
                d += V * LANES;
            } else if left >= 2 {
                tile::<L, S, 2, T>(a, block, query, d, weights, from, sums);
                d += 2 * LANES;
            } else {
                tile::<L, S, 1, T>(a, block, query, d, weights, from, sums);
                d += LANES;
            }
        }
    }
}

/// Positions that all queries of a tile share run in registers; those that only earlier rows still
/// see come before and those that only later rows see after them, one by one: in order for every
/// query.
///
/// # Safety
/// As [`dimensions`]; the vectors from `d` on are inside a value.
#[inline(always)]
unsafe fn tile<L: Lanes, S: Values, const V: usize, const T: usize>(
    a: &Attention<'_>,
    block: &Range<usize>,
    query: usize,
    d: usize,
    weights: &[f32],
    from: &S,
    sums: *mut f32,
) {
    let seen: [Range<usize>; T] = std::array::from_fn(|t| a.seen(query + t, block));
    // No position may be shared where a window is shorter than the tile has rows.
    let end = seen[0].end;
    let shared = seen[T - 1].start.min(end)..end;
    // SAFETY: the caller's contract; ranges of positions are those that each query sees.
    unsafe {
        let weights = weights.as_ptr().add(query * BLOCK);
        let mut sums_of = [[L::splat(0.0); V]; T];
        for (t, seen) in seen.iter().enumerate() {
            let early = seen.start..shared.start;
            if !early.is_empty() {
                let weights = weights.add(t * BLOCK);
                let sums = std::array::from_mut(&mut sums_of[t]);
                add::<L, S, V, 1>(block, early, d, weights, from, sums);
            }
        }
        add::<L, S, V, T>(block, shared.clone(), d, weights, from, &mut sums_of);
        for (t, seen) in seen.iter().enumerate() {
            let late = shared.end.max(seen.start)..seen.end;
            if !late.is_empty() {
                let weights = weights.add(t * BLOCK);
                let sums = std::array::from_mut(&mut sums_of[t]);
                add::<L, S, V, 1>(block, late, d, weights, from, sums);
            }
        }
        for (t, vectors) in sums_of.into_iter().enumerate() {
            let sums = sums.add((query + t) * a.value_dim + d);
            for (v, vector) in vectors.into_iter().enumerate() {
                L::store(sums.add(v * LANES), vector);
            }
        }
    }
}

/// Adds `weight * value` of `positions` to `V` vectors of `T` queries.
///
/// # Safety
/// `weights` are those of the first query; positions are of the block and held by `from`.
#[inline(always)]
unsafe fn add<L: Lanes, S: Values, const V: usize, const T: usize>(
    block: &Range<usize>,
    positions: Range<usize>,
    d: usize,
    weights: *const f32,
    from: &S,
    sums: &mut [[L::F; V]; T],
) {
    let mut acc = *sums;
    // SAFETY: the caller's contract.
    unsafe {
        from.each(positions, d, |at, values| {
            let mut lanes = [L::splat(0.0); V];
            for v in 0..V {
                lanes[v] = S::load::<L>(values, v);
            }
            for t in 0..T {
                let weight = L::splat(*weights.add(t * BLOCK + at - block.start));
                for v in 0..V {
                    acc[t][v] = L::fma(weight, lanes[v], acc[t][v]);
                }
            }
        });
    }
    *sums = acc;
}
