//! Weight matrices, packed once at load: groups of 16 rows side by side, so that a vector holds
//! the same column (f32) or the same four columns (int8) of 16 rows.

use crate::arena::{Arena, OutOfMemory, Piece};
use crate::lanes::{WeightGroup, f16_to_f32, f32_to_f16};

/// Rows in a group: one lane for each.
pub const GROUP: usize = 16;
/// Columns in a quantized block, as in GGUF's Q4_0, Q4_1 and Q8_0.
pub const BLOCK: usize = 32;
/// Columns that the f32 product sums before it adds to the running total.
pub const F32_BLOCK: usize = 64;

/// A weight matrix of either numeric path.
#[derive(Debug)]
pub enum Matrix {
    /// Dequantized weights, for f32 activations.
    F32(PackedF32),
    /// Quantized weights, for int8 activations.
    Int8(PackedInt8),
}

impl Matrix {
    /// Output features.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::F32(m) => m.rows,
            Matrix::Int8(m) => m.rows,
        }
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        match self {
            Matrix::F32(m) => m.cols,
            Matrix::Int8(m) => m.cols,
        }
    }

    /// Groups of 16 rows, the last one perhaps padded: the unit in which work is split.
    pub fn groups(&self) -> usize {
        self.rows().div_ceil(GROUP)
    }

    /// Writes the weights of one row, as f32. Panics if `row` or the length of `out` is wrong.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.rows() && out.len() == self.cols(),
            "row {row} of {}",
            self.rows()
        );
        match self {
            Matrix::F32(m) => m.row(row, out),
            Matrix::Int8(m) => m.row(row, out),
        }
    }
}

/// 64 bytes on a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// f32 weights as `[group][column][16 rows]`.
#[derive(Debug)]
pub struct PackedF32 {
    rows: usize,
    cols: usize,
    lines: Piece<Line<[f32; GROUP]>>,
}

impl PackedF32 {
    /// Packs `rows` rows of `cols` columns; `fill(row, out)` writes one row.
    pub fn pack(
        arena: &mut Arena,
        rows: usize,
        cols: usize,
        mut fill: impl FnMut(usize, &mut [f32]),
    ) -> Result<PackedF32, OutOfMemory> {
        let mut lines: Piece<Line<[f32; GROUP]>> = arena.take(rows.div_ceil(GROUP) * cols)?;
        let mut row_values = vec![0.0; cols];
        for row in 0..rows {
            fill(row, &mut row_values);
            let group = &mut lines[row / GROUP * cols..][..cols];
            for (line, value) in group.iter_mut().zip(&row_values) {
                line.0[row % GROUP] = *value;
            }
        }
        Ok(PackedF32 { rows, cols, lines })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    fn row(&self, row: usize, out: &mut [f32]) {
        let group = &self.lines[row / GROUP * self.cols..][..self.cols];
        for (out, line) in out.iter_mut().zip(group) {
            *out = line.0[row % GROUP];
        }
    }

    /// The first of `cols` lines of 16 f32.
    pub(crate) fn group(&self, group: usize) -> *const f32 {
        self.lines[group * self.cols..][..self.cols].as_ptr().cast()
    }
}

/// A GGUF block format that the int8 path takes as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFormat {
    /// f16 scale, 32 nibbles; value = scale * (code - 8).
    Q4_0,
    /// f16 scale, f16 minimum, 32 nibbles; value = scale * code + minimum.
    Q4_1,
    /// f16 scale, 32 signed bytes; value = scale * code.
    Q8_0,
}

impl BlockFormat {
    /// Bytes of one block of 32 columns in a GGUF file.
    pub fn file_bytes(self) -> usize {
        match self {
            BlockFormat::Q4_0 => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q8_0 => 34,
        }
    }

    fn nibbles(self) -> bool {
        self != BlockFormat::Q8_0
    }

    /// 64-byte lines of a packed block of 16 rows.
    fn lines(self) -> usize {
        if self.nibbles() {
            Q4_0::BLOCK_BYTES / 64
        } else {
            Q8_0::BLOCK_BYTES / 64
        }
    }
}

