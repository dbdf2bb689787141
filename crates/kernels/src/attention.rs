//! Causal attention of a tile of queries over paged f16 keys and values.
//!
//! Queries of one KV head (grouped-query attention: `group` of them a token) and of several
//! consecutive tokens share every key and value that is loaded. What a query computes does not
//! depend on who shares:
//!
//! 1. Scores, 16 absolute positions at a time (a lane each): products of even dimensions and of odd
//!    dimensions are summed apart, from first to last, then added.
//! 2. The exact maximum; exponentials; their sum in 16 lanes by position modulo 16, then a tree.
//! 3. Values, added from the first position it sees to the query's own, then divided by the sum.
//!
//! A slot behind a query's own position is never read on its behalf; what lies before its window
//! counts for nothing.

use crate::isa::{Kernels, Op};
use crate::lanes::{LANES, Lanes};

/// What one call attends to, and where the result goes.
#[derive(Debug)]
pub struct Attention<'a> {
    /// Row `r` starts at `r * query_stride` and has `group * key_dim` values.
    pub queries: &'a [f32],
    /// Distance between rows of `queries`.
    pub query_stride: usize,
    /// Consecutive tokens of one sequence.
    pub rows: usize,
    /// Query heads that share this KV head.
    pub group: usize,
    /// Values of a query and of a key: a multiple of 16.
    pub key_dim: usize,
    /// Values of a value: a multiple of 16.
    pub value_dim: usize,
    /// Distance between the values of two slots: `value_dim`, or more where a value is the first
    /// part of something.
    pub value_stride: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// Scores then become `cap * tanh(score / cap)`; 0 for none.
    pub cap: f32,
    /// A row attends to so many positions, its own included; at least 1, `usize::MAX` for all.
    pub window: usize,
    /// Absolute position of the first row; row `r` attends to positions up to `first_position + r`.
    pub first_position: usize,
    /// Token slots in a page.
    pub page_size: usize,
    /// This KV head's keys, one slice of `page_size * key_dim` f16 for each page, in order.
    pub keys: &'a [&'a [u16]],
    /// This KV head's values, one slice of `page_size * value_stride` f16 for each page.
    pub values: &'a [&'a [u16]],
    /// Row `r` starts at `r * out_stride` and receives `group * value_dim` values.
    pub out: &'a mut [f32],
    /// Distance between rows of `out`.
    pub out_stride: usize,
}

/// Memory that calls reuse. Its contents mean nothing between calls.
#[derive(Clone, Debug, Default)]
pub struct AttendScratch {
    /// Scaled queries, `[query][key_dim]`.
    queries: Vec<f32>,
    /// Scores, then weights: `[query][position]`, each row padded to whole lanes.
    scores: Vec<f32>,
    /// Sixteen keys, `[dimension][position]`.
    keys: Vec<f32>,
    /// Unnormalised results, `[query][value_dim]`.
    sums: Vec<f32>,
    /// Stands in for keys behind the last position.
    zeros: Vec<u16>,
}

impl Kernels {
    /// Computes `softmax(cap(scale * q · k)) · v` for every row and head of the group. Panics if a
    /// dimension is not a positive multiple of 16 or a slice is shorter than its shape says.
    pub fn attend(self, attention: Attention<'_>, scratch: &mut AttendScratch) {
        let a = &attention;
        for dim in [a.key_dim, a.value_dim] {
            assert!(dim > 0 && dim.is_multiple_of(LANES), "dimensions {dim}");
        }
        assert!(
            a.rows > 0 && a.group > 0 && a.page_size > 0 && a.window > 0,
            "empty attention"
        );
        let pages = (a.first_position + a.rows).div_ceil(a.page_size);
        assert!(
            pages <= a.keys.len() && pages <= a.values.len(),
            "pages of the positions"
        );
        let page = a.page_size * a.key_dim;
        assert!(a.keys.iter().all(|run| run.len() == page), "keys of a page");
        let page = a.page_size * a.value_stride;
        assert!(
            a.value_dim <= a.value_stride && a.values.iter().all(|run| run.len() == page),
            "values of a page"
        );
        let row = a.group * a.key_dim;
        assert!(
            a.queries.len() >= (a.rows - 1) * a.query_stride + row,
            "queries"
        );
        let row = a.group * a.value_dim;
        assert!(a.out.len() >= (a.rows - 1) * a.out_stride + row, "out");
        self.run(Attend { attention, scratch });
    }
}

impl Attention<'_> {
    /// The position behind the last one that `query` attends to.
    #[inline(always)]
    fn end(&self, query: usize) -> usize {
        self.first_position + query / self.group + 1
    }

    /// The first position that a query attends to whose last one lies before `end`.
    #[inline(always)]
    fn start(&self, end: usize) -> usize {
        end.saturating_sub(self.window)
    }
}

struct Attend<'a, 'b> {
    attention: Attention<'a>,
    scratch: &'b mut AttendScratch,
}

