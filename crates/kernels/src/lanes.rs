//! Sixteen f32 lanes, the one vector shape that every kernel is written for.
//!
//! [`Avx512`] keeps them in one register, [`Avx2`] in two, [`Portable`] in an array that the
//! compiler vectorises as it can. A kernel is generic over [`Lanes`], so the *order* of its
//! arithmetic is written down once.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::{Portable, f16_to_f32, f32_to_f16};

use crate::layout::Format;
use crate::matrix::{BLOCK, GROUP};

/// Number of lanes.
pub(crate) const LANES: usize = GROUP;

/// One group of [`GROUP`] weight rows in a packed integer matrix.
#[derive(Clone, Copy)]
pub(crate) struct WeightGroup {
    /// The lines of `blocks` blocks, 64-byte aligned.
    pub(crate) codes: *const u8,
    /// 16 f16 scales for each run of blocks that share them.
    pub(crate) scales: *const u16,
    /// As many f16 minima; read only for formats that have them.
    pub(crate) minima: *const u16,
    /// `blocks * 32` factors; read only for formats that have them.
    pub(crate) factors: *const i8,
    /// Blocks of 32 columns.
    pub(crate) blocks: usize,
}

impl WeightGroup {
    /// The scales of the two halves of block `b`, and its minimum (zero where the format has none).
    ///
    /// # Safety
    /// `b` is below `blocks`, the group is packed as K says, the CPU has L's features.
    #[inline(always)]
    unsafe fn scales<K: Format, L: Lanes>(self, b: usize) -> ([L::F; 2], L::F) {
        // SAFETY: the caller's contract.
        unsafe {
            let at = b / K::LAYOUT.shared * LANES;
            let scale = L::load_f16(self.scales.add(at));
            let minimum = if K::LAYOUT.minimum {
                L::load_f16(self.minima.add(at))
            } else {
                L::splat(0.0)
            };
            if !K::LAYOUT.factors() {
                return ([scale; 2], minimum);
            }
            let factors = self.factors.add(b * 2 * LANES);
            let first = L::mul(scale, L::load_i8(factors));
            let second = L::load_i8(factors.add(LANES));
            if K::LAYOUT.minimum {
                ([first; 2], L::mul(minimum, second))
            } else {
                ([first, L::mul(scale, second)], minimum)
            }
        }
    }
}

/// One block of 32 int8 activations, on a cache line of its own: a tile then needs one pointer for
/// each token, and the registers suffice for eight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct TokenBlock {
    /// Codes in -127..=127.
    pub(crate) codes: [i8; BLOCK],
    /// Scales of the first and the second 16 columns.
    pub(crate) scales: [f32; 2],
    /// Their sums of codes.
    pub(crate) sums: [i32; 2],
    /// The sum of the values, as quantized: what a weight's minimum is multiplied with.
    pub(crate) total: f32,
}

/// Sixteen f32 lanes and the integer tile of one instruction set.
///
/// # Safety
/// Every method needs the CPU features of its implementor. Pointers are valid for the 16 (or
/// stated) elements they name; no alignment is needed unless stated.
pub(crate) trait Lanes: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// How many 16-lane f32 accumulators a tile may keep in registers: 8, 4 or 2.
    const TILE: usize;
    /// Tokens of an integer tile, which share the unpacking of a block: 8 or 4.
    const INT8_TILE: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// Rounds to nearest even; magnitudes above f16's range become infinite.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the instruction set has it.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger of each pair; for ordered values only.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of each pair; `b` where one of them is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `v * 2^n` by adding to the exponent, where `n` sits in the low bits of `magic`.
    unsafe fn scale_exponent(v: Self::F, magic: Self::F) -> Self::F;
    /// `v` where `x >= limit` (or x is NaN), else zero.
    unsafe fn zero_below(v: Self::F, x: Self::F, limit: f32) -> Self::F;

    /// Asks for the cache line of `p`, which need not be valid.
    unsafe fn prefetch(p: *const u16);

    /// Quantizes 16 values: writes codes, returns (scale, sum of codes). A value that is not
    /// finite makes the scale NaN, so that it cannot disappear.
    unsafe fn quantize_half(x: *const f32, codes: *mut i8) -> (f32, i32);

    /// Loads 16 rows of 16 f16 and stores their transpose as f32: `out[d * 16 + row]`.
    unsafe fn transpose_f16(rows: &[*const u16; LANES], offset: usize, out: *mut f32);

    /// Dot products of one weight group with `T` tokens; lane = weight row. In every block, with
    /// exact integer dots of its two halves: `acc += scale * (a0 * dot0 + a1 * dot1)`, or, where the
    /// halves have scales of their own, `acc += scale0 * (a0 * dot0)` and the second half likewise;
    /// then, where the format has minima, `acc += minimum * total`. Tokens point to as many blocks as
    /// the group has.
    unsafe fn int8_tile<K: Format, const T: usize>(
        weights: WeightGroup,
        tokens: &[*const TokenBlock; T],
    ) -> [Self::F; T];

    /// The sum of all lanes in a fixed tree: i with i+8, then +4, +2, +1.
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        let mut a = [0f32; LANES];
        // SAFETY: `a` has 16 elements.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                a[i] += a[i + width];
            }
            width /= 2;
        }
        a[0]
    }

    /// The largest lane; for ordered values only.
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        let mut a = [0f32; LANES];
        // SAFETY: `a` has 16 elements.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// e^x with about one unit in the last place; 0 below -87.3, clamped above 88. NaN stays NaN.
    #[inline(always)]
    unsafe fn exp(x: Self::F) -> Self::F {
        // Adding 1.5 * 2^23 rounds to an integer that then sits in the low mantissa bits.
        const MAGIC: f32 = 12_582_912.0;
        const LOWEST: f32 = -87.3;
        // ln 2 in two parts, so that n * LN2_HIGH is exact.
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // Taylor coefficients 1/6!, ..., 1/2!: enough for |r| <= ln(2)/2.
        const POLY: [f32; 6] = [
            1.0 / 5040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
        ];
        // SAFETY: the caller's CPU has this implementor's features.
        unsafe {
            let clamped = Self::min(Self::splat(88.0), x);
            let log2e = Self::splat(std::f32::consts::LOG2_E);
            let magic = Self::fma(clamped, log2e, Self::splat(MAGIC));
            let n = Self::sub(magic, Self::splat(MAGIC));
            let r = Self::fma(n, Self::splat(-LN2_HIGH), clamped);
            let r = Self::fma(n, Self::splat(-LN2_LOW), r);
            let mut p = Self::splat(POLY[0]);
            for c in &POLY[1..] {
                p = Self::fma(p, r, Self::splat(*c));
            }
            let p = Self::fma(p, Self::mul(r, r), r);
            let p = Self::add(p, Self::splat(1.0));
            Self::zero_below(Self::scale_exponent(p, magic), x, LOWEST)
        }
    }
}
