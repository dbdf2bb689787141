//! Weight matrices, packed once at load: groups of 16 rows side by side, so that a vector holds
//! the same column (f32) or the same four columns (int8) of 16 rows.

use gguf::{DType, Run};

use crate::arena::{Arena, OutOfMemory, Piece};
use crate::lanes::{WeightGroup, f16_to_f32, f32_to_f16};
use crate::layout::Layout;

/// Rows in a group: one lane for each.
pub const GROUP: usize = 16;
/// Columns in a block: a [`Run`] of each of 16 rows.
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

    /// Memory that a product reads.
    pub fn bytes(&self) -> usize {
        match self {
            Matrix::F32(m) => size_of_val(&*m.lines),
            Matrix::Int8(m) => {
                let scales = size_of_val(&*m.scales) + size_of_val(&*m.minima);
                size_of_val(&*m.lines) + scales + size_of_val(&*m.factors)
            }
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
    /// Packs `rows` rows of `cols` columns; `fill(row, out)` writes one row, the first one first.
    pub fn pack<E: From<OutOfMemory>>(
        arena: &mut Arena,
        rows: usize,
        cols: usize,
        mut fill: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<PackedF32, E> {
        let mut lines: Piece<Line<[f32; GROUP]>> = arena.take(rows.div_ceil(GROUP) * cols)?;
        let mut row_values = vec![0.0; cols];
        for row in 0..rows {
            fill(row, &mut row_values)?;
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

/// Quantized weights as `[group][block][line][16 rows × 4 columns]`; [`Layout`] says what is in a
/// block's lines.
#[derive(Debug)]
pub struct PackedInt8 {
    rows: usize,
    cols: usize,
    layout: Layout,
    lines: Piece<Line<[u8; 64]>>,
    /// `[group][shared blocks][16 rows]`, as the minima.
    scales: Piece<u16>,
    minima: Piece<u16>,
    /// `[group][block][2][16 rows]`.
    factors: Piece<i8>,
}

impl PackedInt8 {
    /// Packs the blocks of a GGUF tensor as they are; `fill(row, out)` writes the bytes of one row, the first
    /// one first. Panics unless [`PackedInt8::takes`] the type and `cols` is whole blocks.
    pub fn pack<E: From<OutOfMemory>>(
        arena: &mut Arena,
        dtype: DType,
        rows: usize,
        cols: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<PackedInt8, E> {
        let layout = Layout::of(dtype).expect("a type that is taken as it is");
        let (len, size) = (dtype.block_len(), dtype.block_bytes());
        assert!(cols.is_multiple_of(len), "{cols} columns are whole blocks");
        let mut packed = Self::zeroed(arena, layout, rows, cols)?;
        let mut bytes = vec![0; cols / len * size];
        for row in 0..rows {
            fill(row, &mut bytes)?;
            let runs = bytes
                .chunks_exact(size)
                .flat_map(|block| (0..len / BLOCK).map(move |index| Run::of(dtype, block, index)));
            for (block, run) in runs.enumerate() {
                packed.put(row, block, &run);
            }
        }
        Ok(packed)
    }

    /// Whether weights of this type are packed as they are.
    pub fn takes(dtype: DType) -> bool {
        Layout::of(dtype).is_some()
    }

    /// Quantizes rows of f32 to Q8_0 (for dtypes without an integer kernel); `fill(row, out)`
    /// writes one row, the first one first. Panics unless `cols` is a multiple of [`BLOCK`].
    pub fn quantize<E: From<OutOfMemory>>(
        arena: &mut Arena,
        rows: usize,
        cols: usize,
        mut fill: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<PackedInt8, E> {
        assert!(
            cols.is_multiple_of(BLOCK),
            "{cols} columns are not whole blocks"
        );
        let mut packed = Self::zeroed(arena, Layout::BYTES, rows, cols)?;
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            fill(row, &mut values)?;
            for (block, x) in values.chunks_exact(BLOCK).enumerate() {
                let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                let code = |v: f32| ((v * inverse).round_ties_even() as i8 as u8) ^ 0x80;
                let run = Run {
                    codes: std::array::from_fn(|i| code(x[i])),
                    scale: f32_to_f16(largest / 127.0),
                    minimum: 0,
                    scale_factors: [1; 2],
                    minimum_factor: 1,
                };
                packed.put(row, block, &run);
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

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    fn zeroed(
        arena: &mut Arena,
        layout: Layout,
        rows: usize,
        cols: usize,
    ) -> Result<PackedInt8, OutOfMemory> {
        let blocks = rows.div_ceil(GROUP) * (cols / BLOCK);
        let scales = blocks / layout.shared * GROUP;
        Ok(PackedInt8 {
            rows,
            cols,
            layout,
            lines: arena.take(blocks * layout.lines())?,
            scales: arena.take(scales)?,
            minima: arena.take(if layout.minimum { scales } else { 0 })?,
            factors: arena.take(if layout.factors() {
                blocks * 2 * GROUP
            } else {
                0
            })?,
        })
    }

    /// Where a row's block is: of blocks, of scales, and the lane.
    fn place(&self, row: usize, block: usize) -> (usize, usize, usize) {
        let (at, lane) = (row / GROUP * (self.cols / BLOCK) + block, row % GROUP);
        (at, at / self.layout.shared * GROUP + lane, lane)
    }

    /// Stores one row's block, once.
    fn put(&mut self, row: usize, block: usize, run: &Run) {
        let (at, scale, lane) = self.place(row, block);
        let layout = self.layout;
        self.scales[scale] = run.scale;
        if layout.minimum {
            self.minima[scale] = run.minimum;
        }
        if layout.factors() {
            let second = if layout.minimum {
                run.minimum_factor as i8 // six bits
            } else {
                run.scale_factors[1]
            };
            self.factors[at * 2 * GROUP + lane] = run.scale_factors[0];
            self.factors[(at * 2 + 1) * GROUP + lane] = second;
        }
        let lines = &mut self.lines[at * layout.lines()..][..layout.lines()];
        let byte = |line: &mut Line<[u8; 64]>, i, bits: u8| line.0[4 * lane + i] |= bits;
        for (four, codes) in run.codes.as_chunks::<4>().0.iter().enumerate() {
            for (i, code) in codes.iter().enumerate() {
                if layout.bits == 8 {
                    byte(&mut lines[four], i, *code);
                    continue;
                }
                byte(&mut lines[four % 4], i, (code & 15) << (four / 4 * 4));
                if layout.high() > 0 {
                    let (line, shift) = layout.high_at(four);
                    byte(&mut lines[line], i, (code >> 4) << shift);
                }
            }
        }
    }

    fn row(&self, row: usize, out: &mut [f32]) {
        let layout = self.layout;
        for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let (at, scale, lane) = self.place(row, block);
            let minimum = self.minima.get(scale).map_or(0.0, |m| f16_to_f32(*m));
            let scale = f16_to_f32(self.scales[scale]);
            let factor = |i| f32::from(self.factors[(at * 2 + i) * GROUP + lane]);
            let (scales, minimum) = match (layout.factors(), layout.minimum) {
                (false, _) => ([scale; 2], minimum),
                (true, true) => ([scale * factor(0); 2], minimum * factor(1)),
                (true, false) => ([0, 1].map(|i| scale * factor(i)), 0.0),
            };
            let lines = &self.lines[at * layout.lines()..][..layout.lines()];
            for (column, out) in out.iter_mut().enumerate() {
                let four = column / 4;
                let byte = |line: usize| lines[line].0[4 * lane + column % 4];
                let mut code = if layout.bits == 8 {
                    byte(four)
                } else {
                    byte(four % 4) >> (four / 4 * 4) & 15
                };
                if layout.high() > 0 {
                    let (line, shift) = layout.high_at(four);
                    code |= (byte(line) >> shift & layout.high_mask()) << 4;
                }
                let whole = i32::from(code) - layout.zero;
                *out = scales[column / 16] * whole as f32 + minimum;
            }
        }
    }

    /// One group, checked to hold all of its blocks (empty where the format has no such numbers).
    pub(crate) fn group(&self, group: usize) -> WeightGroup {
        fn part<T>(all: &[T], group: usize, each: usize) -> *const T {
            match all {
                [] => all.as_ptr(),
                _ => all[group * each..][..each].as_ptr(),
            }
        }
        let blocks = self.cols / BLOCK;
        let scales = blocks / self.layout.shared * GROUP;
        WeightGroup {
            codes: part(&self.lines, group, blocks * self.layout.lines()).cast(),
            scales: part(&self.scales, group, scales),
            minima: part(&self.minima, group, scales),
            factors: part(&self.factors, group, blocks * 2 * GROUP),
            blocks,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
pub(crate) mod tests;
