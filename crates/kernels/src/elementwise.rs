//! RMS norm, rotary embedding, SwiGLU, residual addition, and f16 conversion.

use crate::isa::{Kernels, Op};
use crate::lanes::{LANES, Lanes, f16_to_f32, f32_to_f16};

/// f32 to f16 bits, to nearest even. Panics unless the lengths are equal.
pub fn encode_f16(values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len());
    out.iter_mut()
        .zip(values)
        .for_each(|(out, v)| *out = f32_to_f16(*v));
}

/// f16 bits to f32, exact. Panics unless the lengths are equal.
pub fn decode_f16(bits: &[u16], out: &mut [f32]) {
    assert_eq!(bits.len(), out.len());
    out.iter_mut()
        .zip(bits)
        .for_each(|(out, b)| *out = f16_to_f32(*b));
}

impl Kernels {
    /// Writes `values / rms(values) * weight` of every row (`weight.len()` values each) to `out`.
    /// Panics unless rows are whole and both sides have the same length.
    pub fn rms_norm(self, values: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        assert!(
            !weight.is_empty() && values.len().is_multiple_of(weight.len()),
            "whole rows"
        );
        assert_eq!(values.len(), out.len());
        self.run(RmsNorm {
            values,
            weight,
            epsilon,
            out,
        });
    }

    /// Rotates neighbouring pairs (2i, 2i+1) of the first `2 * cos.len()` values of every head by
    /// the angle whose cosine and sine are given. Panics if a head is shorter than that, or the
    /// heads are not whole.
    pub fn rope(self, heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        assert!(
            cos.len() == sin.len() && 2 * cos.len() <= head_dim,
            "rotated dimensions"
        );
        assert!(heads.len().is_multiple_of(head_dim), "whole heads");
        for head in heads.chunks_exact_mut(head_dim) {
            for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                let (x, y) = (pair[0], pair[1]);
                pair[0] = x * cos - y * sin;
                pair[1] = x * sin + y * cos;
            }
        }
    }

    /// `gate = silu(gate) * up`. Panics unless the lengths are equal.
    pub fn swiglu(self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        self.run(Swiglu { gate, up });
    }

    /// `sum += values`. Panics unless the lengths are equal.
    pub fn add(self, sum: &mut [f32], values: &[f32]) {
        assert_eq!(sum.len(), values.len());
        sum.iter_mut().zip(values).for_each(|(sum, v)| *sum += v);
    }

    /// f32 to f16 bits, to nearest even; returns false if a result is not finite (the value was
    /// not, or exceeds f16's range). Panics unless the lengths are equal.
    pub fn encode_f16_checked(self, values: &[f32], out: &mut [u16]) -> bool {
        assert_eq!(values.len(), out.len());
        self.run(EncodeF16 { values, out });
        out.iter()
            .fold(true, |finite, bits| finite & (bits & 0x7c00 != 0x7c00))
    }
}

/// Runs `$whole(start)` for every 16 values and `$part(start, len)` for a shorter rest.
#[inline(always)]
fn chunks(len: usize, mut each: impl FnMut(usize, usize)) {
    let mut start = 0;
    while start < len {
        let n = LANES.min(len - start);
        each(start, n);
        start += n;
    }
}

/// Loads up to 16 values; missing lanes are zero.
///
/// # Safety
/// The CPU has L's features.
#[inline(always)]
unsafe fn load_part<L: Lanes>(values: &[f32]) -> L::F {
    let mut lanes = [0f32; LANES];
    lanes[..values.len()].copy_from_slice(values);
    // SAFETY: `lanes` has 16 values.
    unsafe { L::load(lanes.as_ptr()) }
}

/// Stores as many lanes as `out` has room for.
///
/// # Safety
/// The CPU has L's features.
#[inline(always)]
unsafe fn store_part<L: Lanes>(lanes: L::F, out: &mut [f32]) {
    let mut all = [0f32; LANES];
    // SAFETY: `all` has 16 values.
    unsafe { L::store(all.as_mut_ptr(), lanes) };
    out.copy_from_slice(&all[..out.len()]);
}

