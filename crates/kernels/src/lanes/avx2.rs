//! Sixteen lanes in two 256-bit registers; integer dots with `vpmaddubsw`.

use std::arch::x86_64::*;

use super::{LANES, Lanes, Portable, TokenBlock, WeightGroup};
use crate::layout::Format;

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
    unsafe fn load_i8(p: *const i8) -> F {
        // SAFETY: see the impl.
        unsafe {
            let [low, high] = [0, 8].map(|i| {
                let eight = _mm_loadl_epi64(p.add(i).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))
            });
            F(low, high)
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
    unsafe fn prefetch(p: *const u16) {
        // SAFETY: see the impl; a prefetch of any address does nothing that can be seen.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
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
                let (scales, minimum) = weights.scales::<K, Self>(b);
                let tokens = tokens.map(|token| token.add(b));
                let low_rows = half_rows::<K, T>(codes, &tokens);
                let high_rows = half_rows::<K, T>(codes.add(32), &tokens);
                for t in 0..T {
                    let dots = [0, 1].map(|half| F(low_rows[half][t], high_rows[half][t]));
                    if K::LAYOUT.two_scales() {
                        acc[t] = Self::fma(scales[0], dots[0], acc[t]);
                    }
                    acc[t] = Self::fma(scales[1], dots[1], acc[t]);
                    if K::LAYOUT.minimum {
                        let total = Self::splat((*tokens[t]).total);
                        acc[t] = Self::fma(minimum, total, acc[t]);
                    }
                }
            }
            acc
        }
    }
}

/// `a0 * dot0` and `a1 * dot1` of 8 weight rows (32 bytes of each 64-byte line) with `T` tokens; for a
/// format with one scale the second is the sum of both.
///
/// # Safety
/// AVX2 and FMA; `codes` is valid for a block less the bytes before it.
#[inline(always)]
unsafe fn half_rows<K: Format, const T: usize>(
    codes: *const u8,
    tokens: &[*const TokenBlock; T],
) -> [[__m256; T]; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut dots = [[_mm256_setzero_ps(); T]; 2];
        for half in 0..2 {
            let sums = half_columns::<K, T>(codes, half, tokens);
            for t in 0..T {
                let zero = _mm256_set1_epi32(-K::LAYOUT.zero * (*tokens[t]).sums[half]);
                let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(zero, sums[t]));
                let scale = _mm256_set1_ps((*tokens[t]).scales[half]);
                // The first product is rounded by itself, as in every instruction set.
                dots[half][t] = if half == 0 || K::LAYOUT.two_scales() {
                    _mm256_mul_ps(dot, scale)
                } else {
                    _mm256_fmadd_ps(dot, scale, dots[0][t])
                };
            }
        }
        dots
    }
}

/// Integer dots over 16 columns, nothing subtracted from the codes.
///
/// `vpmaddubsw` adds pairs of products into an i16 and saturates: four such sums fit with codes of 5
/// bits (4 * 2 * 31 * 127 = 31,496), two with 6 (32,004), and codes of 8 are done as two nibbles.
///
/// # Safety
/// As `half_rows`.
#[inline(always)]
unsafe fn half_columns<K: Format, const T: usize>(
    codes: *const u8,
    half: usize,
    tokens: &[*const TokenBlock; T],
) -> [__m256i; T] {
    // SAFETY: the caller's contract.
    unsafe {
        let nibble = _mm256_set1_epi8(15);
        let (ones, sixteens) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
        let narrow = [_mm256_setzero_si256(); T];
        let (mut low_sums, mut high_sums, mut dots) = (narrow, narrow, narrow);
        for i in 0..4 {
            let line = if K::LAYOUT.bits < 8 { i } else { 4 * half + i };
            let bytes = _mm256_loadu_si256(codes.add(line * 64).cast());
            let above = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
            let mut low = _mm256_and_si256(bytes, nibble);
            if K::LAYOUT.bits < 8 && half == 1 {
                low = above;
            }
            if K::LAYOUT.high() > 0 {
                let (line, shift) = K::LAYOUT.high_at(4 * half + i);
                let bytes = _mm256_loadu_si256(codes.add(line * 64).cast());
                // To bit 4; both counts are constants once the loop is unrolled.
                let left = _mm_cvtsi32_si128((4 - shift as i32).max(0));
                let right = _mm_cvtsi32_si128((shift as i32 - 4).max(0));
                let bits = _mm256_srl_epi16(_mm256_sll_epi16(bytes, left), right);
                let mask = _mm256_set1_epi8((K::LAYOUT.high_mask() << 4) as i8);
                low = _mm256_or_si256(low, _mm256_and_si256(bits, mask));
            }
            for t in 0..T {
                let row = (&raw const (*tokens[t]).codes).cast::<i32>();
                let four = _mm256_set1_epi32(row.add(4 * half + i).read_unaligned());
                low_sums[t] = _mm256_add_epi16(low_sums[t], _mm256_maddubs_epi16(low, four));
                if K::LAYOUT.bits == 8 {
                    let sums = _mm256_maddubs_epi16(above, four);
                    high_sums[t] = _mm256_add_epi16(high_sums[t], sums);
                }
                if i == 3 || K::LAYOUT.bits == 6 && i == 1 {
                    dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(low_sums[t], ones));
                    low_sums[t] = _mm256_setzero_si256();
                }
            }
        }
        if K::LAYOUT.bits == 8 {
            for t in 0..T {
                let high = _mm256_madd_epi16(high_sums[t], sixteens);
                dots[t] = _mm256_add_epi32(dots[t], high);
            }
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
