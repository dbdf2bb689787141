//! Sixteen lanes in two 256-bit registers; integer dots with `vpmaddubsw`.

use std::arch::x86_64::*;

use super::{LANES, Lanes, Portable, TokenBlock, WeightGroup};
use crate::matrix::Format;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct F(__m256, __m256);

// SAFETY of every block in this impl: the trait's contract gives the CPU features and the validity
// of the pointers; nothing here needs alignment except `codes`, which packing aligns to 64 bytes.
impl Lanes for Avx2 {
    type F = F;
    const TILE: usize = 4;
    const INT8_TILE: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(8).cast()));
            F(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        // SAFETY: see the impl.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(
                p.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1),
            );
        }
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            F(
                _mm256_fmadd_ps(a.0, b.0, c.0),
                _mm256_fmadd_ps(a.1, b.1, c.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        // SAFETY: see the impl.
        unsafe { F(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn scale_exponent(v: F, magic: F) -> F {
        // SAFETY: see the impl.
        unsafe {
            let half = |v, magic| {
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(magic));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), n))
            };
            F(half(v.0, magic.0), half(v.1, magic.1))
        }
    }

    #[inline(always)]
    unsafe fn zero_below(v: F, x: F, limit: f32) -> F {
        // SAFETY: see the impl.
        unsafe {
            let limit = _mm256_set1_ps(limit);
            let half = |v, x| _mm256_and_ps(v, _mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit));
            F(half(v.0, x.0), half(v.1, x.1))
        }
    }

    #[inline(always)]
    unsafe fn quantize_half(x: *const f32, codes: *mut i8) -> (f32, i32) {
        // The plain loop vectorises well with this function's features; no product is fused, so
        // all instruction sets quantize alike.
        // SAFETY: see the impl.
        unsafe { Portable::quantize_half(x, codes) }
    }

    #[inline(always)]
    unsafe fn transpose_f16(rows: &[*const u16; LANES], offset: usize, out: *mut f32) {
        // SAFETY: see the impl; 16 rows of 16 f16 from `offset`, 256 f32 of output.
        unsafe {
            for half in 0..2 {
                for quarter in 0..2 {
                    let mut r = [_mm256_setzero_ps(); 8];
                    for i in 0..8 {
                        let p = rows[half * 8 + i].add(offset + quarter * 8);
                        r[i] = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
                    }
                    let r = transpose8(r);
                    for (d, r) in r.iter().enumerate() {
                        _mm256_storeu_ps(out.add((quarter * 8 + d) * LANES + half * 8), *r);
                    }
                }
            }
        }
    }

    /// Four products of a nibble pair fit an i16 (4 * 2 * 15 * 127 = 15,240), so half a block needs
    /// one widening. Bytes are done as two nibbles: `vpmaddubsw` would saturate on them.
    #[inline(always)]
    unsafe fn int8_tile<K: Format, const T: usize>(
        weights: WeightGroup,
        tokens: &[*const TokenBlock; T],
    ) -> [F; T] {
        // SAFETY: see the impl; every pointer is valid for `blocks` blocks.
        unsafe {
            let mut acc = [Self::splat(0.0); T];
            for b in 0..weights.blocks {
                let codes = weights.codes.add(b * K::BLOCK_BYTES);
                let low_rows = half_rows::<K, T>(codes, b, tokens);
                let high_rows = half_rows::<K, T>(codes.add(32), b, tokens);
                let d = Self::load_f16(weights.scales.add(b * LANES));
                for t in 0..T {
                    acc[t] = Self::fma(d, F(low_rows[t], high_rows[t]), acc[t]);
                    if K::MIN {
                        let m = Self::load_f16(weights.minima.add(b * LANES));
                        acc[t] = Self::fma(m, Self::splat((*tokens[t].add(b)).total), acc[t]);
                    }
                }
            }
            acc
        }
    }
}

