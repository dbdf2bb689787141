//! `out[token][row] = sum over columns of weights[row][column] * rows[token][column]`.

use std::marker::PhantomData;
use std::ops::Range;

use crate::isa::{Kernels, Op};
use crate::lanes::{LANES, Lanes, TokenBlock};
use crate::layout::{ForFormat, Format};
use crate::matrix::{F32_BLOCK, GROUP, Matrix, PackedF32, PackedInt8};
use crate::quantize::{Int8Rows, Rows};

/// Where a product is written: `values[token * token_stride + (group - first) * group_stride ..]`
/// receives the 16 (in the last group perhaps fewer) outputs of one group for one token.
///
/// Token-major output of a whole matrix: strides (`matrix.rows()`, 16). One thread's share of the
/// groups, contiguous: strides (16, `16 * tokens`).
#[derive(Debug)]
pub struct Target<'a> {
    /// Receives the outputs.
    pub values: &'a mut [f32],
    /// Distance between tokens.
    pub token_stride: usize,
    /// Distance between groups.
    pub group_stride: usize,
}

impl Kernels {
    /// Multiplies `rows` by the weight rows of `groups` and writes to `target`. Panics if the
    /// forms do not match, the columns differ, or `target` is too short.
    pub fn matmul(
        self,
        weights: &Matrix,
        rows: Rows<'_>,
        groups: Range<usize>,
        target: Target<'_>,
    ) {
        assert!(
            groups.start <= groups.end && groups.end <= weights.groups(),
            "{groups:?}"
        );
        assert_eq!(
            weights.cols(),
            rows.cols(),
            "columns of weights and activations"
        );
        let tokens = rows.rows();
        if groups.is_empty() || tokens == 0 {
            return;
        }
        let last_group = groups.len() - 1;
        let last_width = (weights.rows() - (groups.end - 1) * GROUP).min(GROUP);
        let end = |group: usize, width: usize| {
            let token = (tokens - 1).saturating_mul(target.token_stride);
            token
                .saturating_add(group.saturating_mul(target.group_stride))
                .saturating_add(width)
        };
        let mut needed = end(last_group, last_width);
        if last_group > 0 {
            needed = needed.max(end(last_group - 1, GROUP));
        }
        assert!(
            needed <= target.values.len(),
            "target: {needed} > {}",
            target.values.len()
        );
        match (weights, rows) {
            (Matrix::F32(weights), Rows::F32 { values, .. }) => {
                self.run(F32Product {
                    weights,
                    values,
                    groups,
                    target,
                });
            }
            (Matrix::Int8(weights), Rows::Int8(x)) => weights.layout().run(AnyInt8 {
                kernels: self,
                weights,
                x,
                groups,
                target,
            }),
            (Matrix::F32(_), Rows::Int8(_)) => panic!("f32 weights need f32 activations"),
            (Matrix::Int8(_), Rows::F32 { .. }) => panic!("int8 weights need int8 activations"),
        }
    }
}

impl Target<'_> {
    /// Stores one group's lanes for one token; lanes beyond `width` are padding.
    ///
    /// # Safety
    /// `Kernels::matmul` checked the largest token and group; the CPU has L's features.
    #[inline(always)]
    unsafe fn put<L: Lanes>(&mut self, token: usize, group: usize, width: usize, lanes: L::F) {
        let at = token * self.token_stride + group * self.group_stride;
        debug_assert!(at + width <= self.values.len());
        // SAFETY: `at + width` is inside `values`.
        unsafe {
            let p = self.values.as_mut_ptr().add(at);
            if width == LANES {
                L::store(p, lanes);
            } else {
                let mut all = [0f32; LANES];
                L::store(all.as_mut_ptr(), lanes);
                std::ptr::copy_nonoverlapping(all.as_ptr(), p, width);
            }
        }
    }
}

/// Runs `$tile::<T>(first token)` over all tokens: tiles of the ISA's size, then smaller ones.
macro_rules! tiles {
    ($size:expr, $tokens:expr, $tile:ident) => {{
        let (size, tokens, mut t) = ($size, $tokens, 0);
        while size >= 8 && t + 8 <= tokens {
            $tile!(8, t);
            t += 8;
        }
        while size >= 4 && t + 4 <= tokens {
            $tile!(4, t);
            t += 4;
        }
        while t + 2 <= tokens {
            $tile!(2, t);
            t += 2;
        }
        if t < tokens {
            $tile!(1, t);
        }
    }};
}

