//! What travels over a data connection, inside TLS. All numbers are little-endian.
//!
//! The writer says its claim (`crate::claim`), the receiver an [`Answer`]; then the writer sends
//! headers, those of words with that many words behind them, and the receiver the ids of
//! submissions that have landed.

use pages::WriterLife;

use crate::arena::ArenaId;
use crate::claim::{Magic, lives};

/// Begins every claim of this fabric.
pub(crate) const CLAIM: &Magic = b"cfd-tc?\x01";

/// Words of one frame, at most: 64 KiB.
pub(super) const FRAME_WORDS_MAX: usize = 32 * 1024;

/// The answer to a claim: a code, and both lives again, so that a writer that reached another
/// receiver than it meant hears so.
pub(crate) struct Answer;

impl Answer {
    pub(crate) const BYTES: usize = 1 + 42;

    pub(crate) fn encode(code: u8, arena: ArenaId, writer: WriterLife) -> [u8; Self::BYTES] {
        let mut bytes = [code; Self::BYTES];
        bytes[1..].copy_from_slice(&lives(arena, writer));
        bytes
    }
}

/// Bytes of an acknowledgement: the submission's id.
pub(crate) const ACK_BYTES: usize = 8;

/// What one header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// `words` words follow, for a slot from `offset` on.
    Words {
        submission: u64,
        slot: u32,
        offset: u32,
        words: u32,
    },
    /// The submission is complete; it had so many headers of words.
    End { submission: u64, frames: u32 },
}

/// How a writer breaks the protocol: what it sends is no header, or not the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breach {
    #[error("an unknown kind of frame")]
    UnknownKind,
    #[error("a frame without words")]
    EmptyFrame,
    #[error("a frame above the limit")]
    LargeFrame,
    #[error("an end that says more than an end")]
    LongEnd,
    #[error("a frame of another submission")]
    OtherFrame,
    #[error("frames without end")]
    TooManyFrames,
    #[error("the end of another submission")]
    OtherEnd,
    #[error("a submission with other than its frames")]
    FrameCount,
    #[error("a submission comes again")]
    Again,
}

const WORDS: u32 = 1;
const END: u32 = 2;

impl Header {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, submission, slot, offset, count) = match *self {
            Header::Words {
                submission,
                slot,
                offset,
                words,
            } => (WORDS, submission, slot, offset, words),
            Header::End { submission, frames } => (END, submission, 0, 0, frames),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&submission.to_le_bytes());
        bytes[16..20].copy_from_slice(&offset.to_le_bytes());
        bytes[20..].copy_from_slice(&count.to_le_bytes());
        bytes
    }

    /// Says what is wrong with bytes that are no header.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, Breach> {
        let four = |at: usize| {
            let chunk: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(chunk)
        };
        let submission = u64::from(four(8)) | u64::from(four(12)) << 32;
        let (kind, slot, offset, count) = (four(0), four(4), four(16), four(20));
        match kind {
            WORDS if count == 0 => Err(Breach::EmptyFrame),
            WORDS if count as usize > FRAME_WORDS_MAX => Err(Breach::LargeFrame),
            WORDS => Ok(Header::Words {
                submission,
                slot,
                offset,
                words: count,
            }),
            END if slot != 0 || offset != 0 => Err(Breach::LongEnd),
            END => Ok(Header::End {
                submission,
                frames: count,
            }),
            _ => Err(Breach::UnknownKind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = Header> {
        let words = 1..=FRAME_WORDS_MAX as u32;
        let of_words = (any::<u64>(), any::<u32>(), any::<u32>(), words).prop_map(
            |(submission, slot, offset, words)| Header::Words {
                submission,
                slot,
                offset,
                words,
            },
        );
        let of_end = (any::<u64>(), any::<u32>())
            .prop_map(|(submission, frames)| Header::End { submission, frames });
        prop_oneof![of_words, of_end]
    }

    proptest! {
        #[test]
        fn a_header_reads_as_it_was_written(header in header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn what_is_taken_for_a_header_is_bounded(bytes: [u8; Header::BYTES]) {
            if let Ok(Header::Words { words, .. }) = Header::decode(&bytes) {
                prop_assert!(words >= 1 && words as usize <= FRAME_WORDS_MAX);
            }
        }
    }
}