/// `a0 * dot0 + a1 * dot1` of 8 weight rows (32 bytes of each 64-byte line) with `T` tokens.
///
/// # Safety
/// AVX2 and FMA; `codes` is valid for a block less the bytes before it, tokens for block `b`.
#[inline(always)]
unsafe fn half_rows<K: Format, const T: usize>(
    codes: *const u8,
    b: usize,
    tokens: &[*const TokenBlock; T],
) -> [__m256; T] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut dots = [_mm256_setzero_ps(); T];
        for half in 0..2 {
            let sums = half_columns::<K, T>(codes, b, half, tokens);
            for t in 0..T {
                let bias = _mm256_set1_epi32(-K::BIAS * (*tokens[t].add(b)).sums[half]);
                let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(bias, sums[t]));
                let scale = _mm256_set1_ps((*tokens[t].add(b)).scales[half]);
                // The first product is rounded by itself, as in every instruction set.
                dots[t] = if half == 0 {
                    _mm256_mul_ps(dot, scale)
                } else {
                    _mm256_fmadd_ps(dot, scale, dots[t])
                };
            }
        }
        dots
    }
}

/// Integer dots over 16 columns, without bias.
///
/// # Safety
/// As `half_rows`.
#[inline(always)]
unsafe fn half_columns<K: Format, const T: usize>(
    codes: *const u8,
    b: usize,
    half: usize,
    tokens: &[*const TokenBlock; T],
) -> [__m256i; T] {
    // SAFETY: the caller's contract.
    unsafe {
        let nibble = _mm256_set1_epi8(15);
        let ones = _mm256_set1_epi16(1);
        let mut low_sums = [_mm256_setzero_si256(); T];
        let mut high_sums = [_mm256_setzero_si256(); T];
        for i in 0..4 {
            let line = if K::NIBBLES { i } else { 4 * half + i };
            let bytes = _mm256_loadu_si256(codes.add(line * 64).cast());
            let low = _mm256_and_si256(bytes, nibble);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
            for t in 0..T {
                let row = (&raw const (*tokens[t].add(b)).codes).cast::<i32>();
                let four = _mm256_set1_epi32(row.add(4 * half + i).read_unaligned());
                if !K::NIBBLES || half == 0 {
                    low_sums[t] = _mm256_add_epi16(low_sums[t], _mm256_maddubs_epi16(low, four));
                }
                if !K::NIBBLES || half == 1 {
                    high_sums[t] = _mm256_add_epi16(high_sums[t], _mm256_maddubs_epi16(high, four));
                }
            }
        }
        let mut dots = [_mm256_setzero_si256(); T];
        for t in 0..T {
            let low = _mm256_madd_epi16(low_sums[t], ones);
            let high = _mm256_madd_epi16(high_sums[t], ones);
            let high = if K::NIBBLES {
                high
            } else {
                _mm256_slli_epi32::<4>(high)
            };
            dots[t] = _mm256_add_epi32(low, high);
        }
        dots
    }
}

/// # Safety
/// AVX.
#[inline(always)]
unsafe fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut s = r;
        for i in (0..8).step_by(2) {
            s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        let mut q = s;
        for i in (0..8).step_by(4) {
            q[i] = _mm256_shuffle_ps::<0x44>(s[i], s[i + 2]);
            q[i + 1] = _mm256_shuffle_ps::<0xee>(s[i], s[i + 2]);
            q[i + 2] = _mm256_shuffle_ps::<0x44>(s[i + 1], s[i + 3]);
            q[i + 3] = _mm256_shuffle_ps::<0xee>(s[i + 1], s[i + 3]);
        }
        let mut out = q;
        for c in 0..4 {
            out[c] = _mm256_permute2f128_ps::<0x20>(q[c], q[c + 4]);
            out[c + 4] = _mm256_permute2f128_ps::<0x31>(q[c], q[c + 4]);
        }
        out
    }
}
