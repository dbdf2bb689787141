use super::*;
use testkit::draw;

/// The rows of a tensor that are in memory.
pub(crate) fn pack(arena: &mut Arena, dtype: DType, rows: usize, file: &[u8]) -> PackedInt8 {
    let row_bytes = file.len() / rows;
    let cols = row_bytes / dtype.block_bytes() * dtype.block_len();
    let fill = |row: usize, out: &mut [u8]| {
        out.copy_from_slice(&file[row * row_bytes..][..row_bytes]);
        Ok::<(), OutOfMemory>(())
    };
    PackedInt8::pack(arena, dtype, rows, cols, fill).unwrap()
}

#[test]
fn packed_rows_read_back_as_the_file_says() {
    // 17 rows: the second group is mostly padding.
    let (rows, cols) = (17, 512);
    let mut taken = 0;
    for dtype in DType::ALL.into_iter().filter(|it| PackedInt8::takes(*it)) {
        let file = draw("weights", rows * cols, 0.0, 1.0, dtype);
        let packed = pack(&mut Arena::default(), dtype, rows, &file);
        let matrix = Matrix::Int8(packed);
        let mut got = vec![0.0; cols];
        let row_bytes = file.len() / rows;
        for (row, bytes) in file.chunks_exact(row_bytes).enumerate() {
            matrix.row(row, &mut got);
            let mut expected = Vec::new();
            for block in bytes.chunks_exact(dtype.block_bytes()) {
                for index in 0..dtype.block_len() / BLOCK {
                    expected.extend(Run::of(dtype, block, index).values(dtype.zero()));
                }
            }
            assert_eq!(got, expected, "{dtype} row {row}");
        }
        taken += 1;
    }
    assert_eq!(taken, 9);
}

#[test]
fn the_k_types_take_no_more_memory_than_a_twentieth_over_the_file() {
    let (rows, cols) = (32, 2048);
    for dtype in [DType::Q4_K, DType::Q5_K, DType::Q6_K] {
        let file = draw("weights", rows * cols, 0.0, 1.0, dtype);
        let packed = pack(&mut Arena::default(), dtype, rows, &file);
        let halves = packed.scales.len() + packed.minima.len();
        let bytes = packed.lines.len() * 64 + halves * 2 + packed.factors.len();
        assert!(
            bytes * 20 <= file.len() * 21,
            "{dtype}: {bytes} of {}",
            file.len()
        );
    }
}

#[test]
fn requantized_rows_stay_within_half_a_step() {
    let value = |row: usize, column: usize| ((row * 7 + column * 13) % 101) as f32 - 50.0;
    let fill = |row: usize, out: &mut [f32]| {
        out.iter_mut()
            .enumerate()
            .for_each(|(c, o)| *o = value(row, c));
        Ok::<(), OutOfMemory>(())
    };
    let matrix = Matrix::Int8(PackedInt8::quantize(&mut Arena::default(), 5, 96, fill).unwrap());
    let mut got = vec![0.0; 96];
    for row in 0..5 {
        matrix.row(row, &mut got);
        for (c, got) in got.iter().enumerate() {
            // Half a step of 50/127, and the rounding of the scale to f16.
            assert!(
                (got - value(row, c)).abs() < 0.25,
                "{got} {}",
                value(row, c)
            );
        }
    }
}