struct F32Product<'a> {
    weights: &'a PackedF32,
    values: &'a [f32],
    groups: Range<usize>,
    target: Target<'a>,
}

impl Op for F32Product<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let (rows, cols) = (self.weights.rows(), self.weights.cols());
        let first = self.groups.start;
        for group in self.groups.clone() {
            let weights = self.weights.group(group);
            let width = (rows - group * GROUP).min(GROUP);
            macro_rules! tile {
                ($n:literal, $t:expr) => {{
                    let x: [*const f32; $n] =
                        std::array::from_fn(|i| self.values[($t + i) * cols..][..cols].as_ptr());
                    // SAFETY: every row and the group were just checked to have `cols` columns.
                    let out = unsafe { f32_tile::<L, $n>(weights, &x, cols) };
                    for (i, lanes) in out.into_iter().enumerate() {
                        // SAFETY: token and group are within what `matmul` checked.
                        unsafe { self.target.put::<L>($t + i, group - first, width, lanes) };
                    }
                }};
            }
            tiles!(L::TILE, self.values.len() / cols, tile);
        }
    }
}

/// Dots of 16 weight rows (a lane each) with `T` tokens.
///
/// # Safety
/// `weights` is valid for `cols * 16` f32, each of `x` for `cols`; the CPU has L's features.
#[inline(always)]
unsafe fn f32_tile<L: Lanes, const T: usize>(
    weights: *const f32,
    x: &[*const f32; T],
    cols: usize,
) -> [L::F; T] {
    // SAFETY: columns stay below `cols`.
    unsafe {
        let mut total = [L::splat(0.0); T];
        let mut start = 0;
        while start < cols {
            let end = cols.min(start + F32_BLOCK);
            let mut acc = [L::splat(0.0); T];
            for k in start..end {
                let w = L::load(weights.add(k * LANES));
                for t in 0..T {
                    acc[t] = L::fma(w, L::splat(*x[t].add(k)), acc[t]);
                }
            }
            for t in 0..T {
                total[t] = L::add(total[t], acc[t]);
            }
            start = end;
        }
        total
    }
}

/// A product whose format is not yet a type.
struct AnyInt8<'a> {
    kernels: Kernels,
    weights: &'a PackedInt8,
    x: &'a Int8Rows,
    groups: Range<usize>,
    target: Target<'a>,
}

impl ForFormat for AnyInt8<'_> {
    fn run<K: Format>(self) {
        self.kernels.run(Int8Product {
            format: PhantomData::<K>,
            weights: self.weights,
            x: self.x,
            groups: self.groups,
            target: self.target,
        });
    }
}

struct Int8Product<'a, K> {
    format: PhantomData<K>,
    weights: &'a PackedInt8,
    x: &'a Int8Rows,
    groups: Range<usize>,
    target: Target<'a>,
}

impl<K: Format> Op for Int8Product<'_, K> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let Int8Product { x, weights, .. } = self;
        let rows = weights.rows();
        let first = self.groups.start;
        for group in self.groups.clone() {
            let weights = weights.group(group);
            let width = (rows - group * GROUP).min(GROUP);
            macro_rules! tile {
                ($n:literal, $t:expr) => {{
                    let tokens: [*const TokenBlock; $n] =
                        std::array::from_fn(|i| x.row($t + i).as_ptr());
                    // SAFETY: group and rows were just checked to hold `blocks` blocks, which are
                    // equal because `matmul` compared the columns.
                    let out = unsafe { L::int8_tile::<K, $n>(weights, &tokens) };
                    for (i, lanes) in out.into_iter().enumerate() {
                        // SAFETY: token and group are within what `matmul` checked.
                        unsafe { self.target.put::<L>($t + i, group - first, width, lanes) };
                    }
                }};
            }
            tiles!(L::INT8_TILE, x.rows(), tile);
        }
    }
}

#[cfg(test)]
mod tests;
