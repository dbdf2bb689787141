//! Causal attention of a tile of queries over paged f16 keys and values.
//!
//! Queries of one KV head (grouped-query attention: `group` of them a token) and of several
//! consecutive tokens share every key and value that is loaded. What a query computes does not
//! depend on who shares, nor on how the work is split:
//!
//! 1. Positions are cut into blocks of [`BLOCK`], counted from the first of the sequence.
//! 2. In a block: scores, 16 absolute positions at a time (a lane each): products of even dimensions
//!    and of odd dimensions are summed apart, from first to last, then added ([`score`]). The exact
//!    maximum; exponentials; their sum in 16 lanes by position modulo 16, then a tree
//!    ([`soften`]). Values, added from the first position it sees to the last ([`weigh`]).
//! 3. Blocks are joined in their order, each sum scaled to the larger of both maxima; in the end the
//!    values are divided by the sum of weights.
//!
//! A slot behind a query's own position is never read on its behalf; what lies before its window
//! counts for nothing.

mod score;
mod soften;
mod weigh;

use std::ops::Range;

use crate::isa::{Kernels, Op};
use crate::lanes::{LANES, Lanes};

/// Positions of a block. A tile's scores and the block's keys and values stay in the second cache.
const BLOCK: usize = 128;

/// What one call attends to.
#[derive(Clone, Copy, Debug)]
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
}

/// Where the result goes.
#[derive(Debug)]
pub struct Attended<'a> {
    /// Row `r` starts at `r * stride` and receives `group * value_dim` values.
    pub values: &'a mut [f32],
    /// Distance between rows.
    pub stride: usize,
}

/// What attention over some blocks came to, before the division by the sum of weights.
#[derive(Clone, Debug, Default)]
pub struct AttendPart {
    /// Those that see a position of it; nothing is said of the others.
    queries: Range<usize>,
    /// The largest score of each query.
    top: Vec<f32>,
    /// The sum of its weights, which are relative to `top`.
    total: Vec<f32>,
    /// Weighted values, `[query][value_dim]`.
    sums: Vec<f32>,
}

/// Memory that calls reuse. Its contents mean nothing between calls.
#[derive(Clone, Debug, Default)]
pub struct AttendScratch {
    /// Scaled queries, `[query][key_dim]`.
    queries: Vec<f32>,
    /// Scores of a block, then weights: `[query][BLOCK]`.
    scores: Vec<f32>,
    /// Sixteen keys, `[dimension][position]`.
    keys: Vec<f32>,
    /// The values of a block, `[value_dim / 16][BLOCK][16]`.
    values: Vec<f32>,
    /// Stands in for keys behind the last position.
    zeros: Vec<u16>,
    /// Of the block at hand.
    part: AttendPart,
    /// Of all blocks up to it.
    joined: AttendPart,
}

impl Attention<'_> {
    /// The blocks of positions that its rows see. [`Kernels::attend_blocks`] may do them apart.
    pub fn blocks(&self) -> Range<usize> {
        self.start(self.end(0)) / BLOCK..self.positions().div_ceil(BLOCK)
    }

    /// Panics if a dimension is not a positive multiple of 16 or a slice is shorter than its shape
    /// says.
    fn check(&self) {
        for dim in [self.key_dim, self.value_dim] {
            assert!(dim > 0 && dim.is_multiple_of(LANES), "dimensions {dim}");
        }
        assert!(
            self.rows > 0 && self.group > 0 && self.page_size > 0 && self.window > 0,
            "empty attention"
        );
        let pages = self.positions().div_ceil(self.page_size);
        assert!(
            pages <= self.keys.len() && pages <= self.values.len(),
            "pages of the positions"
        );
        let page = self.page_size * self.key_dim;
        assert!(
            self.keys.iter().all(|run| run.len() == page),
            "keys of a page"
        );
        let page = self.page_size * self.value_stride;
        assert!(
            self.value_dim <= self.value_stride && self.values.iter().all(|run| run.len() == page),
            "values of a page"
        );
        let row = self.group * self.key_dim;
        assert!(
            self.queries.len() >= (self.rows - 1) * self.query_stride + row,
            "queries"
        );
    }

    fn positions(&self) -> usize {
        self.first_position + self.rows
    }

    fn query_count(&self) -> usize {
        self.rows * self.group
    }

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

    /// What `query` attends to of `block`.
    #[inline(always)]
    fn seen(&self, query: usize, block: &Range<usize>) -> Range<usize> {
        let end = self.end(query);
        self.start(end).max(block.start)..end.min(block.end)
    }

    /// The queries that attend to a position of `block`: both ends of what they see only grow.
    fn seeing(&self, block: &Range<usize>) -> Range<usize> {
        let first = block.start.saturating_sub(self.first_position);
        let last = block.end.saturating_add(self.window - 1);
        let behind = last.saturating_sub(self.first_position).min(self.rows);
        first * self.group..behind * self.group
    }
}

impl Kernels {
    /// Computes `softmax(cap(scale * q · k)) · v` for every row and head of the group. Panics if a
    /// dimension is not a positive multiple of 16 or a slice is shorter than its shape says.
    pub fn attend(self, a: &Attention<'_>, out: Attended<'_>, scratch: &mut AttendScratch) {
        a.check();
        out.check(a);
        scratch.prepare(a);
        let mut joined = std::mem::take(&mut scratch.joined);
        joined.begin(a);
        for block in a.blocks() {
            let mut part = std::mem::take(&mut scratch.part);
            self.run(Block {
                a,
                block,
                part: &mut part,
                scratch,
            });
            self.run(Join {
                to: &mut joined,
                part: &part,
                dim: a.value_dim,
            });
            scratch.part = part;
        }
        joined.finish(a, out);
        scratch.joined = joined;
    }

