//! References: what a producer hands out so that a consumer may fetch blocks. Signed, so that no
//! client can change or make one; bound to one prompt, one life of one producer and one use.

use crate::{Difference, Lineage, Secret, Statement};
use pages::Epoch;
use serde::{Deserialize, Serialize};

const MAC_BYTES: usize = 32;
/// No reference is longer, however many bytes a client sends.
const BYTES_MAX: usize = 1024;

/// A reference to the blocks of one prompt in one producer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reference {
    /// The producer's life. After a restart no reference of before is good for anything.
    pub epoch: Epoch,
    /// Number of the reference in that life, from 1, never repeated.
    pub serial: u64,
    /// What the blocks were computed from.
    pub lineage: Lineage,
    /// Tokens in the blocks.
    pub tokens: u32,
    /// Where to claim the statement: `host:port` of rank 0; rank `r` listens `r` ports above.
    pub address: String,
    /// Hash over what the engine's own handoff says beside the reference (block ids, peer, request
    /// id), so that a reference and somebody else's block ids cannot be put together.
    pub bound: [u8; 32],
    /// Digest of the blocks' tags: which grants of those blocks it speaks about.
    pub tags: [u8; 32],
}

/// Why a reference is refused at the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReferenceFault {
    /// Not signed with this fleet's secret, or changed since.
    #[error("the reference is forged or damaged, or the engines have different guard secrets")]
    Forged,
    /// Made for other tokens, another model, adapter or salt.
    #[error("the reference was made for another prompt, model, adapter or salt")]
    Lineage,
    /// The blocks or the peer that stand beside it are not those that it was made for.
    #[error("the block ids or the peer beside the reference are not those that it was made for")]
    Bound,
    /// More or fewer tokens than the request has.
    #[error("the reference covers {got} tokens, the request needs {expected} (H-2)")]
    Tokens {
        /// Tokens that the request needs.
        expected: u32,
        /// Tokens that the reference covers.
        got: u32,
    },
}

impl Reference {
    /// Hash of the engine's own handoff parameters, canonically written by the caller.
    pub fn bind(parameters: &[u8]) -> [u8; 32] {
        *blake3::hash(parameters).as_bytes()
    }

    /// Digest of tags, in the order of the blocks.
    pub fn tags_of(tags: &[u64]) -> [u8; 32] {
        crate::statement::tags_digest(tags.iter().copied())
    }

    /// Whether `statement` is the one that `rank` made for this reference.
    pub fn covers(&self, statement: &Statement, rank: u16) -> Result<(), Difference> {
        let subject = (statement.epoch, statement.serial, statement.rank);
        if subject != (self.epoch, self.serial, rank) {
            return Err(Difference::Subject);
        }
        if statement.tags() != self.tags {
            return Err(Difference::Tags);
        }
        Ok(())
    }

    /// The reference as it travels through routers and clients, in hex.
    pub fn sign(&self, secret: &Secret) -> String {
        // Serialization of plain data into memory has no way to fail.
        let mut bytes = postcard::to_stdvec(self).unwrap_or_default();
        let mac = secret.sign_reference(&bytes);
        bytes.extend_from_slice(mac.as_bytes());
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The reference behind `text`, if this fleet has signed it.
    pub fn open(secret: &Secret, text: &str) -> Result<Self, ReferenceFault> {
        let bytes = unhex(text).ok_or(ReferenceFault::Forged)?;
        let split = bytes.len().checked_sub(MAC_BYTES);
        let (body, mac) = bytes.split_at(split.ok_or(ReferenceFault::Forged)?);
        let genuine = blake3::Hash::from_slice(mac).is_ok_and(|mac| {
            secret.sign_reference(body) == mac // compares in constant time
        });
        if !genuine {
            return Err(ReferenceFault::Forged);
        }
        postcard::from_bytes(body).map_err(|_| ReferenceFault::Forged)
    }

    /// Whether this reference is for that prompt, and for the parameters beside it.
    pub fn admits(
        &self,
        lineage: Lineage,
        tokens: u32,
        parameters: &[u8],
    ) -> Result<(), ReferenceFault> {
        if self.lineage != lineage {
            return Err(ReferenceFault::Lineage);
        }
        if self.tokens != tokens {
            return Err(ReferenceFault::Tokens {
                expected: tokens,
                got: self.tokens,
            });
        }
        if self.bound != Self::bind(parameters) {
            return Err(ReferenceFault::Bound);
        }
        Ok(())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * BYTES_MAX || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let digits = text.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        u8::try_from(high * 16 + low).ok()
    };
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockStatement, Context};
    use proptest::prelude::*;

