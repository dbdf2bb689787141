use super::*;
use crate::{Arena, BLOCK, Int8Rows, Isa};

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

/// A matrix of each kind, with a padded last group.
fn matrices(rows: usize, cols: usize) -> Vec<Matrix> {
    let fill = |row: usize, out: &mut [f32]| out.copy_from_slice(&noise(row, cols));
    let file = |bytes: usize| {
        let mut file: Vec<u8> = (0..rows * cols / BLOCK * bytes)
            .map(|i| (i * 131 + i / 7) as u8)
            .collect();
        for block in file.chunks_exact_mut(bytes) {
            block[1] = 0x28 + (block[1] & 3); // a scale near 0.03..0.3, whatever the rest
            if bytes == 20 {
                block[3] = 0xb0; // a small negative minimum
            }
        }
        file
    };
    let mut arena = Arena::default();
    vec![
        Matrix::F32(PackedF32::pack(&mut arena, rows, cols, fill).unwrap()),
        Matrix::Int8(PackedInt8::quantize(&mut arena, rows, cols, fill).unwrap()),
        Matrix::Int8(
            PackedInt8::pack(&mut arena, BlockFormat::Q4_0, rows, cols, &file(18)).unwrap(),
        ),
        Matrix::Int8(
            PackedInt8::pack(&mut arena, BlockFormat::Q4_1, rows, cols, &file(20)).unwrap(),
        ),
        Matrix::Int8(
            PackedInt8::pack(&mut arena, BlockFormat::Q8_0, rows, cols, &file(34)).unwrap(),
        ),
    ]
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

#[test]
fn products_match_f64_sums() {
    let (rows, cols, tokens) = (37, 160, 11);
    let x = noise(9, tokens * cols);
    for matrix in matrices(rows, cols) {
        for kernels in isas() {
            let got = product(kernels, &matrix, &x, 0..matrix.groups());
            let mut weights = vec![0.0; cols];
            for row in 0..rows {
                matrix.row(row, &mut weights);
                for token in 0..tokens {
                    let x = &x[token * cols..][..cols];
                    let terms = weights
                        .iter()
                        .zip(x)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let size: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
                    // int8 activations: half a step of 1/127 a term, all of one sign at worst.
                    let bound = if matches!(matrix, Matrix::F32(_)) {
                        1e-6
                    } else {
                        0.5 / 127.0
                    };
                    let error = (f64::from(got[token * rows + row]) - terms.sum::<f64>()).abs();
                    assert!(
                        error <= bound * size,
                        "{} row {row}: {error}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_bits_alone_and_in_any_company() {
    let (rows, cols, tokens) = (40, 192, 19);
    let x = noise(3, tokens * cols);
    for matrix in matrices(rows, cols) {
        for kernels in isas() {
            let together = product(kernels, &matrix, &x, 0..matrix.groups());
            for tile in [1, 2, 3, 5, 8, 13] {
                for (i, part) in x.chunks(tile * cols).enumerate() {
                    let alone = product(kernels, &matrix, part, 0..matrix.groups());
                    let expected = &together[i * tile * rows..][..alone.len()];
                    assert_eq!(bits(&alone), bits(expected), "{} by {tile}", kernels.isa());
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
    let matrix = &matrices(rows, cols)[0];
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
    let matrix = &matrices(20, 64)[0];
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
