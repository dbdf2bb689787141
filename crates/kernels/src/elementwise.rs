//! RMS norm, rotary embedding, gates, soft caps, addition, and f16 conversion.

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

    /// Rotates the pairs (i, i + n) of the first 2n values of every head, n being `cos.len()`.
    /// Panics as [`Kernels::rope`].
    pub fn rope_halves(self, heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        let pairs = cos.len();
        assert!(
            pairs == sin.len() && 2 * pairs <= head_dim,
            "rotated dimensions"
        );
        assert!(heads.len().is_multiple_of(head_dim), "whole heads");
        for head in heads.chunks_exact_mut(head_dim) {
            let (first, second) = head[..2 * pairs].split_at_mut(pairs);
            let angles = cos.iter().zip(sin);
            for ((x, y), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
            }
        }
    }

    /// `gate = silu(gate) * up`. Panics unless the lengths are equal.
    pub fn swiglu(self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        self.run(Swiglu { gate, up });
    }

    /// `gate = gelu(gate) * up`, by the hyperbolic tangent. Panics unless the lengths are equal.
    pub fn geglu(self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        self.run(Geglu { gate, up });
    }

    /// `values = cap * tanh(values / cap)`; what is not finite becomes or stays NaN.
    pub fn cap(self, values: &mut [f32], cap: f32) {
        self.run(Cap { values, cap });
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

struct Geglu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Op for Geglu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // x/2 * (1 + tanh(u)) = x / (1 + e^(-2u)), with u = sqrt(2/π) * (x + 0.044715 x³).
        const LINEAR: f32 = -1.595_769;
        const CUBIC: f32 = LINEAR * 0.044_715;
        // SAFETY: the CPU has L's features; loads and stores go through checked slices.
        chunks(self.gate.len(), |at, n| unsafe {
            let x = load_part::<L>(&self.gate[at..at + n]);
            let up = load_part::<L>(&self.up[at..at + n]);
            let factor = L::fma(L::mul(x, x), L::splat(CUBIC), L::splat(LINEAR));
            let e = L::exp(L::mul(x, factor));
            let gelu = L::div(x, L::add(L::splat(1.0), e));
            store_part::<L>(L::mul(gelu, up), &mut self.gate[at..at + n]);
        });
    }
}

struct Cap<'a> {
    values: &'a mut [f32],
    cap: f32,
}

impl Op for Cap<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the CPU has L's features.
        unsafe { cap_in::<L>(self.values, self.cap) }
    }
}

/// [`Kernels::cap`], inside an operation: `cap * (1 - 2 / (1 + e^(2x / cap)))`.
///
/// # Safety
/// The CPU has L's features.
#[inline(always)]
pub(crate) unsafe fn cap_in<L: Lanes>(values: &mut [f32], cap: f32) {
    // SAFETY: loads and stores go through checked slices.
    chunks(values.len(), |at, n| unsafe {
        let x = load_part::<L>(&values[at..at + n]);
        // An infinity must not pass for the bound.
        let x = L::add(x, L::mul(x, L::splat(0.0)));
        let e = L::exp(L::mul(x, L::splat(2.0 / cap)));
        let part = L::div(L::splat(2.0), L::add(L::splat(1.0), e));
        let capped = L::mul(L::splat(cap), L::sub(L::splat(1.0), part));
        store_part::<L>(capped, &mut values[at..at + n]);
    });
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
    fn rope_turns_halves_and_leaves_the_rest() {
        each_isa(|kernels| {
            let mut heads = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            kernels.rope_halves(&mut heads, 6, &[0.0, -1.0], &[1.0, 0.0]);
            assert_eq!(heads, [-3.0, -2.0, 1.0, -4.0, 5.0, 6.0]);
        });
    }

    #[test]
    fn geglu_and_caps_match_their_definitions_and_keep_nan() {
        each_isa(|kernels| {
            let mut gate = values(37);
            (gate[3], gate[4], gate[5]) = (200.0, -200.0, f32::NAN);
            let (before, up) = (gate.clone(), values(37));
            kernels.geglu(&mut gate, &up);
            let mut capped = before.clone();
            capped[6] = f32::INFINITY;
            kernels.cap(&mut capped, 2.5);
            for i in 0..37 {
                let x = f64::from(before[i]);
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                let gelu = x / 2.0 * (1.0 + u.tanh()) * f64::from(up[i]);
                let cap = match i {
                    6 => f64::NAN,
                    _ => 2.5 * (x / 2.5).tanh(),
                };
                for (got, expected) in [(gate[i], gelu), (capped[i], cap)] {
                    let close = (f64::from(got) - expected).abs() <= 2e-6 * expected.abs().max(1.0);
                    let nan = got.is_nan() && expected.is_nan();
                    assert!(close || nan, "{i}: {got} {expected}");
                }
            }
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
