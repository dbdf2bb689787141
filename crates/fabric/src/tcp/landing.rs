//! The bytes of a TCP landing.

use std::net::SocketAddr;

use crate::arena::{ArenaId, BadLanding, Landing, Shape};
use crate::claim::{self, Magic, Token};

/// Names fabric and version: another fabric's landing does not parse.
const MAGIC: &Magic = b"cfd-tcp\x01";

/// What a landing says. A checksum stands at its end: what was damaged on its way must not make a
/// worker dial somebody else.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct TcpLanding {
    pub(crate) arena: ArenaId,
    pub(crate) token: Token,
    pub(crate) shape: Shape,
    /// Where the receiver's data port is reached.
    pub(crate) at: SocketAddr,
}

impl TcpLanding {
    /// Whether the bytes claim to be a landing of this fabric.
    pub(crate) fn is_one(landing: &Landing) -> bool {
        landing.as_bytes().starts_with(MAGIC)
    }

    pub(crate) fn encode(&self) -> Result<Landing, BadLanding> {
        let mut bytes = claim::landing(MAGIC, self.arena, &self.token, self.shape);
        bytes.extend(self.at.to_string().as_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        Landing::from_bytes(bytes)
    }

    pub(crate) fn decode(landing: &Landing) -> Result<Self, BadLanding> {
        let (body, checksum) = landing
            .as_bytes()
            .split_last_chunk()
            .ok_or(BadLanding::Short)?;
        let mut rest = body;
        let (arena, token, shape) = claim::read_landing(&mut rest, MAGIC)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(BadLanding::Checksum);
        }
        let at = std::str::from_utf8(rest).ok();
        let at = at.and_then(|text| text.parse().ok());
        let at = at.ok_or(BadLanding::Address)?;
        Ok(Self {
            arena,
            token,
            shape,
            at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pages::Epoch;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_landing_reads_as_it_was_written(
            owner: u128, n: u64, token: [u8; 32], slots: u32, words: u32,
            v4: [u8; 4], v6: [u8; 16], is_v6: bool, port: u16,
        ) {
            let at = if is_v6 { (v6, port).into() } else { (v4, port).into() };
            let landing = TcpLanding {
                arena: ArenaId { owner: Epoch::new(owner), n },
                token,
                shape: Shape { slots, slot_words: words as usize },
                at,
            };
            prop_assert_eq!(TcpLanding::decode(&landing.encode().unwrap()).unwrap(), landing);
        }

        #[test]
        fn any_bytes_are_an_answer_and_no_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..1200), with_magic: bool,
        ) {
            let mut all = if with_magic { MAGIC.to_vec() } else { Vec::new() };
            all.extend(bytes);
            let _ = Landing::from_bytes(all).and_then(|landing| TcpLanding::decode(&landing));
        }
    }
}
