use super::*;
use crate::{Arena, BLOCK, Isa};
use gguf::DType;

/// Numbers in -1..1 that differ everywhere.
fn noise(seed: usize, n: usize) -> Vec<f32> {
    let hash = |i: usize| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(97)) % 2003;
    (0..n)
        .map(|i| hash(i + seed) as f32 / 1001.5 - 1.0)
        .collect()
}

fn isas() -> impl Iterator<Item = Kernels> {
    Isa::ALL
        .into_iter()
        .filter_map(|isa| Kernels::new(isa).ok())
}

/// A matrix of each kind, with a padded last group; of each type also one whose codes are the largest.
fn matrices(rows: usize, cols: usize) -> Vec<(String, Matrix)> {
    let fill = |row: usize, out: &mut [f32]| {
        out.copy_from_slice(&noise(row, cols));
        Ok::<(), crate::OutOfMemory>(())
    };
    let mut arena = Arena::default();
    let floats = PackedF32::pack(&mut arena, rows, cols, fill).unwrap();
    let bytes = PackedInt8::quantize(&mut arena, rows, cols, fill).unwrap();
    let mut all = vec![
        ("floats".to_owned(), Matrix::F32(floats)),
        ("quantized here".to_owned(), Matrix::Int8(bytes)),
    ];
    for dtype in DType::ALL.into_iter().filter(|it| PackedInt8::takes(*it)) {
        if !cols.is_multiple_of(dtype.block_len()) {
            continue;
        }
        let drawn = testkit::draw("weights", rows * cols, 0.0, 1.0, dtype);
        let mut largest = drawn.clone();
        for block in largest.chunks_exact_mut(dtype.block_bytes()) {
            let codes = match dtype {
                DType::Q6_K => 0..208,
                DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => 4..block.len(),
                _ => 2..block.len(),
            };
            block[codes].fill(if dtype == DType::Q8_0 { 127 } else { 255 });
        }
        for (what, file) in [("drawn", drawn), ("largest", largest)] {
            let packed = crate::matrix::tests::pack(&mut arena, dtype, rows, &file);
            all.push((format!("{dtype} {what}"), Matrix::Int8(packed)));
        }
    }
    all
}

fn product(kernels: Kernels, matrix: &Matrix, x: &[f32], groups: Range<usize>) -> Vec<f32> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut out = vec![f32::NAN; x.len() / cols * rows];
    let mut int8 = Int8Rows::default();
    let input = match matrix {
        Matrix::F32(_) => Rows::F32 { values: x, cols },
        Matrix::Int8(_) => {
            kernels.quantize(x, cols, &mut int8);
            Rows::Int8(&int8)
        }
    };
    let start = groups.start * GROUP;
    let target = Target {
        values: &mut out[start..],
        token_stride: rows,
        group_stride: GROUP,
    };
    kernels.matmul(matrix, input, groups, target);
    out
}

/// What the product takes the activations for: they are rounded to int8 before.
fn as_rounded(kernels: Kernels, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
    if matches!(matrix, Matrix::F32(_)) {
        return x.to_vec();
    }
    let mut int8 = Int8Rows::default();
    kernels.quantize(x, matrix.cols(), &mut int8);
    let rows = (0..int8.rows()).flat_map(|token| int8.row(token));
    let values = |block: &TokenBlock| -> [f32; BLOCK] {
        std::array::from_fn(|k| f32::from(block.codes[k]) * block.scales[k / 16])
    };
    rows.flat_map(values).collect()
}

#[test]
fn products_match_f64_sums() {
    for (rows, cols, tokens) in [(37, 160, 11), (21, 512, 11), (16, 256, 1), (3, 1280, 2)] {
        let mut x = noise(9, tokens * cols);
        x[..cols].fill(1.0); // the largest code everywhere
        for (what, matrix) in matrices(rows, cols) {
            for kernels in isas() {
                let got = product(kernels, &matrix, &x, 0..matrix.groups());
                let x = as_rounded(kernels, &matrix, &x);
                let mut weights = vec![0.0; cols];
                for row in 0..rows {
                    matrix.row(row, &mut weights);
                    let size: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
                    for (token, x) in x.chunks_exact(cols).enumerate() {
                        let terms = weights.iter().zip(x);
                        let sum: f64 = terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                        let error = (f64::from(got[token * rows + row]) - sum).abs();
                        let isa = kernels.isa();
                        assert!(
                            error <= 2e-6 * size,
                            "{what} {isa} row {row}: {error} of {size}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_bits_alone_and_in_any_company() {
    let (rows, cols, tokens) = (40, 256, 19);
    let x = noise(3, tokens * cols);
    for (what, matrix) in matrices(rows, cols) {
        for kernels in isas() {
            let together = product(kernels, &matrix, &x, 0..matrix.groups());
            for tile in [1, 2, 3, 5, 8, 13] {
                for (i, part) in x.chunks(tile * cols).enumerate() {
                    let alone = product(kernels, &matrix, part, 0..matrix.groups());
                    let expected = &together[i * tile * rows..][..alone.len()];
                    assert_eq!(
                        bits(&alone),
                        bits(expected),
                        "{what} {} by {tile}",
                        kernels.isa()
                    );
                }
            }
            for groups in [0..1, 1..3, 2..3] {
                let part = product(kernels, &matrix, &x, groups.clone());
                let columns = groups.start * GROUP..rows.min(groups.end * GROUP);
                for (part, whole) in part.chunks(rows).zip(together.chunks(rows)) {
                    assert_eq!(bits(&part[columns.clone()]), bits(&whole[columns.clone()]));
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn group_major_targets_hold_the_same_values() {
    let (rows, cols, tokens) = (20, 64, 3);
    let x = noise(5, tokens * cols);
    let matrix = &matrices(rows, cols)[0].1;
    let kernels = Kernels::new(Isa::Portable).unwrap();
    let expected = product(kernels, matrix, &x, 0..2);
    let mut out = vec![0.0; 2 * GROUP * tokens];
    let target = Target {
        values: &mut out,
        token_stride: GROUP,
        group_stride: GROUP * tokens,
    };
    kernels.matmul(matrix, Rows::F32 { values: &x, cols }, 0..2, target);
    for token in 0..tokens {
        for row in 0..rows {
            let at = row / GROUP * GROUP * tokens + token * GROUP + row % GROUP;
            assert_eq!(out[at], expected[token * rows + row]);
        }
    }
}

#[test]
#[should_panic(expected = "target")]
fn a_target_one_short_is_refused() {
    let matrix = &matrices(20, 64)[0].1;
    let mut out = vec![0.0; 39];
    let target = Target {
        values: &mut out,
        token_stride: 20,
        group_stride: GROUP,
    };
    let rows = Rows::F32 {
        values: &[0.0; 128],
        cols: 64,
    };
    Kernels::new(Isa::Portable)
        .unwrap()
        .matmul(matrix, rows, 0..2, target);
}
