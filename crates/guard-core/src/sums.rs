//! Checksums of blocks in the memory of a CPU. The same figures come from tensor operations on a
//! device (guards/python, `tensors.py`), which says how they are made and why; here is the loop.

/// Sums of one layer's blocks: `bytes` holds them one after the other, `size` bytes each. Words are
/// of 4 bytes, or of 2 or 1 where 4 does not divide `size`; signed, multiplied with a coefficient
/// for each place, added modulo 2^64. Coefficients beyond the block are not used.
///
/// # Panics
/// If `size` is zero, does not divide `bytes`, or has more words than there are coefficients.
pub fn block_sums(bytes: &[u8], size: usize, coefficients: &[u64]) -> Vec<u64> {
    assert!(size > 0 && bytes.len().is_multiple_of(size), "whole blocks");
    let sum: fn(&[u8], &[u64]) -> u64 = match size {
        size if size.is_multiple_of(4) => |block, coefficients| {
            let words = block.as_chunks::<4>().0.iter();
            dot(
                words.map(|word| i64::from(i32::from_le_bytes(*word))),
                coefficients,
            )
        },
        size if size.is_multiple_of(2) => |block, coefficients| {
            let words = block.as_chunks::<2>().0.iter();
            dot(
                words.map(|word| i64::from(i16::from_le_bytes(*word))),
                coefficients,
            )
        },
        _ => |block, coefficients| {
            dot(
                block.iter().map(|byte| i64::from(byte.cast_signed())),
                coefficients,
            )
        },
    };
    bytes
        .chunks_exact(size)
        .map(|block| sum(block, coefficients))
        .collect()
}

fn dot(words: impl ExactSizeIterator<Item = i64>, coefficients: &[u64]) -> u64 {
    let coefficients = &coefficients[..words.len()];
    let products = words.zip(coefficients);
    products.fold(0u64, |sum, (word, coefficient)| {
        sum.wrapping_add(word.cast_unsigned().wrapping_mul(*coefficient))
    })
}

#[cfg(test)]
mod tests {
    use super::block_sums;

    #[test]
    fn words_are_signed_and_weighed_by_their_places() {
        let coefficients = [3, 5, 7, 9];
        let words = [1i32, -2].map(i32::to_le_bytes).concat();
        assert_eq!(
            block_sums(&words, 8, &coefficients),
            [3u64.wrapping_sub(10)]
        );
        assert_eq!(
            block_sums(&words, 4, &coefficients),
            [3, 6u64.wrapping_neg()]
        );
        let halves = [-1i16, 2, 4].map(i16::to_le_bytes).concat();
        assert_eq!(block_sums(&halves, 6, &coefficients), [35]);
        assert_eq!(block_sums(&[255, 1, 0], 3, &coefficients), [2]);
        assert_eq!(block_sums(&[], 3, &coefficients), [0u64; 0]);
    }
}
