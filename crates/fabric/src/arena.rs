//! What both sides call things: arenas, slots, runs and the way to a landing.

use std::fmt;

use pages::Epoch;

/// Identity of an arena: minted by the receiver that owns it (H-8), never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ArenaId {
    /// Life of the receiver.
    pub owner: Epoch,
    /// Its counter.
    pub n: u64,
}

impl fmt::Display for ArenaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.owner, self.n)
    }
}

/// Size of an arena: `slots` slots of `slot_words` 16-bit words each. A slot takes one page slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Number of slots, at least 1.
    pub slots: u32,
    /// Words (u16) of a slot, at least 1.
    pub slot_words: usize,
}

impl Shape {
    /// Checks that `slot` exists and that all `runs` lie inside a slot.
    pub fn check(&self, slot: u32, runs: &[WordRun]) -> Result<(), OutOfRange> {
        if slot >= self.slots {
            return Err(OutOfRange::Slot {
                slot,
                slots: self.slots,
            });
        }
        check_runs(runs, self.slot_words)
    }
}

/// A run of words at the same offset in the source, in the slot and in the reader's copy, so that
/// a page keeps its layout on the whole way and what is not named never travels (H-17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordRun {
    /// First word.
    pub offset: usize,
    /// Number of words.
    pub words: usize,
}

impl WordRun {
    /// The run as a range of indices. Only for runs that were checked.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.words
    }
}

/// Checks that all `runs` lie inside `words` words.
pub(crate) fn check_runs(runs: &[WordRun], words: usize) -> Result<(), OutOfRange> {
    let outside = |run: &&WordRun| {
        run.offset
            .checked_add(run.words)
            .is_none_or(|end| end > words)
    };
    match runs.iter().find(outside) {
        Some(&run) => Err(OutOfRange::Run { run, words }),
        None => Ok(()),
    }
}

/// A slot or a run lies outside of what it was meant for. Nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfRange {
    /// No such slot.
    #[error("slot {slot} of {slots} does not exist")]
    Slot {
        /// Asked for.
        slot: u32,
        /// Number of slots.
        slots: u32,
    },
    /// The run ends behind the slot, the source or the destination.
    #[error("run Run {{ offset: {}, words: {} }} ends behind {words} words", run.offset, run.words)]
    Run {
        /// The run.
        run: WordRun,
        /// Words there are.
        words: usize,
    },
}

/// Where one writer's life reaches its arena: opaque bytes of the fabric that made them, carried
/// inside the ticket. They contain the arena's secret: never log them.
#[derive(Clone, PartialEq, Eq)]
pub struct Landing(Vec<u8>);

impl Landing {
    /// Longest landing in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// Takes bytes that a peer sent; whether they mean anything is checked on attaching.
    ///
    /// # Errors
    /// More than [`Landing::BYTES_MAX`] bytes are refused.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, BadLanding> {
        if bytes.len() <= Self::BYTES_MAX {
            Ok(Self(bytes))
        } else {
            Err(BadLanding::TooLong)
        }
    }

    /// The bytes to carry.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({} bytes)", self.0.len())
    }
}

/// The bytes are not a landing of this fabric.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadLanding {
    /// More than [`Landing::BYTES_MAX`] bytes.
    #[error("a landing of more than {} bytes", Landing::BYTES_MAX)]
    TooLong,
    /// The peer speaks another fabric or version.
    #[error("not a landing of this fabric: it begins otherwise")]
    Foreign,
    /// Bytes are missing.
    #[error("not a landing of this fabric: it ends too early")]
    Short,
    /// Bytes are not those that were sent.
    #[error("not a landing of this fabric: its checksum is wrong")]
    Checksum,
    /// A slot is larger than an address of this machine can say.
    #[error("not a landing of this fabric: slots larger than this machine can address")]
    SlotWords,
    /// No arena has so many slots, or such slots.
    #[error("not a landing of this fabric: a shape that no arena can have")]
    Shape,
    /// It does not say where the receiver is.
    #[error("not a landing of this fabric: no address in it")]
    Address,
}
