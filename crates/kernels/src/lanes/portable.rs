//! Plain Rust lanes: arrays that the compiler vectorises for its baseline.

use super::{LANES, Lanes, TokenBlock, WeightGroup};
use crate::layout::Format;
use crate::matrix::BLOCK;

/// No CPU features needed.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Sixteen f32 in memory.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct F([f32; LANES]);

#[inline(always)]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    let mut out = a;
    for i in 0..LANES {
        out.0[i] = f(a.0[i], b.0[i]);
    }
    out
}

impl Lanes for Portable {
    type F = F;
    const TILE: usize = 2;
    const INT8_TILE: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        F([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: the caller's pointer is valid for 16 f32.
        F(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        // SAFETY: the caller's pointer is valid for 16 f32.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v.0) };
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        // SAFETY: the caller's pointer is valid for 16 f16.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let mut out = [0f32; LANES];
        for i in 0..LANES {
            out[i] = f16_to_f32(bits[i]);
        }
        F(out)
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        // SAFETY: the caller's pointer is valid for 16 bytes.
        F(unsafe { p.cast::<[i8; LANES]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        // SAFETY: the caller's pointer is valid for 16 f16.
        unsafe {
            p.cast::<[u16; LANES]>()
                .write_unaligned(v.0.map(f32_to_f16))
        };
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        let mut out = c;
        for i in 0..LANES {
            out.0[i] = a.0[i] * b.0[i] + c.0[i];
        }
        out
    }

    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn scale_exponent(v: F, magic: F) -> F {
        zip(v, magic, |v, m| {
            f32::from_bits(v.to_bits().wrapping_add(m.to_bits() << 23))
        })
    }

    #[inline(always)]
    unsafe fn zero_below(v: F, x: F, limit: f32) -> F {
        zip(v, x, |v, x| if x < limit { 0.0 } else { v })
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u16) {}

    #[inline(always)]
    unsafe fn quantize_half(x: *const f32, codes: *mut i8) -> (f32, i32) {
        // SAFETY: the caller's pointers are valid for 16 values and 16 codes.
        let (x, codes) = unsafe {
            (
                &*x.cast::<[f32; LANES]>(),
                &mut *codes.cast::<[i8; LANES]>(),
            )
        };
        // As integers, magnitudes order like floats, and NaN is above all of them.
        let mut top = 0i32;
        for v in x {
            top = top.max((v.to_bits() & 0x7fff_ffff) as i32);
        }
        let largest = f32::from_bits(top as u32);
        if !largest.is_finite() {
            *codes = [0; LANES];
            return (f32::NAN, 0);
        }
        let scale = largest / 127.0;
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        // Adding 1.5 * 2^23 rounds to nearest even; the integer is then in the low bits.
        const MAGIC: f32 = 12_582_912.0;
        let mut sum = 0i32;
        for (code, v) in codes.iter_mut().zip(x) {
            let rounded = (v * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
            sum += rounded;
            *code = rounded as i8;
        }
        (scale, sum)
    }

    #[inline(always)]
    unsafe fn transpose_f16(rows: &[*const u16; LANES], offset: usize, out: *mut f32) {
        for (row, p) in rows.iter().enumerate() {
            // SAFETY: the caller's rows are valid for 16 f16 from `offset`, `out` for 256 f32.
            unsafe {
                let values = Self::load_f16(p.add(offset));
                for (d, v) in values.0.iter().enumerate() {
                    out.add(d * LANES + row).write(*v);
                }
            }
        }
    }

    /// Integer dots in f32: codes of a weight and a token multiply and add up to at most
    /// 16 * 128 * 127, so every step is exact. Compilers vectorise this well everywhere, and the
    /// same loop over i16 badly.
    #[inline(always)]
    unsafe fn int8_tile<K: Format, const T: usize>(
        weights: WeightGroup,
        tokens: &[*const TokenBlock; T],
    ) -> [F; T] {
        let mut acc = [F([0.0; LANES]); T];
        let mut columns = [F([0.0; LANES]); BLOCK];
        for b in 0..weights.blocks {
            // SAFETY: `b` is below the block count that all these pointers are valid for.
            unsafe {
                unpack::<K>(weights.codes.add(b * K::BLOCK_BYTES), &mut columns);
                let (scales, minimum) = weights.scales::<K, Self>(b);
                for t in 0..T {
                    let token = &*tokens[t].add(b);
                    let half = |h: usize| {
                        let mut dot = F([0.0; LANES]);
                        for k in 16 * h..16 * h + 16 {
                            dot =
                                Self::fma(columns[k], Self::splat(f32::from(token.codes[k])), dot);
                        }
                        dot
                    };
                    let first = Self::mul(half(0), Self::splat(token.scales[0]));
                    let second = Self::splat(token.scales[1]);
                    if K::LAYOUT.two_scales() {
                        let second = Self::mul(half(1), second);
                        acc[t] = Self::fma(scales[0], first, acc[t]);
                        acc[t] = Self::fma(scales[1], second, acc[t]);
                    } else {
                        let dots = Self::fma(half(1), second, first);
                        acc[t] = Self::fma(scales[0], dots, acc[t]);
                    }
                    if K::LAYOUT.minimum {
                        acc[t] = Self::fma(minimum, Self::splat(token.total), acc[t]);
                    }
                }
            }
        }
        acc
    }
}

/// Spreads one block into columns of 16 rows, bias subtracted.
///
/// # Safety
/// `codes` is valid for `K::BLOCK_BYTES`.
#[inline(always)]
unsafe fn unpack<K: Format>(codes: *const u8, columns: &mut [F; BLOCK]) {
    // SAFETY: a caller's `line` is inside the block.
    let bytes = |line: usize| unsafe { &*codes.add(line * 64).cast::<[[u8; 4]; LANES]>() };
    for four in 0..BLOCK / 4 {
        let (line, shift, mask) = match K::LAYOUT.bits {
            8 => (four, 0, 255),
            _ => (four % 4, four / 4 * 4, 15),
        };
        let (low, (high_line, high_shift)) = (bytes(line), K::LAYOUT.high_at(four));
        let high = (K::LAYOUT.high() > 0).then(|| bytes(high_line));
        for i in 0..4 {
            for row in 0..LANES {
                let mut code = low[row][i] >> shift & mask;
                if let Some(high) = high {
                    code |= (high[row][i] >> high_shift & K::LAYOUT.high_mask()) << 4;
                }
                columns[four * 4 + i].0[row] = (i32::from(code) - K::LAYOUT.zero) as f32;
            }
        }
    }
}

/// f16 bits to f32, exact, without branches.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Re-bias the exponent by a multiplication, which also normalises subnormals.
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(finite.to_bits() | special | (u32::from(bits & 0x8000) << 16))
}

/// f32 to f16 bits, to nearest even; beyond the range to infinity, NaN to NaN.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let result = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Below the smallest normal f16: adding 0.5 lets the addition round.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    } else {
        let odd = (magnitude >> 13) & 1;
        (magnitude.wrapping_add(0xc800_0fff) + odd) >> 13
    };
    result as u16 | sign
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_becomes_its_f32() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            if theirs.is_nan() {
                assert!(ours.is_nan(), "{bits:#x}");
            } else {
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn f32_rounds_to_f16_like_the_reference() {
        // Every f16, its neighbours in f32, and the midpoints between two f16.
        for bits in 0..0x7c00u16 {
            let here = f16::from_bits(bits).to_f32();
            let next = f16::from_bits(bits + 1).to_f32();
            let middle = if next.is_finite() {
                (here + next) / 2.0
            } else {
                65_520.0
            };
            for x in [here, middle, middle.next_up(), middle.next_down()] {
                for x in [x, -x] {
                    assert_eq!(f32_to_f16(x), f16::from_f32(x).to_bits(), "{x:e}");
                }
            }
        }
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
        assert!(f16::from_bits(f32_to_f16(f32::NAN)).is_nan());
    }
}
