//! Where things lie in an arena's memory.

use crate::arena::Shape;

/// The header takes one page; behind it come the slots.
const HEADER_BYTES: usize = 4096;
/// Slots begin at multiples of a cache line, so that two of them never share one.
const SLOT_ALIGN: usize = 64;

/// Byte offset of the batch word: how many submissions have landed.
pub(crate) const BATCH_WORD: usize = 0;

/// The layout of one shape.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) shape: Shape,
    stride: usize,
    len: usize,
}

impl Layout {
    /// `None` for a shape without slots or words, or one too large to address.
    pub(crate) fn new(shape: Shape) -> Option<Self> {
        if shape.slots == 0 || shape.slot_words == 0 {
            return None;
        }
        let slot_bytes = shape.slot_words.checked_mul(size_of::<u16>())?;
        let stride = slot_bytes.checked_next_multiple_of(SLOT_ALIGN)?;
        let len = stride
            .checked_mul(shape.slots as usize)?
            .checked_add(HEADER_BYTES)?;
        let addressable = isize::MAX as usize;
        (len <= addressable).then_some(Self { shape, stride, len })
    }

    /// Bytes of the whole arena.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Byte offset of a word in a slot. Both must have been checked against the shape.
    pub(crate) fn offset(&self, slot: u32, word: usize) -> usize {
        HEADER_BYTES + slot as usize * self.stride + word * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_the_last_one_ends_inside() {
        let shape = Shape {
            slots: 3,
            slot_words: 33,
        };
        let layout = Layout::new(shape).unwrap();
        assert!(layout.offset(0, 33) <= layout.offset(1, 0));
        assert!(layout.offset(2, 33) <= layout.len());
        assert_eq!(layout.offset(1, 0) % SLOT_ALIGN, 0);
        assert!(layout.offset(0, 0) >= BATCH_WORD + 8);
    }

    #[test]
    fn impossible_shapes_have_no_layout() {
        for (slots, slot_words) in [(0, 1), (1, 0), (1, usize::MAX), (u32::MAX, usize::MAX / 8)] {
            assert!(Layout::new(Shape { slots, slot_words }).is_none());
        }
    }
}
