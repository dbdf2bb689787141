//! The bytes of a shared-memory landing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::arena::{ArenaId, BadLanding, Landing, Shape};
use crate::claim::{self, Magic, Token};

/// Names fabric and version: another fabric's landing does not parse.
const MAGIC: &Magic = b"cfd-shm\x01";

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
        let mut bytes = claim::landing(MAGIC, self.arena, &self.token, self.shape);
        bytes.extend(self.socket.as_os_str().as_bytes());
        Landing::from_bytes(bytes)
    }

    pub(crate) fn decode(landing: &Landing) -> Result<Self, BadLanding> {
        let mut rest = landing.as_bytes();
        let (arena, token, shape) = claim::read_landing(&mut rest, MAGIC)?;
        if !rest.starts_with(b"/") || rest.contains(&0) {
            return Err(BadLanding::Address);
        }
        let socket = PathBuf::from(OsStr::from_bytes(rest));
        Ok(Self {
            arena,
            token,
            shape,
            socket,
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