    fn secret() -> Secret {
        Secret::new(b"a secret of the fleet").unwrap()
    }

    fn lineage(tokens: &[u32]) -> Lineage {
        Lineage::of(&secret(), Context::default(), tokens)
    }

    fn reference() -> Reference {
        Reference {
            epoch: Epoch::new(7 << 100),
            serial: 3,
            lineage: lineage(&[1, 2, 3]),
            tokens: 3,
            address: "127.0.0.1:5700".into(),
            bound: Reference::bind(b"blocks 65 66"),
            tags: Reference::tags_of(&[8, 9]),
        }
    }

    #[test]
    fn a_reference_comes_back_as_it_was_signed_and_admits_its_own_prompt() {
        let text = reference().sign(&secret());
        let opened = Reference::open(&secret(), &text).unwrap();
        assert_eq!(opened, reference());
        assert_eq!(
            opened.admits(lineage(&[1, 2, 3]), 3, b"blocks 65 66"),
            Ok(())
        );
    }

    #[test]
    fn what_it_was_not_made_for_is_named() {
        let reference = reference();
        let other = reference.admits(lineage(&[1, 2, 4]), 3, b"blocks 65 66");
        assert_eq!(other, Err(ReferenceFault::Lineage));
        let blocks = reference.admits(lineage(&[1, 2, 3]), 3, b"blocks 66 65");
        assert_eq!(blocks, Err(ReferenceFault::Bound));
        let short = reference.admits(lineage(&[1, 2, 3]), 4, b"blocks 65 66");
        let (expected, got) = (4, 3);
        assert_eq!(short, Err(ReferenceFault::Tokens { expected, got }));
    }

    #[test]
    fn it_covers_the_statement_of_its_own_grants_only() {
        let block = |ordinal: u32, filled, tag| BlockStatement {
            ordinal,
            filled,
            tag,
            checksum: 0,
        };
        let statement = Statement {
            epoch: reference().epoch,
            serial: 3,
            rank: 1,
            lineage: lineage(&[1, 2, 3]),
            tokens: 3,
            block_bytes: 1,
            blocks: vec![block(0, 2, 8), block(1, 1, 9)],
        };
        assert_eq!(reference().covers(&statement, 1), Ok(()));
        assert_eq!(reference().covers(&statement, 0), Err(Difference::Subject));
        let mut regranted = statement;
        regranted.blocks[1].tag = 10;
        assert_eq!(reference().covers(&regranted, 1), Err(Difference::Tags));
    }

    #[test]
    fn another_fleets_reference_is_forged() {
        let other = Secret::new(b"a secret of the float").unwrap();
        let text = reference().sign(&other);
        assert_eq!(
            Reference::open(&secret(), &text),
            Err(ReferenceFault::Forged)
        );
    }

    proptest! {
        #[test]
        fn one_changed_digit_makes_it_forged(at in 0usize..300, digit in "[0-9a-f]") {
            let text = reference().sign(&secret());
            let at = at % text.len();
            let mut changed = text.clone();
            changed.replace_range(at..=at, &digit);
            prop_assume!(changed != text);
            prop_assert_eq!(Reference::open(&secret(), &changed), Err(ReferenceFault::Forged));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,3000}") {
            prop_assert_eq!(Reference::open(&secret(), &text), Err(ReferenceFault::Forged));
        }
    }
}