struct RmsNorm<'a> {
    values: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl Op for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let width = self.weight.len();
        for (row, out) in self
            .values
            .chunks_exact(width)
            .zip(self.out.chunks_exact_mut(width))
        {
            // SAFETY: the CPU has L's features; loads and stores go through checked slices.
            unsafe {
                let mut squares = L::splat(0.0);
                chunks(width, |at, n| {
                    let x = load_part::<L>(&row[at..at + n]);
                    squares = L::fma(x, x, squares);
                });
                let mean = L::sum(squares) / width as f32;
                let scale = L::splat(1.0 / (mean + self.epsilon).sqrt());
                chunks(width, |at, n| {
                    let x = load_part::<L>(&row[at..at + n]);
                    let w = load_part::<L>(&self.weight[at..at + n]);
                    store_part::<L>(L::mul(L::mul(x, scale), w), &mut out[at..at + n]);
                });
            }
        }
    }
}

struct Swiglu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Op for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the CPU has L's features; loads and stores go through checked slices.
        chunks(self.gate.len(), |at, n| unsafe {
            let gate = load_part::<L>(&self.gate[at..at + n]);
            let up = load_part::<L>(&self.up[at..at + n]);
            let e = L::exp(L::sub(L::splat(0.0), gate));
            let silu = L::div(gate, L::add(L::splat(1.0), e));
            store_part::<L>(L::mul(silu, up), &mut self.gate[at..at + n]);
        });
    }
}

struct EncodeF16<'a> {
    values: &'a [f32],
    out: &'a mut [u16],
}

impl Op for EncodeF16<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut values = self.values.chunks_exact(LANES);
        let mut out = self.out.chunks_exact_mut(LANES);
        for (values, out) in values.by_ref().zip(out.by_ref()) {
            // SAFETY: both chunks have 16 elements; the CPU has L's features.
            unsafe { L::store_f16(out.as_mut_ptr(), L::load(values.as_ptr())) };
        }
        encode_f16(values.remainder(), out.into_remainder());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn each_isa(test: impl Fn(Kernels)) {
        Isa::ALL
            .into_iter()
            .filter_map(|isa| Kernels::new(isa).ok())
            .for_each(test);
    }

    fn values(n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0)
            .collect()
    }

    #[test]
    fn rms_norm_matches_its_definition_for_widths_off_the_lanes() {
        each_isa(|kernels| {
            for width in [1, 15, 16, 33, 64] {
                let (x, w) = (values(3 * width), values(width));
                let mut out = vec![0.0; x.len()];
                kernels.rms_norm(&x, &w, 1e-5, &mut out);
                for (row, out) in x.chunks(width).zip(out.chunks(width)) {
                    let mean = row.iter().map(|v| f64::from(v * v)).sum::<f64>() / width as f64;
                    let scale = 1.0 / (mean + 1e-5).sqrt();
                    for i in 0..width {
                        let expected = f64::from(row[i]) * scale * f64::from(w[i]);
                        assert!((f64::from(out[i]) - expected).abs() < 1e-5, "{width} {i}");
                    }
                }
            }
        });
    }

    #[test]
    fn swiglu_matches_its_definition_and_keeps_nan() {
        each_isa(|kernels| {
            let mut gate = values(37);
            gate[3] = 200.0;
            gate[4] = -200.0;
            gate[5] = f32::NAN;
            let (before, up) = (gate.clone(), values(37));
            kernels.swiglu(&mut gate, &up);
            for i in 0..37 {
                let x = f64::from(before[i]);
                let expected = x / (1.0 + (-x).exp()) * f64::from(up[i]);
                let got = f64::from(gate[i]);
                let close = (got - expected).abs() <= 1e-6 * expected.abs().max(1.0);
                assert!(
                    close || (got.is_nan() && x.is_nan()),
                    "{i}: {got} {expected}"
                );
            }
        });
    }

    #[test]
    fn rope_turns_neighbouring_pairs_and_leaves_the_rest() {
        each_isa(|kernels| {
            let mut heads = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            kernels.rope(&mut heads, 6, &[0.0, -1.0], &[1.0, 0.0]);
            assert_eq!(heads, [-2.0, 1.0, -3.0, -4.0, 5.0, 6.0]);
        });
    }

    #[test]
    fn f16_overflow_and_nan_are_reported() {
        each_isa(|kernels| {
            let mut out = vec![0; 40];
            let mut x = values(40);
            assert!(kernels.encode_f16_checked(&x, &mut out));
            let mut back = vec![0.0; 40];
            decode_f16(&out, &mut back);
            for (x, back) in x.iter().zip(&back) {
                assert!((x - back).abs() <= x.abs() / 2048.0);
            }
            for (at, bad) in [(3, 65_520.0), (39, f32::NAN), (17, f32::NEG_INFINITY)] {
                let good = std::mem::replace(&mut x[at], bad);
                assert!(!kernels.encode_f16_checked(&x, &mut out), "{bad}");
                x[at] = good;
            }
        });
    }
}
