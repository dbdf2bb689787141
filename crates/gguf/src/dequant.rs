//! Stored numbers to float32. The order of every multiplication is that of the reference, so
//! results are equal bit for bit and the tests can ask for that.

use half::{bf16, f16};

use crate::{DType, Run};

impl DType {
    /// Turns whole blocks into float32. Panics unless `bytes` are exactly those of `out.len()` elements.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        let dtype = self;
        let (len, size) = (dtype.block_len(), dtype.block_bytes());
        assert_eq!(out.len() % len, 0);
        assert_eq!(bytes.len(), out.len() / len * size);
        match dtype {
            DType::F32 => numbers(bytes, out, f32::from_le_bytes),
            DType::F16 => numbers(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            DType::BF16 => numbers(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            _ => {
                let zero = dtype.zero();
                for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(len)) {
                    for (index, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                        *out = Run::of(dtype, block, index).values(zero);
                    }
                }
            }
        }
    }
}

fn numbers<const B: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; B]) -> f32) {
    for (stored, x) in bytes.as_chunks().0.iter().zip(out) {
        *x = number(*stored);
    }
}
