//! Block formats to float32. The order of every multiplication is that of the reference, so
//! results are equal bit for bit and the tests can ask for that.

use half::{bf16, f16};

use crate::DType;

/// Turns whole blocks into float32. The caller gives exactly the bytes of `out.len()` elements.
pub(crate) fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(out.len() % dtype.block_len(), 0);
    assert_eq!(
        bytes.len(),
        out.len() / dtype.block_len() * dtype.block_bytes()
    );
    match dtype {
        DType::F32 => blocks(bytes, out, |b: &[u8; 4], x: &mut [f32; 1]| {
            x[0] = f32::from_le_bytes(*b);
        }),
        DType::F16 => blocks(bytes, out, |b: &[u8; 2], x: &mut [f32; 1]| x[0] = half(*b)),
        DType::BF16 => blocks(bytes, out, |b: &[u8; 2], x: &mut [f32; 1]| {
            x[0] = bf16::from_le_bytes(*b).to_f32();
        }),
        DType::Q4_0 => blocks(bytes, out, q4_0),
        DType::Q4_1 => blocks(bytes, out, q4_1),
        DType::Q8_0 => blocks(bytes, out, q8_0),
        DType::Q4_K => blocks(bytes, out, q4_k),
        DType::Q5_K => blocks(bytes, out, q5_k),
        DType::Q6_K => blocks(bytes, out, q6_k),
        DType::Q5_0 => blocks(bytes, out, q5_0),
        DType::Q5_1 => blocks(bytes, out, q5_1),
        DType::IQ4_NL => blocks(bytes, out, iq4_nl),
    }
}

fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (stored, _) = bytes.as_chunks::<B>();
    let (numbers, _) = out.as_chunks_mut::<N>();
    for (stored, numbers) in stored.iter().zip(numbers) {
        block(stored, numbers);
    }
}

fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half([block[0], block[1]]);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = scale * f32::from((byte & 15) as i8 - 8);
        out[i + 16] = scale * f32::from((byte >> 4) as i8 - 8);
    }
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let scale = half([block[0], block[1]]);
    let minimum = half([block[2], block[3]]);
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = scale * f32::from(byte & 15) + minimum;
        out[i + 16] = scale * f32::from(byte >> 4) + minimum;
    }
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half([block[0], block[1]]);
    for (x, code) in out.iter_mut().zip(five_bits(&block[2..])) {
        *x = scale * f32::from(code as i8 - 16);
    }
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let scale = half([block[0], block[1]]);
    let minimum = half([block[2], block[3]]);
    for (x, code) in out.iter_mut().zip(five_bits(&block[4..])) {
        *x = scale * f32::from(code) + minimum;
    }
}

/// The codes of a block: bit i of the first four bytes is the fifth bit of code i; the low four are
/// in the next 16 bytes, those of codes 16 and up in the high halves.
fn five_bits(stored: &[u8]) -> [u8; 32] {
    let fifth = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
    std::array::from_fn(|i| {
        let low = stored[4 + i % 16] >> (i / 16 * 4) & 15;
        low | ((fifth >> i & 1) as u8) << 4
    })
}

fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    const VALUES: [i8; 16] = [
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
    ];
    let scale = half([block[0], block[1]]);
    let value = |code: u8| scale * f32::from(VALUES[usize::from(code)]);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = value(byte & 15);
        out[i + 16] = value(byte >> 4);
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half([block[0], block[1]]);
    for (x, byte) in out.iter_mut().zip(&block[2..]) {
        *x = scale * f32::from(*byte as i8);
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let subs = sub_scales(block);
    let (pairs, _) = block[16..].as_chunks::<32>();
    for (pair, (bytes, out)) in pairs.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
        let [(low, low_min), (high, high_min)] = [subs[2 * pair], subs[2 * pair + 1]];
        for (i, byte) in bytes.iter().enumerate() {
            out[i] = low * f32::from(byte & 15) - low_min;
            out[i + 32] = high * f32::from(byte >> 4) - high_min;
        }
    }
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let subs = sub_scales(block);
    let fifth = &block[16..48]; // bit b of byte i is the fifth bit of element i of sub-block b
    let (pairs, _) = block[48..].as_chunks::<32>();
    for (pair, (bytes, out)) in pairs.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
        let [(low, low_min), (high, high_min)] = [subs[2 * pair], subs[2 * pair + 1]];
        for (i, byte) in bytes.iter().enumerate() {
            let bits = fifth[i] >> (2 * pair);
            out[i] = low * f32::from(byte & 15 | (bits & 1) << 4) - low_min;
            out[i + 32] = high * f32::from(byte >> 4 | (bits >> 1 & 1) << 4) - high_min;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half([block[208], block[209]]);
    let (low, high, subs) = (&block[..128], &block[128..192], &block[192..208]);
    let sub_scale = |i: usize| scale * f32::from(subs[i] as i8);
    for (n, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let (low, high) = (&low[64 * n..][..64], &high[32 * n..][..32]);
        for i in 0..32 {
            let q = [low[i] & 15, low[i + 32] & 15, low[i] >> 4, low[i + 32] >> 4];
            for (quarter, q) in q.into_iter().enumerate() {
                let q = (q | (high[i] >> (2 * quarter) & 3) << 4) as i8 - 32;
                out[32 * quarter + i] = sub_scale(8 * n + 2 * quarter + i / 16) * f32::from(q);
            }
        }
    }
}

/// Scale and minimum of the eight sub-blocks of Q4_K and Q5_K: six bits each in 12 bytes. The
/// first four have the low six bits of bytes 0-3 (scales) and 4-7 (minima); the last four take
/// four bits from bytes 8-11 and their two high bits from the bits left over in bytes 0-7.
fn sub_scales(block: &[u8]) -> [(f32, f32); 8] {
    let scale = half([block[0], block[1]]);
    let minimum = half([block[2], block[3]]);
    let packed = &block[4..16];
    std::array::from_fn(|i| {
        let (s, m) = match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => (
                packed[i + 4] & 15 | packed[i - 4] >> 6 << 4,
                packed[i + 4] >> 4 | packed[i] >> 6 << 4,
            ),
        };
        (scale * f32::from(s), minimum * f32::from(m))
    })
}
