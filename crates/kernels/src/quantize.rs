//! Activations in the two forms that matrix products take.

use crate::isa::{Kernels, Op};
use crate::lanes::{LANES, Lanes, TokenRow};
use crate::matrix::BLOCK;

/// Rows of activations quantized to int8 in runs of 16: value = scale * code.
///
/// 16 and not 32, the weights' block: on SmolLM2-135M that takes the mean error of log-probabilities
/// from 0.041 to 0.029 for one more multiply-add a block and token.
#[derive(Clone, Debug, Default)]
pub struct Int8Rows {
    rows: usize,
    cols: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    totals: Vec<f32>,
}

impl Int8Rows {
    /// The pointers of one row, checked to hold all of its blocks.
    pub(crate) fn row(&self, row: usize) -> TokenRow {
        let blocks = self.cols / BLOCK;
        TokenRow {
            codes: self.codes[row * self.cols..][..self.cols].as_ptr(),
            scales: self.scales[row * 2 * blocks..][..2 * blocks].as_ptr(),
            sums: self.sums[row * 2 * blocks..][..2 * blocks].as_ptr(),
            totals: self.totals[row * blocks..][..blocks].as_ptr(),
        }
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
        out.codes.resize(values.len(), 0);
        out.scales.resize(values.len() / LANES, 0.0);
        out.sums.resize(values.len() / LANES, 0);
        out.totals.resize(values.len() / BLOCK, 0.0);
        self.run(Quantize { values, out });
    }
}

struct Quantize<'a> {
    values: &'a [f32],
    out: &'a mut Int8Rows,
}

impl Op for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let values = self.values.chunks_exact(LANES);
        let halves = values.zip(self.out.codes.chunks_exact_mut(LANES));
        let records = self.out.scales.iter_mut().zip(&mut self.out.sums);
        for ((values, codes), (scale, sum)) in halves.zip(records) {
            // SAFETY: both chunks have exactly 16 elements; the CPU has L's features.
            (*scale, *sum) = unsafe { L::quantize_half(values.as_ptr(), codes.as_mut_ptr()) };
        }
        let scales = self.out.scales.chunks_exact(2);
        let pairs = scales.zip(self.out.sums.chunks_exact(2));
        for (total, (scales, sums)) in self.out.totals.iter_mut().zip(pairs) {
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
            let reference = quantized(Isa::Portable, &values);
            for (code, value) in reference.codes.iter().zip(&values).take(16) {
                let step = reference.scales[0];
                prop_assert!((f32::from(*code) * step - value).abs() <= step * 0.5001);
            }
            let sum: i32 = reference.codes[..16].iter().map(|c| i32::from(*c)).sum();
            prop_assert_eq!(sum, reference.sums[0]);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let got = quantized(isa, &values);
                prop_assert_eq!(&got.codes, &reference.codes);
                prop_assert_eq!(&got.scales, &reference.scales);
                prop_assert_eq!(&got.sums, &reference.sums);
                prop_assert_eq!(&got.totals, &reference.totals);
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
                let poisoned: Vec<bool> = got.scales.iter().map(|s| s.is_nan()).collect();
                assert_eq!(poisoned, [false, false, true, false], "{isa} {bad}");
                assert!(
                    got.totals[0].is_finite() && got.totals[1].is_nan(),
                    "{isa} {bad}"
                );
            }
            assert_eq!(quantized(isa, &[0.0; 32]).scales, [0.0, 0.0]);
        }
    }
}
