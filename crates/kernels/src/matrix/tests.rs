use super::*;
use half::f16;

#[test]
fn packed_rows_read_back_as_the_file_says() {
    // 17 rows: the second group is mostly padding.
    for format in [BlockFormat::Q4_0, BlockFormat::Q4_1, BlockFormat::Q8_0] {
        let (rows, cols) = (17, 64);
        let mut file = Vec::new();
        for i in 0..rows * cols / BLOCK {
            file.extend(f16::from_f32(0.25 + i as f32).to_le_bytes());
            if format == BlockFormat::Q4_1 {
                file.extend(f16::from_f32(-3.0).to_le_bytes());
            }
            let data = if format == BlockFormat::Q8_0 { 32 } else { 16 };
            file.extend((0..data).map(|k| (k * 37 + i * 11) as u8));
        }
        let matrix = Matrix::Int8(
            PackedInt8::pack(&mut Arena::default(), format, rows, cols, &file).unwrap(),
        );
        let mut got = vec![0.0; cols];
        for row in 0..rows {
            matrix.row(row, &mut got);
            for (column, got) in got.iter().enumerate() {
                assert_eq!(
                    *got,
                    expected(format, &file, row * 2 + column / 32, column % 32)
                );
            }
        }
    }
}

fn expected(format: BlockFormat, file: &[u8], block: usize, column: usize) -> f32 {
    let bytes = &file[block * format.file_bytes()..][..format.file_bytes()];
    let scale = 0.25 + block as f32;
    let nibble = |data: &[u8]| {
        if column < 16 {
            data[column] & 15
        } else {
            data[column - 16] >> 4
        }
    };
    match format {
        BlockFormat::Q4_0 => scale * (f32::from(nibble(&bytes[2..])) - 8.0),
        BlockFormat::Q4_1 => scale * f32::from(nibble(&bytes[4..])) - 3.0,
        BlockFormat::Q8_0 => scale * f32::from(bytes[2 + column] as i8),
    }
}

#[test]
fn requantized_rows_stay_within_half_a_step() {
    let value = |row: usize, column: usize| ((row * 7 + column * 13) % 101) as f32 - 50.0;
    let fill = |row: usize, out: &mut [f32]| {
        out.iter_mut()
            .enumerate()
            .for_each(|(c, o)| *o = value(row, c));
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
