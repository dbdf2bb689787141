//! Sixteen lanes in one 512-bit register; integer dots with `vpdpbusd`.

use std::arch::x86_64::*;

use super::{LANES, Lanes, TokenBlock, WeightGroup};
use crate::layout::Format;

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY of every block in this impl: the trait's contract gives the CPU features and the validity
// of the pointers; nothing here needs alignment except `codes`, which packing aligns to 64 bytes.
impl Lanes for Avx512 {
    type F = __m512;
    const TILE: usize = 8;
    const INT8_TILE: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn scale_exponent(v: __m512, magic: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(magic));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), n))
        }
    }

    #[inline(always)]
    unsafe fn zero_below(v: __m512, x: __m512, limit: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(limit));
            _mm512_maskz_mov_ps(keep, v)
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u16) {
        // SAFETY: see the impl; a prefetch of any address does nothing that can be seen.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn quantize_half(x: *const f32, codes: *mut i8) -> (f32, i32) {
        // SAFETY: see the impl; 16 values and 16 codes.
        unsafe {
            let x = _mm512_loadu_ps(x);
            // As integers, magnitudes order like floats, and NaN is above all of them.
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let top = _mm512_and_si512(_mm512_castps_si512(x), magnitude);
            let largest = f32::from_bits(_mm512_reduce_max_epi32(top) as u32);
            if !largest.is_finite() {
                _mm_storeu_si128(codes.cast(), _mm_setzero_si128());
                return (f32::NAN, 0);
            }
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let x = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
            _mm_storeu_si128(codes.cast(), _mm512_cvtepi32_epi8(x));
            (largest / 127.0, _mm512_reduce_add_epi32(x))
        }
    }

    #[inline(always)]
    unsafe fn transpose_f16(rows: &[*const u16; LANES], offset: usize, out: *mut f32) {
        // SAFETY: see the impl; 16 rows of 16 f16 from `offset`, 256 f32 of output.
        unsafe {
            let mut r = [_mm512_setzero_ps(); LANES];
            for i in 0..LANES {
                r[i] = Self::load_f16(rows[i].add(offset));
            }
            // Pairs of rows, then quads, inside each 128-bit part...
            let mut s = r;
            for i in (0..LANES).step_by(2) {
                s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
                s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
            }
            for i in (0..LANES).step_by(4) {
                r[i] = _mm512_shuffle_ps::<0x44>(s[i], s[i + 2]);
                r[i + 1] = _mm512_shuffle_ps::<0xee>(s[i], s[i + 2]);
                r[i + 2] = _mm512_shuffle_ps::<0x44>(s[i + 1], s[i + 3]);
                r[i + 3] = _mm512_shuffle_ps::<0xee>(s[i + 1], s[i + 3]);
            }
            // ...then the 128-bit parts of the four quads.
            for c in 0..4 {
                let low01 = _mm512_shuffle_f32x4::<0x88>(r[c], r[c + 4]);
                let high01 = _mm512_shuffle_f32x4::<0xdd>(r[c], r[c + 4]);
                let low23 = _mm512_shuffle_f32x4::<0x88>(r[c + 8], r[c + 12]);
                let high23 = _mm512_shuffle_f32x4::<0xdd>(r[c + 8], r[c + 12]);
                let at = |part: usize| out.add((part * 4 + c) * LANES);
                _mm512_storeu_ps(at(0), _mm512_shuffle_f32x4::<0x88>(low01, low23));
                _mm512_storeu_ps(at(1), _mm512_shuffle_f32x4::<0x88>(high01, high23));
                _mm512_storeu_ps(at(2), _mm512_shuffle_f32x4::<0xdd>(low01, low23));
                _mm512_storeu_ps(at(3), _mm512_shuffle_f32x4::<0xdd>(high01, high23));
            }
        }
    }

    #[inline(always)]
    unsafe fn int8_tile<K: Format, const T: usize>(
        weights: WeightGroup,
        tokens: &[*const TokenBlock; T],
    ) -> [__m512; T] {
        // SAFETY: see the impl; every pointer is valid for `blocks` blocks.
        unsafe {
            let mut acc = [_mm512_setzero_ps(); T];
            for b in 0..weights.blocks {
                let w = unpack::<K>(weights.codes.add(b * K::BLOCK_BYTES));
                let (scales, minimum) = weights.scales::<K, Self>(b);
                // Written out: as a loop of eight the compiler keeps it, and `acc`, in memory.
                macro_rules! tokens {
                    ($($t:literal)*) => {$(if $t < T {
                        let token = &*tokens[$t].add(b);
                        let dots = [half::<K>(&w, token, 0), half::<K>(&w, token, 1)];
                        let first = _mm512_mul_ps(dots[0], _mm512_set1_ps(token.scales[0]));
                        let second = _mm512_set1_ps(token.scales[1]);
                        if K::LAYOUT.two_scales() {
                            let second = _mm512_mul_ps(dots[1], second);
                            acc[$t] = _mm512_fmadd_ps(scales[0], first, acc[$t]);
                            acc[$t] = _mm512_fmadd_ps(scales[1], second, acc[$t]);
                        } else {
                            let dot = _mm512_fmadd_ps(dots[1], second, first);
                            acc[$t] = _mm512_fmadd_ps(scales[0], dot, acc[$t]);
                        }
                        if K::LAYOUT.minimum {
                            let total = _mm512_set1_ps(token.total);
                            acc[$t] = _mm512_fmadd_ps(minimum, total, acc[$t]);
                        }
                    })*};
                }
                tokens!(0 1 2 3 4 5 6 7);
            }
            acc
        }
    }
}