impl Op for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Attend {
            mut attention,
            scratch,
        } = self;
        let positions = attention.first_position + attention.rows;
        let stride = positions.next_multiple_of(LANES);
        scratch.prepare(&attention, stride);
        // SAFETY: the CPU has L's features; `attend` checked the pages, `prepare` sized scratch.
        unsafe {
            score::<L>(&attention, scratch, stride);
            let queries = attention.rows * attention.group;
            for query in 0..queries {
                let own = attention.end(query);
                let start = attention.start(own);
                let (first, last) = (start / LANES * LANES, own.next_multiple_of(LANES));
                let row = &mut scratch.scores[query * stride..][first..last];
                if attention.cap > 0.0 {
                    crate::elementwise::cap_in::<L>(row, attention.cap);
                }
                row[..start - first].fill(f32::NEG_INFINITY);
                let total = soften::<L>(row, own - first);
                // The scaled queries are used up: their memory takes the sums of weights.
                scratch.queries[query] = total;
            }
            weigh::<L>(&attention, scratch, stride);
        }
        finish(&mut attention, scratch);
    }
}

impl AttendScratch {
    fn prepare(&mut self, a: &Attention<'_>, stride: usize) {
        let queries = a.rows * a.group;
        self.queries.clear();
        for row in 0..a.rows {
            let source = &a.queries[row * a.query_stride..][..a.group * a.key_dim];
            self.queries.extend(source.iter().map(|q| q * a.scale));
        }
        if self.scores.len() < queries * stride {
            self.scores.resize(queries * stride, 0.0);
        }
        self.keys.resize(a.key_dim * LANES, 0.0);
        self.zeros.resize(a.key_dim, 0);
        self.sums.clear();
        self.sums.resize(queries * a.value_dim, 0.0);
    }
}

/// Step 1 for all queries: a block of 16 keys is transposed once and used by every query that
/// attends to at least one of them.
#[inline(always)]
unsafe fn score<L: Lanes>(a: &Attention<'_>, scratch: &mut AttendScratch, stride: usize) {
    let positions = a.first_position + a.rows;
    let queries = a.rows * a.group;
    let begin = a.start(a.end(0)) / LANES * LANES;
    for start in (begin..positions).step_by(LANES) {
        let keys: [*const u16; LANES] = std::array::from_fn(|i| {
            let at = start + i;
            let slot = if at < positions {
                &a.keys[at / a.page_size][at % a.page_size * a.key_dim..]
            } else {
                &scratch.zeros[..]
            };
            slot[..a.key_dim].as_ptr()
        });
        // SAFETY: 16 rows of `key_dim` f16; `keys` holds `key_dim * 16` f32.
        unsafe {
            for d in (0..a.key_dim).step_by(LANES) {
                L::transpose_f16(&keys, d, scratch.keys.as_mut_ptr().add(d * LANES));
            }
        }
        // Rows before `first` end before this block.
        let first = start.saturating_sub(a.first_position) * a.group;
        macro_rules! tile {
            ($n:literal, $q:expr) => {
                // SAFETY: queries `$q..$q + $n` and block `start` are inside scratch.
                unsafe { score_tile::<L, $n>(a.key_dim, scratch, $q, start, stride) }
            };
        }
        let mut query = first;
        while L::TILE >= 8 && query + 8 <= queries {
            tile!(8, query);
            query += 8;
        }
        while L::TILE >= 4 && query + 4 <= queries {
            tile!(4, query);
            query += 4;
        }
        while L::TILE >= 4 && query + 3 <= queries {
            tile!(3, query);
            query += 3;
        }
        while query < queries {
            tile!(1, query);
            query += 1;
        }
    }
}

/// # Safety
/// Scratch holds `T` queries from `query` on and their scores from `start` on; CPU has L.
#[inline(always)]
unsafe fn score_tile<L: Lanes, const T: usize>(
    key_dim: usize,
    scratch: &mut AttendScratch,
    query: usize,
    start: usize,
    stride: usize,
) {
    debug_assert!((query + T) * key_dim <= scratch.queries.len());
    debug_assert!((query + T - 1) * stride + start + LANES <= scratch.scores.len());
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
        let scores = scratch.scores.as_mut_ptr().add(query * stride + start);
        for t in 0..T {
            L::store(scores.add(t * stride), L::add(even[t], odd[t]));
        }
    }
}

/// Step 2 for one query: scores to exponentials in place; returns their sum. Lanes from `own` on
/// get weight zero.
///
/// # Safety
/// The CPU has L's features.
#[inline(always)]
unsafe fn soften<L: Lanes>(scores: &mut [f32], own: usize) -> f32 {
    scores[own..].fill(f32::NEG_INFINITY);
    // SAFETY: chunks have 16 elements.
    unsafe {
        let mut top = L::splat(f32::NEG_INFINITY);
        for chunk in scores.chunks_exact(LANES) {
            top = L::max(L::load(chunk.as_ptr()), top);
        }
        let top = L::splat(L::largest(top));
        let mut total = L::splat(0.0);
        for chunk in scores.chunks_exact_mut(LANES) {
            let weight = L::exp(L::sub(L::load(chunk.as_ptr()), top));
            L::store(chunk.as_mut_ptr(), weight);
            total = L::add(total, weight);
        }
        L::sum(total)
    }
}

