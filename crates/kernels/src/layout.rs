//! How quantized weights lie in memory: everything that a kernel knows about a type at compile time.

use gguf::DType;

/// A block is 16 rows × 32 columns, as lines of 64 bytes; byte `4 * row + i` of a line belongs to
/// columns `4 * l + i`.
///
/// With 8 bits a code, line `l` of eight has columns `4 * l..`. With fewer, the low halves of four
/// lines have the low four bits of columns 0 to 15, the high halves those of 16 to 31; one or two
/// lines follow with the bits above these ([`Layout::high_at`]).
///
/// Codes are unsigned, because `vpdpbusd` multiplies unsigned by signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Of a code: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// What is subtracted from a code.
    pub(crate) zero: i32,
    /// Whether a minimum is added.
    pub(crate) minimum: bool,
    /// Blocks that share an f16 scale and minimum: 1, or 8. With 8 every block has two factors of its
    /// own: of scale and minimum, or without a minimum of the scale, for either half of the columns.
    pub(crate) shared: usize,
}

impl Layout {
    /// Of signed bytes.
    pub(crate) const BYTES: Layout = Layout::new(8, DType::Q8_0, false, 1);

    /// Of a type that is packed as it is.
    pub(crate) const fn of(dtype: DType) -> Option<Layout> {
        Some(match dtype {
            DType::F32 | DType::F16 | DType::BF16 => return None,
            DType::Q4_0 => Layout::new(4, dtype, false, 1),
            DType::Q4_1 => Layout::new(4, dtype, true, 1),
            DType::Q5_0 => Layout::new(5, dtype, false, 1),
            DType::Q5_1 => Layout::new(5, dtype, true, 1),
            // What the codes of IQ4_NL stand for are signed bytes.
            DType::Q8_0 | DType::IQ4_NL => Layout::BYTES,
            DType::Q4_K => Layout::new(4, dtype, true, 8),
            DType::Q5_K => Layout::new(5, dtype, true, 8),
            DType::Q6_K => Layout::new(6, dtype, false, 8),
        })
    }

    const fn new(bits: usize, dtype: DType, minimum: bool, shared: usize) -> Layout {
        Layout {
            bits,
            zero: dtype.zero(),
            minimum,
            shared,
        }
    }

    /// Lines of a block.
    pub(crate) const fn lines(self) -> usize {
        self.bits
    }

    /// Whether blocks have factors of their own.
    pub(crate) const fn factors(self) -> bool {
        self.shared > 1
    }

    /// Whether the halves of a block have scales of their own.
    pub(crate) const fn two_scales(self) -> bool {
        self.factors() && !self.minimum
    }

    /// Bits of a code above the low four that lie in lines of their own.
    pub(crate) const fn high(self) -> usize {
        if self.bits == 8 { 0 } else { self.bits - 4 }
    }

    /// As many ones.
    pub(crate) const fn high_mask(self) -> u8 {
        (1 << self.high()) - 1
    }

    /// Line and shift of the high bits of columns `4 * four..`.
    pub(crate) const fn high_at(self, four: usize) -> (usize, usize) {
        let bit = four * self.high();
        (4 + bit / 8, bit % 8)
    }
}

/// A layout as a type, for kernels to be compiled for.
pub(crate) trait Format: Copy {
    const LAYOUT: Layout;
    const BLOCK_BYTES: usize = 64 * Self::LAYOUT.lines();
}

/// Types named as in GGUF, and the way from a layout to the one that it is of.
macro_rules! formats {
    ($($name:ident)*) => {
        $(#[derive(Clone, Copy)]
        #[allow(non_camel_case_types)]
        pub(crate) struct $name;
        impl Format for $name {
            const LAYOUT: Layout = Layout::of(DType::$name).unwrap();
        })*

        /// What is done for whichever format a matrix has.
        pub(crate) trait ForFormat {
            fn run<K: Format>(self);
        }

        impl Layout {
            /// Runs `what` compiled for this layout.
            pub(crate) fn run(self, what: impl ForFormat) {
                $(if self == $name::LAYOUT {
                    return what.run::<$name>();
                })*
                unreachable!("{self:?} is of no type");
            }
        }
    };
}

formats!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K);
