//! Statements: what a producer says is in the blocks that a reference names, taken down in the step
//! that computed them. The reader compares it with what has arrived, before anything reads that
//! (law: the reader verifies).

use crate::Lineage;
use pages::Epoch;
use serde::{Deserialize, Serialize};

/// No statement covers more blocks (a million tokens in blocks of 16).
pub(crate) const BLOCKS_MAX: usize = 1 << 16;

/// One block of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockStatement {
    /// Index of the block in its sequence.
    pub ordinal: u32,
    /// Token slots filled, from the front.
    pub filled: u32,
    /// The block's tag when it was filled: which grant of it this speaks about.
    pub tag: u64,
    /// Checksum over all of the block's bytes in all layers of this rank.
    pub checksum: u64,
}

/// What one rank of a producer says about the blocks of one prompt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// The producer's life.
    pub epoch: Epoch,
    /// The reference that this belongs to.
    pub serial: u64,
    /// The rank that states.
    pub rank: u16,
    /// What the blocks were computed from.
    pub lineage: Lineage,
    /// Tokens in the blocks.
    pub tokens: u32,
    /// Bytes of one block, over all layers of this rank.
    pub block_bytes: u64,
    /// The blocks, in order.
    pub blocks: Vec<BlockStatement>,
}

/// A statement cannot be about any prompt at all: its producer's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StatementFault {
    /// Not the encoding of a statement.
    #[error("these bytes are no statement")]
    Malformed,
    /// More blocks than any prompt has.
    #[error("a statement over {0} blocks, more than {BLOCKS_MAX}")]
    TooLong(usize),
    /// The ordinals are not 0, 1, 2, … once each.
    #[error("block {0} of the statement is out of its place (H-2)")]
    Order(usize),
    /// The filled slots do not add up to the tokens.
    #[error("the blocks hold {filled} tokens, the statement says {tokens} (H-2)")]
    Fill {
        /// Sum of the blocks' filled slots.
        filled: u64,
        /// Tokens of the statement.
        tokens: u32,
    },
}

/// A block as it has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Index of the block in the reader's sequence.
    pub ordinal: u32,
    /// Checksum over its bytes, computed where they lie now.
    pub checksum: u64,
}

/// How what has arrived differs from what was stated. An integrity fault: nothing may read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Difference {
    /// The statement is about another life, reference or rank.
    #[error("the statement is about another reference, rank or life of the producer")]
    Subject,
    /// About another prompt.
    #[error("the statement is about another prompt, model, adapter or salt")]
    Lineage,
    /// Another number of tokens.
    #[error("{got} tokens stated, {expected} expected (H-2)")]
    Tokens {
        /// Tokens that the reader needs.
        expected: u32,
        /// Tokens stated.
        got: u32,
    },
    /// Another number of blocks.
    #[error("{got} blocks stated, {expected} expected (H-2)")]
    Count {
        /// Blocks that the reader has for the prompt.
        expected: usize,
        /// Blocks stated.
        got: usize,
    },
    /// Blocks of another size: other layers, heads or types.
    #[error("blocks of {got} bytes stated, {expected} expected: the engines' layouts differ")]
    Layout {
        /// Bytes of a block here.
        expected: u64,
        /// Bytes stated.
        got: u64,
    },
    /// Other grants of the blocks than those of the reference.
    #[error("the tags stated are not those of the reference: the blocks were granted anew")]
    Tags,
    /// A block arrived twice, or one that was not stated.
    #[error("block {0} arrived twice or was not stated")]
    Stray(u32),
    /// A block's bytes are others.
    #[error("block {ordinal} (tag {tag}) is not what was stated: {expected:016x}, got {got:016x}")]
    Content {
        /// The block.
        ordinal: u32,
        /// Its tag in the producer.
        tag: u64,
        /// Checksum stated.
        expected: u64,
        /// Checksum of what arrived.
        got: u64,
    },
}

impl Difference {
    /// A word for counters and audit records.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Subject => "subject",
            Self::Lineage => "lineage",
            Self::Tokens { .. } => "tokens",
            Self::Count { .. } => "count",
            Self::Layout { .. } => "layout",
            Self::Tags => "tags",
            Self::Stray(_) => "stray",
            Self::Content { .. } => "content",
        }
    }
}