/// Step 3 for all queries, 64 (or the remaining 16s) dimensions at a time.
#[inline(always)]
unsafe fn weigh<L: Lanes>(a: &Attention<'_>, scratch: &mut AttendScratch, stride: usize) {
    let mut d = 0;
    while d < a.value_dim {
        // SAFETY: `d` and the vectors from it on are inside a head.
        unsafe {
            if d + 4 * LANES <= a.value_dim && L::TILE >= 4 {
                weigh_dimensions::<L, 4>(a, scratch, stride, d);
                d += 4 * LANES;
            } else if d + 2 * LANES <= a.value_dim {
                weigh_dimensions::<L, 2>(a, scratch, stride, d);
                d += 2 * LANES;
            } else {
                weigh_dimensions::<L, 1>(a, scratch, stride, d);
                d += LANES;
            }
        }
    }
}

/// Positions that all queries of a register tile share run in registers; those that only earlier
/// rows still see come before and those that only later rows see after them, one by one: in order
/// for every query.
#[inline(always)]
unsafe fn weigh_dimensions<L: Lanes, const V: usize>(
    a: &Attention<'_>,
    scratch: &mut AttendScratch,
    stride: usize,
    d: usize,
) {
    let queries = a.rows * a.group;
    let mut query = 0;
    macro_rules! tile {
        ($n:literal) => {{
            let (first, last) = (a.start(a.end(query + $n - 1)), a.end(query));
            // No position may be shared where a window is shorter than the tile has rows.
            let shared = first.min(last)..last;
            // SAFETY: queries `query..query + n` are inside scratch, positions inside the pages.
            unsafe {
                for early in query..query + $n {
                    let start = a.start(a.end(early));
                    if start < shared.start {
                        weigh_tile::<L, V, 1>(a, scratch, stride, d, early, start..shared.start);
                    }
                }
                weigh_tile::<L, V, $n>(a, scratch, stride, d, query, shared.clone());
                for later in query..query + $n {
                    let begin = shared.end.max(a.start(a.end(later)));
                    if a.end(later) > begin {
                        weigh_tile::<L, V, 1>(a, scratch, stride, d, later, begin..a.end(later));
                    }
                }
            }
            query += $n;
        }};
    }
    while L::TILE >= 8 && query + 6 <= queries {
        tile!(6);
    }
    while L::TILE >= 8 && query + 3 <= queries {
        tile!(3);
    }
    while query < queries {
        tile!(1);
    }
}

/// Adds `weight * value` of `positions` to `V` vectors of `T` queries.
///
/// # Safety
/// Scratch holds the queries; `positions` are inside the pages and the rows' scores; the vectors
/// from `d` on are inside a head; the CPU has L's features.
#[inline(always)]
unsafe fn weigh_tile<L: Lanes, const V: usize, const T: usize>(
    a: &Attention<'_>,
    scratch: &mut AttendScratch,
    stride: usize,
    d: usize,
    query: usize,
    positions: std::ops::Range<usize>,
) {
    debug_assert!((query + T) * a.value_dim <= scratch.sums.len());
    let slots = a.value_stride;
    // SAFETY: the caller's contract; every page slice has `page_size * slots` f16.
    unsafe {
        let weights = scratch.scores.as_ptr().add(query * stride);
        let sums = scratch.sums.as_mut_ptr().add(query * a.value_dim + d);
        let mut acc = [[L::splat(0.0); V]; T];
        for t in 0..T {
            for v in 0..V {
                acc[t][v] = L::load(sums.add(t * a.value_dim + v * LANES));
            }
        }
        let mut at = positions.start;
        while at < positions.end {
            let slot = at % a.page_size;
            let end = positions.end.min(at - slot + a.page_size);
            let mut value = a.values[at / a.page_size].as_ptr().add(slot * slots + d);
            while at < end {
                let mut lanes = [L::splat(0.0); V];
                for v in 0..V {
                    lanes[v] = L::load_f16(value.add(v * LANES));
                }
                for t in 0..T {
                    let weight = L::splat(*weights.add(t * stride + at));
                    for v in 0..V {
                        acc[t][v] = L::fma(weight, lanes[v], acc[t][v]);
                    }
                }
                at += 1;
                // `wrapping`: after the last slot this points one past the page's run.
                value = value.wrapping_add(slots);
            }
        }
        for t in 0..T {
            for v in 0..V {
                L::store(sums.add(t * a.value_dim + v * LANES), acc[t][v]);
            }
        }
    }
}

/// Divides by the sums of weights and writes the rows.
fn finish(a: &mut Attention<'_>, scratch: &AttendScratch) {
    for row in 0..a.rows {
        let out = &mut a.out[row * a.out_stride..][..a.group * a.value_dim];
        for (head, out) in out.chunks_exact_mut(a.value_dim).enumerate() {
            let query = row * a.group + head;
            let inverse = 1.0 / scratch.queries[query];
            let sums = &scratch.sums[query * a.value_dim..][..a.value_dim];
            out.iter_mut()
                .zip(sums)
                .for_each(|(out, sum)| *out = sum * inverse);
        }
    }
}

#[cfg(test)]
mod tests;