/// The integer dots of half a block, as f32.
///
/// # Safety
/// AVX-512 F and VNNI.
#[inline(always)]
unsafe fn half<K: Format>(w: &[__m512i; 8], token: &TokenBlock, half: usize) -> __m512 {
    // SAFETY: the caller's contract; the four reads of four codes are inside `codes`.
    unsafe {
        let codes = token.codes.as_ptr().add(16 * half).cast::<i32>();
        let mut dot = _mm512_set1_epi32(-K::LAYOUT.zero * token.sums[half]);
        for i in 0..4 {
            let four = _mm512_set1_epi32(codes.add(i).read_unaligned());
            dot = _mm512_dpbusd_epi32(dot, w[4 * half + i], four);
        }
        _mm512_cvtepi32_ps(dot)
    }
}

/// The eight registers of a block: 16 rows × 4 columns of unsigned bytes each.
///
/// # Safety
/// AVX-512 F; `codes` is valid for `K::BLOCK_BYTES` and 64-byte aligned.
#[inline(always)]
unsafe fn unpack<K: Format>(codes: *const u8) -> [__m512i; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut w = [_mm512_setzero_si512(); 8];
        if K::LAYOUT.bits < 8 {
            let nibble = _mm512_set1_epi8(15);
            for i in 0..4 {
                let bytes = _mm512_load_si512(codes.add(i * 64).cast());
                w[i] = _mm512_and_si512(bytes, nibble);
                w[i + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), nibble);
            }
            if K::LAYOUT.high() > 0 {
                let mask = _mm512_set1_epi8((K::LAYOUT.high_mask() << 4) as i8);
                for (four, w) in w.iter_mut().enumerate() {
                    let (line, shift) = K::LAYOUT.high_at(four);
                    let bytes = _mm512_load_si512(codes.add(line * 64).cast());
                    // To bit 4; both counts are constants once the loop is unrolled.
                    let left = _mm_cvtsi32_si128((4 - shift as i32).max(0));
                    let right = _mm_cvtsi32_si128((shift as i32 - 4).max(0));
                    let bits = _mm512_srl_epi16(_mm512_sll_epi16(bytes, left), right);
                    *w = _mm512_or_si512(*w, _mm512_and_si512(bits, mask));
                }
            }
        } else {
            for (i, w) in w.iter_mut().enumerate() {
                *w = _mm512_load_si512(codes.add(i * 64).cast());
            }
        }
        w
    }
}
