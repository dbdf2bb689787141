//! Activations in the two forms that matrix products take.

use crate::isa::{Kernels, Op};
use crate::lanes::{LANES, Lanes, TokenBlock};
use crate::matrix::BLOCK;

/// Rows of activations quantized to int8 in runs of 16: value = scale * code.
///
/// 16 and not 32, the weights' block: on SmolLM2-135M that takes the mean error of log-probabilities
/// from 0.041 to 0.029 for one more multiply-add a block and token.
#[derive(Clone, Debug, Default)]
pub struct Int8Rows {
    rows: usize,
    cols: usize,
    blocks: Vec<TokenBlock>,
}

impl Int8Rows {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The blocks of one row.
    pub(crate) fn row(&self, row: usize) -> &[TokenBlock] {
        let blocks = self.cols / BLOCK;
        &self.blocks[row * blocks..][..blocks]
    }
}

/// Activations, one row a token.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Row-major f32, for [`crate::Matrix::F32`].
    F32 {
        /// `rows * cols` values.
        values: &'a [f32],
        /// Values in a row.
        cols: usize,
    },
    /// Quantized, for [`crate::Matrix::Int8`].
    Int8(&'a Int8Rows),
}

impl Rows<'_> {
    /// Tokens.
    pub fn rows(&self) -> usize {
        match self {
            Rows::F32 { values, cols } => values.len() / cols,
            Rows::Int8(q) => q.rows,
        }
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        match self {
            Rows::F32 { cols, .. } => *cols,
            Rows::Int8(q) => q.cols,
        }
    }
}

impl Kernels {
    /// Quantizes row-major `values` of `cols` columns into `out`, reusing its memory. A run of
    /// 16 that holds a value that is not finite gets a NaN scale. Panics unless `cols` is a positive
    /// multiple of [`BLOCK`] that divides the length.
    pub fn quantize(self, values: &[f32], cols: usize, out: &mut Int8Rows) {
        assert!(
            cols > 0 && cols.is_multiple_of(BLOCK),
            "{cols} columns are not whole blocks"
        );
        assert!(values.len().is_multiple_of(cols), "whole rows");
        out.rows = values.len() / cols;
        out.cols = cols;
        out.blocks
            .resize(values.len() / BLOCK, TokenBlock::default());
        let blocks = &mut out.blocks;
        self.run(Quantize { values, blocks });
    }
}

struct Quantize<'a> {
    values: &'a [f32],
    blocks: &'a mut [TokenBlock],
}

impl Op for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for (values, block) in self.values.chunks_exact(BLOCK).zip(self.blocks) {
            let TokenBlock {
                codes,
                scales,
                sums,
                total,
            } = block;
            let halves = values
                .chunks_exact(LANES)
                .zip(codes.chunks_exact_mut(LANES));
            for (half, (values, codes)) in halves.enumerate() {
                // SAFETY: both chunks have exactly 16 elements; the CPU has L's features.
                (scales[half], sums[half]) =
                    unsafe { L::quantize_half(values.as_ptr(), codes.as_mut_ptr()) };
            }
            *total = scales[0] * sums[0] as f32 + scales[1] * sums[1] as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use proptest::prelude::*;

    fn quantized(isa: Isa, values: &[f32]) -> Int8Rows {
        let mut out = Int8Rows::default();
        Kernels::new(isa)
            .unwrap()
            .quantize(values, values.len(), &mut out);
        out
    }

    proptest! {
        #[test]
        fn all_instruction_sets_quantize_alike(values in prop::collection::vec(-1e4f32..1e4, 64)) {
            let reference = quantized(Isa::Portable, &values).blocks;
            for (block, values) in reference.iter().zip(values.chunks(BLOCK)) {
                for (i, value) in values.iter().enumerate() {
                    let step = block.scales[i / LANES];
                    let error = (f32::from(block.codes[i]) * step - value).abs();
                    prop_assert!(error <= step * 0.5001);
                }
                let sum: i32 = block.codes[LANES..].iter().map(|c| i32::from(*c)).sum();
                prop_assert_eq!(sum, block.sums[1]);
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                prop_assert_eq!(&quantized(isa, &values).blocks, &reference);
            }
        }
    }

    #[test]
    fn what_is_not_finite_poisons_its_block_only() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 64];
                values[40] = bad;
                let got = quantized(isa, &values);
                let poisoned: Vec<bool> = got
                    .blocks
                    .iter()
                    .flat_map(|b| b.scales)
                    .map(f32::is_nan)
                    .collect();
                assert_eq!(poisoned, [false, false, true, false], "{isa} {bad}");
                assert!(got.blocks[0].total.is_finite() && got.blocks[1].total.is_nan());
            }
            assert_eq!(quantized(isa, &[0.0; 32]).blocks, [TokenBlock::default()]);
        }
    }
}