    /// What [`Kernels::attend`] computes of each of `blocks`, for [`Kernels::join`]: so that several
    /// threads can share one row. Panics as `attend` does, and if there are not as many parts.
    pub fn attend_blocks(
        self,
        a: &Attention<'_>,
        blocks: Range<usize>,
        parts: &mut [AttendPart],
        scratch: &mut AttendScratch,
    ) {
        a.check();
        assert!(
            a.blocks().start <= blocks.start && blocks.end <= a.blocks().end,
            "blocks"
        );
        assert_eq!(blocks.len(), parts.len(), "parts");
        scratch.prepare(a);
        for (block, part) in blocks.zip(parts) {
            self.run(Block {
                a,
                block,
                part,
                scratch,
            });
        }
    }

    /// Joins the parts of all blocks, in their order: bit for bit what [`Kernels::attend`] gives.
    pub fn join<'p>(
        self,
        a: &Attention<'_>,
        parts: impl Iterator<Item = &'p AttendPart>,
        out: Attended<'_>,
        scratch: &mut AttendScratch,
    ) {
        out.check(a);
        let joined = &mut scratch.joined;
        joined.begin(a);
        for part in parts {
            self.run(Join {
                to: joined,
                part,
                dim: a.value_dim,
            });
        }
        joined.finish(a, out);
    }
}

/// One block, for all queries that see it.
struct Block<'a, 'b> {
    a: &'b Attention<'a>,
    block: usize,
    part: &'b mut AttendPart,
    scratch: &'b mut AttendScratch,
}

impl Op for Block<'_, '_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Block {
            a,
            block,
            part,
            scratch,
        } = self;
        let block = block * BLOCK..((block + 1) * BLOCK).min(a.positions());
        part.resize(a.seeing(&block), a.query_count(), a.value_dim);
        // SAFETY: the CPU has L's features; `check` saw the pages, `prepare` and `resize` sized
        // scratch and part.
        unsafe {
            score::scores::<L>(a, &block, part.queries.clone(), scratch);
            for query in part.queries.clone() {
                let seen = a.seen(query, &block);
                let seen = seen.start - block.start..seen.end - block.start;
                let row = &mut scratch.scores[query * BLOCK..][..BLOCK];
                (part.top[query], part.total[query]) = soften::weights::<L>(row, seen, a.cap);
            }
            weigh::values::<L>(a, &block, part, scratch);
        }
    }
}

/// Adds the part of a block to those before it.
struct Join<'a> {
    to: &'a mut AttendPart,
    part: &'a AttendPart,
    dim: usize,
}

impl Op for Join<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Join { to, part, dim } = self;
        for query in part.queries.clone() {
            let top = to.top[query].max(part.top[query]);
            // SAFETY: the CPU has L's features; rows have `dim` values, a multiple of 16.
            unsafe {
                let keep = soften::exp::<L>(to.top[query] - top);
                let take = soften::exp::<L>(part.top[query] - top);
                to.top[query] = top;
                to.total[query] = to.total[query] * keep + part.total[query] * take;
                let sums = to.sums[query * dim..][..dim].chunks_exact_mut(LANES);
                let more = part.sums[query * dim..][..dim].chunks_exact(LANES);
                let (keep, take) = (L::splat(keep), L::splat(take));
                for (sums, more) in sums.zip(more) {
                    let more = L::mul(L::load(more.as_ptr()), take);
                    let sum = L::fma(L::load(sums.as_ptr()), keep, more);
                    L::store(sums.as_mut_ptr(), sum);
                }
            }
        }
    }
}

impl AttendScratch {
    fn prepare(&mut self, a: &Attention<'_>) {
        self.queries.clear();
        for row in 0..a.rows {
            let source = &a.queries[row * a.query_stride..][..a.group * a.key_dim];
            self.queries.extend(source.iter().map(|q| q * a.scale));
        }
        let scores = a.query_count() * BLOCK;
        if self.scores.len() < scores {
            self.scores.resize(scores, 0.0);
        }
        if self.values.len() < a.value_dim * BLOCK {
            self.values.resize(a.value_dim * BLOCK, 0.0);
        }
        self.keys.resize(a.key_dim * LANES, 0.0);
        self.zeros.resize(a.key_dim, 0);
    }
}

impl AttendPart {
    fn resize(&mut self, queries: Range<usize>, all: usize, dim: usize) {
        self.queries = queries;
        self.top.resize(all, 0.0);
        self.total.resize(all, 0.0);
        self.sums.resize(all * dim, 0.0);
    }

    /// Nothing yet, of every query.
    fn begin(&mut self, a: &Attention<'_>) {
        let all = a.query_count();
        self.resize(0..all, all, a.value_dim);
        self.top.fill(f32::NEG_INFINITY);
        self.total.fill(0.0);
        self.sums.fill(0.0);
    }

    /// Divides by the sums of weights and writes the rows.
    fn finish(&self, a: &Attention<'_>, out: Attended<'_>) {
        for row in 0..a.rows {
            let out = &mut out.values[row * out.stride..][..a.group * a.value_dim];
            for (head, out) in out.chunks_exact_mut(a.value_dim).enumerate() {
                let query = row * a.group + head;
                let inverse = 1.0 / self.total[query];
                let sums = &self.sums[query * a.value_dim..][..a.value_dim];
                out.iter_mut()
                    .zip(sums)
                    .for_each(|(out, sum)| *out = sum * inverse);
            }
        }
    }
}

impl Attended<'_> {
    fn check(&self, a: &Attention<'_>) {
        let row = a.group * a.value_dim;
        assert!(self.values.len() >= (a.rows - 1) * self.stride + row, "out");
    }
}

#[cfg(test)]
mod tests;
