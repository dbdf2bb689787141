//! One version byte, then postcard; nothing may follow.

use serde::{Serialize, de::DeserializeOwned};

/// Version of everything in this crate. Peers of another version are refused.
pub const VERSION: u8 = 5;

/// Largest encoded value, in bytes.
pub const BYTES_MAX: usize = 1 << 20;

/// The bytes are not what they should be: the peer's fault, or another release's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Larger than any value may be.
    #[error("{got} bytes, at most {BYTES_MAX} are allowed")]
    TooLarge {
        /// Bytes received.
        got: usize,
    },
    /// Another release speaks.
    #[error("version {got}, expected {VERSION}: run the same release everywhere")]
    Version {
        /// Its version; as sent.
        got: u8,
    },
    /// No value of this kind.
    #[error("not a {what}: {reason}")]
    Bytes {
        /// What was expected.
        what: &'static str,
        /// Why it is not.
        reason: String,
    },
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Postcard fails only for sequences of unknown length and for a writer that fails.
    postcard::to_extend(value, vec![VERSION]).expect("a Vec takes any plain value")
}

pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> Result<T, Malformed> {
    let malformed = |reason: String| Malformed::Bytes { what, reason };
    if bytes.len() > BYTES_MAX {
        return Err(Malformed::TooLarge { got: bytes.len() });
    }
    match bytes.split_first() {
        None => Err(malformed("no bytes at all".into())),
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(malformed(format!("{} bytes follow it", rest.len()))),
            Err(error) => Err(malformed(error.to_string())),
        },
        Some((&got, _)) => Err(Malformed::Version { got }),
    }
}