/// What a kernel must know about a format at compile time.
pub(crate) trait Format: Copy {
    /// Two codes in a byte (first and second 16 columns), or one.
    const NIBBLES: bool;
    /// What is subtracted from every (unsigned) code.
    const BIAS: i32;
    /// Whether a minimum is added.
    const MIN: bool;
    /// Bytes of a packed block: 16 rows × 32 columns.
    const BLOCK_BYTES: usize = if Self::NIBBLES { 256 } else { 512 };
}

#[derive(Clone, Copy)]
pub(crate) struct Q4_0;
#[derive(Clone, Copy)]
pub(crate) struct Q4_1;
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Format for Q4_0 {
    const NIBBLES: bool = true;
    const BIAS: i32 = 8;
    const MIN: bool = false;
}

impl Format for Q4_1 {
    const NIBBLES: bool = true;
    const BIAS: i32 = 0;
    const MIN: bool = true;
}

impl Format for Q8_0 {
    const NIBBLES: bool = false;
    const BIAS: i32 = 128;
    const MIN: bool = false;
}

/// Quantized weights as `[group][block][line][16 rows × 4 columns]`.
///
/// Byte `4 * row + i` of line `l` holds the unsigned code of column `4 * l + i`; in the nibble
/// formats that is the low nibble, and the high one is column `16 + 4 * l + i`. Signed bytes are
/// stored plus 128, because `vpdpbusd` multiplies unsigned by signed.
#[derive(Debug)]
pub struct PackedInt8 {
    rows: usize,
    cols: usize,
    format: BlockFormat,
    lines: Piece<Line<[u8; 64]>>,
    scales: Piece<u16>,
    minima: Piece<u16>,
}

impl PackedInt8 {
    /// Packs the blocks of a GGUF tensor, row by row. Panics unless `cols` is a multiple of
    /// [`BLOCK`] and `file` has exactly the bytes of `rows * cols / 32` blocks.
    pub fn pack(
        arena: &mut Arena,
        format: BlockFormat,
        rows: usize,
        cols: usize,
        file: &[u8],
    ) -> Result<PackedInt8, OutOfMemory> {
        assert!(
            cols.is_multiple_of(BLOCK),
            "{cols} columns are not whole blocks"
        );
        let blocks = cols / BLOCK;
        assert_eq!(
            file.len(),
            rows * blocks * format.file_bytes(),
            "bytes of the tensor"
        );
        let mut packed = Self::zeroed(arena, format, rows, cols)?;
        for (i, block) in file.chunks_exact(format.file_bytes()).enumerate() {
            packed.put_file_block(i / blocks, i % blocks, block);
        }
        Ok(packed)
    }

