use std::fmt;

use crate::file::Description;
use crate::{Error, Part, RowReader};

/// How the numbers of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names that everybody knows them by
#[allow(missing_docs)]
pub enum DType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
    Q5_0,
    Q5_1,
    IQ4_NL,
}

impl DType {
    /// All that are read.
    pub const ALL: [DType; 12] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q8_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::Q5_0,
        DType::Q5_1,
        DType::IQ4_NL,
    ];

    /// The type with this number in the format, if this crate supports it.
    pub fn from_id(id: u32) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.id() == id)
    }

    /// Its number in the format.
    pub fn id(self) -> u32 {
        match self {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Q4_0 => 2,
            DType::Q4_1 => 3,
            DType::Q5_0 => 6,
            DType::Q5_1 => 7,
            DType::Q8_0 => 8,
            DType::Q4_K => 12,
            DType::Q5_K => 13,
            DType::Q6_K => 14,
            DType::IQ4_NL => 20,
            DType::BF16 => 30,
        }
    }

    /// Elements in one block; 1 for the floats.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => 32,
            DType::Q8_0 | DType::IQ4_NL => 32,
            DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
        }
    }

    /// What is subtracted from a code of its blocks (see [`crate::Run`]).
    pub const fn zero(self) -> i32 {
        match self {
            DType::Q4_0 => 8,
            DType::Q5_0 => 16,
            DType::Q6_K => 32,
            DType::Q8_0 | DType::IQ4_NL => 128, // signed bytes
            _ => 0,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 => 18,   // scale; 32 x 4 bits
            DType::Q4_1 => 20,   // scale, minimum; 32 x 4 bits
            DType::Q5_0 => 22,   // scale; 32 x 1 bit; 32 x 4 bits
            DType::Q5_1 => 24,   // scale, minimum; the same
            DType::Q8_0 => 34,   // scale; 32 x 8 bits
            DType::IQ4_NL => 18, // scale; 32 x 4 bits, which number the values of a table
            DType::Q4_K => 144,  // scale, minimum; 12 bytes of sub-scales; 256 x 4 bits
            DType::Q5_K => 176,  // the same; 256 x 1 bit; 256 x 4 bits
            DType::Q6_K => 210,  // 256 x 4 bits; 256 x 2 bits; 16 sub-scales; scale
        }
    }
}

/// What llama.cpp calls a type that is not read here; only to say what a file has.
pub(crate) fn name_of_other(id: u32) -> Option<&'static str> {
    Some(match id {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return None,
    })
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One tensor of an open file.
#[derive(Clone, Copy)]
pub struct Tensor<'f> {
    pub(crate) name: &'f str,
    pub(crate) about: &'f Description,
    pub(crate) part: &'f Part,
}

impl<'f> Tensor<'f> {
    /// Its name in the file, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &'f str {
        self.name
    }

    /// Its dimensions, 1 to 4, in the file's own order (ggml's `ne`): **the first is the one that
    /// lies contiguous in memory**. A matrix that maps `n` inputs to `m` outputs has `[n, m]`.
    pub fn dims(&self) -> &'f [usize] {
        &self.about.dims
    }

    /// How its numbers are stored.
    pub fn dtype(&self) -> DType {
        self.about.dtype
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Never: a file with an empty tensor is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of a row: the first dimension.
    pub fn row_len(&self) -> usize {
        self.dims()[0]
    }

    /// Rows in all: the product of the other dimensions.
    pub fn rows(&self) -> usize {
        self.dims()[1..].iter().product()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_len() / self.dtype().block_len() * self.dtype().block_bytes()
    }

    /// Reads it from the first row on.
    pub fn in_rows(self) -> RowReader<'f> {
        RowReader::new(self)
    }

    /// The stored bytes: the rows one after the other, each [`Tensor::row_bytes`] long.
    ///
    /// # Errors
    /// The file cannot be read, or has changed since it was opened.
    pub fn read(self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(self.rows() * self.row_bytes());
        let mut rows = self.in_rows();
        for _ in 0..self.rows() {
            bytes.extend_from_slice(rows.next_row()?);
        }
        Ok(bytes)
    }

    /// All elements in float32, in the order of [`Tensor::read`].
    ///
    /// # Errors
    /// See [`Tensor::read`].
    pub fn dequantize(self) -> Result<Vec<f32>, Error> {
        let mut out = vec![0.0; self.len()];
        let mut rows = self.in_rows();
        for out in out.chunks_exact_mut(self.row_len()) {
            self.dtype().dequantize(rows.next_row()?, out);
        }
        Ok(out)
    }

    /// Tells its bytes, as the file has them, from others: as they were when they were read, or else as they
    /// are now.
    ///
    /// # Errors
    /// See [`Tensor::read`].
    pub fn digest(self) -> Result<[u8; 32], Error> {
        self.part.digest(self.about.range.clone())
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype();
        write!(f, "tensor `{}` {dtype} {:?}", self.name, self.dims())?;
        match self.about.paired {
            None => Ok(()),
            Some(rows) => write!(f, ", {rows} rows of a head in halves"),
        }
    }
}
