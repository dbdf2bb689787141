//! The bytes of a shared-memory landing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pages::Epoch;

use crate::arena::{ArenaId, BadLanding, Landing, Shape};
use crate::claim::{Token, take};

/// Names fabric and version: another fabric's landing does not parse.
const MAGIC: &[u8; 8] = b"cfd-shm\x01";

/// What a landing says.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct ShmLanding {
    pub(crate) arena: ArenaId,
    pub(crate) token: Token,
    pub(crate) shape: Shape,
    /// The receiver's socket for handing over descriptors.
    pub(crate) socket: PathBuf,
}

impl ShmLanding {
    pub(crate) fn encode(&self) -> Result<Landing, BadLanding> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.arena.owner.bits().to_le_bytes());
        bytes.extend(self.arena.n.to_le_bytes());
        bytes.extend(self.token);
        bytes.extend(self.shape.slots.to_le_bytes());
        bytes.extend((self.shape.slot_words as u64).to_le_bytes());
        bytes.extend(self.socket.as_os_str().as_bytes());
        Landing::from_bytes(bytes)
    }

    pub(crate) fn decode(landing: &Landing) -> Result<Self, BadLanding> {
        let mut rest = landing.as_bytes();
        if take::<8>(&mut rest)? != *MAGIC {
            return Err(BadLanding::Malformed(
                "it does not begin like a shared-memory landing",
            ));
        }
        let owner = Epoch::new(u128::from_le_bytes(take(&mut rest)?));
        let n = u64::from_le_bytes(take(&mut rest)?);
        let token = take(&mut rest)?;
        let slots = u32::from_le_bytes(take(&mut rest)?);
        let slot_words = usize::try_from(u64::from_le_bytes(take(&mut rest)?))
            .map_err(|_| BadLanding::Malformed("slots larger than this machine can address"))?;
        if !rest.starts_with(b"/") || rest.contains(&0) {
            return Err(BadLanding::Malformed("no socket path in it"));
        }
        let socket = PathBuf::from(OsStr::from_bytes(rest));
        let shape = Shape { slots, slot_words };
        Ok(Self {
            arena: ArenaId { owner, n },
            token,
            shape,
            socket,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_landing_reads_as_it_was_written(
            owner: u128, n: u64, token: [u8; 32], slots: u32, words: u32, name in "[a-z/]{0,90}",
        ) {
            let landing = ShmLanding {
                arena: ArenaId { owner: Epoch::new(owner), n },
                token,
                shape: Shape { slots, slot_words: words as usize },
                socket: PathBuf::from(format!("/{name}")),
            };
            prop_assert_eq!(ShmLanding::decode(&landing.encode().unwrap()).unwrap(), landing);
        }

        #[test]
        fn any_bytes_are_an_answer_and_no_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..1200), with_magic: bool,
        ) {
            let mut all = if with_magic { MAGIC.to_vec() } else { Vec::new() };
            all.extend(bytes);
            let _ = Landing::from_bytes(all).and_then(|landing| ShmLanding::decode(&landing));
        }
    }
}