    /// Quantizes rows of f32 to Q8_0 (for dtypes without an integer kernel); `fill(row, out)`
    /// writes one row. Panics unless `cols` is a multiple of [`BLOCK`].
    pub fn quantize(
        arena: &mut Arena,
        rows: usize,
        cols: usize,
        mut fill: impl FnMut(usize, &mut [f32]),
    ) -> Result<PackedInt8, OutOfMemory> {
        assert!(
            cols.is_multiple_of(BLOCK),
            "{cols} columns are not whole blocks"
        );
        let mut packed = Self::zeroed(arena, BlockFormat::Q8_0, rows, cols)?;
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            fill(row, &mut values);
            for (block, x) in values.chunks_exact(BLOCK).enumerate() {
                let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let scale = largest / 127.0;
                let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                let mut codes = [0u8; BLOCK];
                for (code, v) in codes.iter_mut().zip(x) {
                    *code = ((v * inverse).round_ties_even() as i8 as u8) ^ 0x80;
                }
                packed.put(row, block, f32_to_f16(scale), 0, &codes);
            }
        }
        Ok(packed)
    }

    /// Whether every scale and minimum, and with them every weight, is finite.
    pub fn is_finite(&self) -> bool {
        self.scales
            .iter()
            .chain(&*self.minima)
            .all(|bits| bits & 0x7c00 != 0x7c00)
    }

    /// The format in which the weights are held.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    fn zeroed(
        arena: &mut Arena,
        format: BlockFormat,
        rows: usize,
        cols: usize,
    ) -> Result<PackedInt8, OutOfMemory> {
        let blocks = rows.div_ceil(GROUP) * (cols / BLOCK);
        let minima = if format == BlockFormat::Q4_1 {
            blocks * GROUP
        } else {
            0
        };
        Ok(PackedInt8 {
            rows,
            cols,
            format,
            lines: arena.take(blocks * format.lines())?,
            scales: arena.take(blocks * GROUP)?,
            minima: arena.take(minima)?,
        })
    }

    fn put_file_block(&mut self, row: usize, block: usize, bytes: &[u8]) {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (minimum, data) = match self.format {
            BlockFormat::Q4_0 | BlockFormat::Q8_0 => (0, &bytes[2..]),
            BlockFormat::Q4_1 => (half(2), &bytes[4..]),
        };
        let mut codes = [0u8; BLOCK];
        for (column, code) in codes.iter_mut().enumerate() {
            *code = match self.format {
                BlockFormat::Q8_0 => data[column] ^ 0x80,
                _ if column < 16 => data[column] & 15,
                _ => data[column - 16] >> 4,
            };
        }
        self.put(row, block, half(0), minimum, &codes);
    }

    /// Stores the unsigned codes of one row's block.
    fn put(&mut self, row: usize, block: usize, scale: u16, minimum: u16, codes: &[u8; BLOCK]) {
        let at = row / GROUP * (self.cols / BLOCK) + block;
        let lane = row % GROUP;
        self.scales[at * GROUP + lane] = scale;
        if !self.minima.is_empty() {
            self.minima[at * GROUP + lane] = minimum;
        }
        let lines = &mut self.lines[at * self.format.lines()..][..self.format.lines()];
        for (l, line) in lines.iter_mut().enumerate() {
            for i in 0..4 {
                let low = codes[4 * l + i];
                let high = if self.format.nibbles() {
                    codes[16 + 4 * l + i] << 4
                } else {
                    0
                };
                line.0[4 * lane + i] = low | high;
            }
        }
    }

    fn row(&self, row: usize, out: &mut [f32]) {
        let lane = row % GROUP;
        for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let at = row / GROUP * (self.cols / BLOCK) + block;
            let scale = f16_to_f32(self.scales[at * GROUP + lane]);
            let minimum = self
                .minima
                .get(at * GROUP + lane)
                .map_or(0.0, |m| f16_to_f32(*m));
            let lines = &self.lines[at * self.format.lines()..][..self.format.lines()];
            for (column, out) in out.iter_mut().enumerate() {
                let byte = |column: usize| lines[column / 4].0[4 * lane + column % 4];
                let code = match self.format {
                    BlockFormat::Q8_0 => i32::from(byte(column)) - 128,
                    _ if column < 16 => i32::from(byte(column) & 15),
                    _ => i32::from(byte(column - 16) >> 4),
                };
                let bias = if self.format == BlockFormat::Q4_0 {
                    8
                } else {
                    0
                };
                *out = scale * (code - bias) as f32 + minimum;
            }
        }
    }

    /// One group, checked to hold all of its blocks (no minima where the format has none).
    pub(crate) fn group(&self, group: usize) -> WeightGroup {
        let blocks = self.cols / BLOCK;
        let lines = blocks * self.format.lines();
        let halves = blocks * GROUP;
        let minima = if self.minima.is_empty() {
            &[][..]
        } else {
            &self.minima[group * halves..][..halves]
        };
        WeightGroup {
            codes: self.lines[group * lines..][..lines].as_ptr().cast(),
            scales: self.scales[group * halves..][..halves].as_ptr(),
            minima: minima.as_ptr(),
            blocks,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests;
