//! Quantized blocks of every type, as runs of 32 codes under one formula.

use half::f16;

use crate::DType;

/// 32 consecutive elements of a quantized row. In float32, and in this order, element `i` is
/// `scale * scale_factors[i / 16] * (codes[i] - zero) + minimum * minimum_factor`, where `zero` is
/// [`DType::zero`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// One code a byte.
    pub codes: [u8; 32],
    /// The block's scale, as the bits of a float16.
    pub scale: u16,
    /// The block's minimum in the same form; -0.0, which changes no sum, where the type has none.
    pub minimum: u16,
    /// What the scale is multiplied with for either half; 1 where the type has no such numbers.
    pub scale_factors: [i8; 2],
    /// The same for the minimum.
    pub minimum_factor: u8,
}

const NEGATIVE: u16 = 0x8000;

impl Run {
    /// Run `index` of a stored block. Panics if the block is not one of this type or has no such run,
    /// or if the type has no blocks (F32, F16, BF16).
    pub fn of(dtype: DType, block: &[u8], index: usize) -> Run {
        assert_eq!(block.len(), dtype.block_bytes(), "a block of {dtype}");
        assert!(index < dtype.block_len() / 32, "run {index} of {dtype}");
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let plain = |codes| Run {
            codes,
            scale: half(0),
            minimum: NEGATIVE,
            scale_factors: [1; 2],
            minimum_factor: 1,
        };
        let with_minimum = |codes| Run {
            minimum: half(2),
            ..plain(codes)
        };
        let with_factors = |codes| {
            let (scale, minimum) = six_bits(&block[4..16], index);
            Run {
                minimum: half(2) ^ NEGATIVE, // it is subtracted
                scale_factors: [scale; 2],
                minimum_factor: minimum,
                ..plain(codes)
            }
        };
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => unreachable!("a block of one number"),
            DType::Q4_0 => plain(nibbles(&block[2..])),
            DType::Q4_1 => with_minimum(nibbles(&block[4..])),
            DType::Q5_0 => plain(five_bits(&block[2..])),
            DType::Q5_1 => with_minimum(five_bits(&block[4..])),
            DType::Q8_0 => plain(std::array::from_fn(|i| block[2 + i] ^ 0x80)),
            DType::IQ4_NL => plain(nibbles(&block[2..]).map(|code| VALUES[usize::from(code)])),
            DType::Q4_K => with_factors(q4_k(&block[16..], index)),
            DType::Q5_K => with_factors(q5_k(&block[16..], index)),
            DType::Q6_K => Run {
                scale: half(208),
                scale_factors: [block[192 + 2 * index] as i8, block[193 + 2 * index] as i8],
                ..plain(q6_k(block, index))
            },
        }
    }

    /// The elements in float32, `zero` being [`DType::zero`] of the type that this was read from.
    pub fn values(&self, zero: i32) -> [f32; 32] {
        let scale = f16::from_bits(self.scale).to_f32();
        let scales = self.scale_factors.map(|factor| scale * f32::from(factor));
        let minimum = f16::from_bits(self.minimum).to_f32() * f32::from(self.minimum_factor);
        std::array::from_fn(|i| scales[i / 16] * (i32::from(self.codes[i]) - zero) as f32 + minimum)
    }
}

/// What the codes of IQ4_NL stand for, plus its [`DType::zero`].
const VALUES: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

/// Codes 0 to 15 are the low halves of 16 bytes, the others the high ones.
fn nibbles(stored: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| stored[i % 16] >> (i / 16 * 4) & 15)
}

/// Bit i of the first four bytes is the fifth bit of code i; the nibbles follow.
fn five_bits(stored: &[u8]) -> [u8; 32] {
    let fifth = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
    let low = nibbles(&stored[4..]);
    std::array::from_fn(|i| low[i] | ((fifth >> i & 1) as u8) << 4)
}

/// Runs share 32 bytes in pairs: the first of a pair has the low halves.
fn q4_k(stored: &[u8], run: usize) -> [u8; 32] {
    let pair = &stored[run / 2 * 32..][..32];
    std::array::from_fn(|i| pair[i] >> (run % 2 * 4) & 15)
}

/// Bit b of byte i is the fifth bit of code i of run b; what Q4_K has follows.
fn q5_k(stored: &[u8], run: usize) -> [u8; 32] {
    let (fifth, rest) = stored.split_at(32);
    let low = q4_k(rest, run);
    std::array::from_fn(|i| low[i] | (fifth[i] >> run & 1) << 4)
}

/// Of every 128 codes, 64 bytes with the low four bits of four runs (0 and 1 in the low halves, 2 and
/// 3 in the high ones), and 32 bytes with two high bits of each.
fn q6_k(stored: &[u8], run: usize) -> [u8; 32] {
    let (part, quarter) = (run / 4, run % 4);
    let low = &stored[64 * part + 32 * (quarter % 2)..][..32];
    let high = &stored[128 + 32 * part..][..32];
    std::array::from_fn(|i| low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (2 * quarter) & 3) << 4)
}

/// Factors of scale and minimum of a run of Q4_K and Q5_K: six bits each in 12 bytes. The first four
/// runs have the low six bits of bytes 0-3 (scales) and 4-7 (minima); the last four take four bits
/// from bytes 8-11 and their two high bits from the bits left over in bytes 0-7.
fn six_bits(packed: &[u8], run: usize) -> (i8, u8) {
    let (scale, minimum) = match run {
        0..4 => (packed[run] & 63, packed[run + 4] & 63),
        _ => (
            packed[run + 4] & 15 | packed[run - 4] >> 6 << 4,
            packed[run + 4] >> 4 | packed[run] >> 6 << 4,
        ),
    };
    (scale as i8, minimum)
}
