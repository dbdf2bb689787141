//! Random tensors of every type, drawn from their names: the same ones that
//! `crates/model/tests/reference/make.py` draws.

use gguf::DType;
use half::{bf16, f16};

use crate::small::Random;

/// A tensor as it is stored, of about this mean and deviation (quantized ones have mean 0): floats
/// are rounded, blocks are random bytes under scales that fit. Panics if they are not whole.
pub fn draw(name: &str, count: usize, mean: f32, deviation: f32, dtype: DType) -> Vec<u8> {
    let mut random = Random(hash(name));
    let floats = || (0..count).map(move |_| mean + deviation * random.normal());
    match dtype {
        DType::F32 => floats().flat_map(f32::to_le_bytes).collect(),
        DType::F16 => floats()
            .flat_map(|x| f16::from_f32(x).to_le_bytes())
            .collect(),
        DType::BF16 => floats()
            .flat_map(|x| bf16::from_f32(x).to_le_bytes())
            .collect(),
        _ => blocks(name, count, deviation, dtype),
    }
}

fn blocks(name: &str, count: usize, deviation: f32, dtype: DType) -> Vec<u8> {
    assert!(count.is_multiple_of(dtype.block_len()), "whole blocks");
    let size = dtype.block_bytes();
    let len = count / dtype.block_len() * size;
    let mut random = Random(hash(name));
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
    let mut bytes: Vec<u8> = words.take(len).collect();
    for block in bytes.chunks_exact_mut(size) {
        for (at, factor) in halves(dtype) {
            let spread = 0.75 + f32::from(block[*at]) / 512.0;
            let half = f16::from_f32(deviation * factor * spread);
            block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}

/// Where a block has its numbers of 16 bits, and what they are multiplied with so that random codes
/// give numbers of deviation 1.
fn halves(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_0 => &[(0, 0.217)],
        DType::Q4_1 => &[(0, 0.217), (2, -1.627)],
        DType::Q5_0 => &[(0, 0.108)],
        DType::Q5_1 => &[(0, 0.108), (2, -1.68)],
        DType::Q8_0 => &[(0, 0.01353)],
        DType::IQ4_NL => &[(0, 0.0139)],
        DType::Q4_K => &[(0, 0.00387), (2, 0.029)],
        DType::Q5_K => &[(0, 0.0019), (2, 0.0294)],
        DType::Q6_K => &[(208, 0.000733)],
        DType::F32 | DType::F16 | DType::BF16 => &[],
    }
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}