/// Digest over tags in order, to be bound into a reference.
pub(crate) fn tags_digest(tags: impl Iterator<Item = u64>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for tag in tags {
        hasher.update(&tag.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

impl Statement {
    /// The bytes that travel, inside an authenticated message.
    pub fn encode(&self) -> Vec<u8> {
        // Serialization of plain data into memory has no way to fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// The statement in `bytes`, if it is one and is whole in itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, StatementFault> {
        let statement: Self = postcard::from_bytes(bytes).map_err(|_| StatementFault::Malformed)?;
        statement.check()?;
        Ok(statement)
    }

    /// Whether ordinals and fill make one whole prompt.
    pub fn check(&self) -> Result<(), StatementFault> {
        if self.blocks.len() > BLOCKS_MAX {
            return Err(StatementFault::TooLong(self.blocks.len()));
        }
        let mut places = self.blocks.iter().enumerate();
        if let Some((at, _)) = places.find(|(at, block)| block.ordinal as usize != *at) {
            return Err(StatementFault::Order(at));
        }
        let filled = self.blocks.iter().map(|b| u64::from(b.filled)).sum();
        if filled != u64::from(self.tokens) {
            let tokens = self.tokens;
            return Err(StatementFault::Fill { filled, tokens });
        }
        Ok(())
    }

    /// Digest of the tags, as [`crate::Reference`] binds it.
    pub fn tags(&self) -> [u8; 32] {
        tags_digest(self.blocks.iter().map(|block| block.tag))
    }

    /// Compares with what the reader needs and with what has arrived. `blocks` is how many the
    /// prompt takes at the reader; those of them that the reader already had are not in `received`.
    pub fn compare(
        &self,
        lineage: Lineage,
        tokens: u32,
        block_bytes: u64,
        blocks: usize,
        received: &[Received],
    ) -> Result<(), Difference> {
        if self.lineage != lineage {
            return Err(Difference::Lineage);
        }
        let (expected, got) = (tokens, self.tokens);
        if expected != got {
            return Err(Difference::Tokens { expected, got });
        }
        let (expected, got) = (block_bytes, self.block_bytes);
        if expected != got {
            return Err(Difference::Layout { expected, got });
        }
        let (expected, got) = (blocks, self.blocks.len());
        if expected != got {
            return Err(Difference::Count { expected, got });
        }
        let mut arrived = vec![false; self.blocks.len()];
        for block in received {
            let at = block.ordinal as usize;
            let stated = self
                .blocks
                .get(at)
                .ok_or(Difference::Stray(block.ordinal))?;
            if std::mem::replace(&mut arrived[at], true) {
                return Err(Difference::Stray(block.ordinal));
            }
            if stated.checksum != block.checksum {
                return Err(Difference::Content {
                    ordinal: block.ordinal,
                    tag: stated.tag,
                    expected: stated.checksum,
                    got: block.checksum,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Secret};
    use proptest::prelude::*;

    fn lineage(tokens: &[u32]) -> Lineage {
        let secret = Secret::new(b"a secret of the fleet").unwrap();
        Lineage::of(&secret, Context::default(), tokens)
    }

    fn statement() -> Statement {
        let block = |ordinal, filled, tag, checksum| BlockStatement {
            ordinal,
            filled,
            tag,
            checksum,
        };
        Statement {
            epoch: Epoch::new(9),
            serial: 4,
            rank: 0,
            lineage: lineage(&[1]),
            tokens: 40,
            block_bytes: 640,
            blocks: vec![
                block(0, 16, 11, 100),
                block(1, 16, 12, 101),
                block(2, 8, 15, 102),
            ],
        }
    }

    fn got(pairs: &[(u32, u64)]) -> Vec<Received> {
        let received = pairs.iter().map(|(ordinal, checksum)| Received {
            ordinal: *ordinal,
            checksum: *checksum,
        });
        received.collect()
    }

    fn compare(received: &[(u32, u64)]) -> Result<(), Difference> {
        statement().compare(lineage(&[1]), 40, 640, 3, &got(received))
    }

    #[test]
    fn what_was_stated_is_admitted_whole_or_behind_a_prefix() {
        assert_eq!(compare(&[(0, 100), (1, 101), (2, 102)]), Ok(()));
        assert_eq!(compare(&[(2, 102)]), Ok(()), "two blocks were here already");
        let again = Statement::decode(&statement().encode()).unwrap();
        assert_eq!(again, statement());
    }

    #[test]
    fn every_difference_is_named() {
        let content = Difference::Content {
            ordinal: 1,
            tag: 12,
            expected: 101,
            got: 102,
        };
        assert_eq!(compare(&[(0, 100), (1, 102)]), Err(content));
        assert_eq!(compare(&[(1, 101), (1, 101)]), Err(Difference::Stray(1)));
        assert_eq!(compare(&[(3, 0)]), Err(Difference::Stray(3)));
        let whole = got(&[(0, 100)]);
        let other = statement().compare(lineage(&[2]), 40, 640, 3, &whole);
        assert_eq!(other, Err(Difference::Lineage));
        let (expected, got) = (41, 40);
        let longer = statement().compare(lineage(&[1]), 41, 640, 3, &whole);
        assert_eq!(longer, Err(Difference::Tokens { expected, got }));
        let (expected, got) = (4, 3);
        let more = statement().compare(lineage(&[1]), 40, 640, 4, &whole);
        assert_eq!(more, Err(Difference::Count { expected, got }));
        let (expected, got) = (320, 640);
        let layout = statement().compare(lineage(&[1]), 40, 320, 3, &whole);
        assert_eq!(layout, Err(Difference::Layout { expected, got }));
    }

    #[test]
    fn a_statement_that_covers_no_whole_prompt_is_refused() {
        let mut gap = statement();
        gap.blocks.remove(1);
        assert_eq!(
            Statement::decode(&gap.encode()),
            Err(StatementFault::Order(1))
        );
        let mut short = statement();
        short.blocks[2].filled = 7;
        let (filled, tokens) = (39, 40);
        let fault = StatementFault::Fill { filled, tokens };
        assert_eq!(Statement::decode(&short.encode()), Err(fault));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(statement) = Statement::decode(&bytes) {
                prop_assert_eq!(statement.check(), Ok(()));
            }
        }
    }
}
