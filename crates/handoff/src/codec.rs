//! Bytes of a message: one version byte, then postcard. Parsing is total: any bytes give a message
//! or an error, never a panic, and never an allocation beyond what the bytes themselves justify.

use serde::{Serialize, de::DeserializeOwned};

/// Version of the messages. Peers of another version are refused.
pub const VERSION: u8 = 7;

/// Largest message, in bytes: a prompt of a million tokens fits, and nothing much larger.
pub const MAX_BYTES: usize = 8 << 20;

/// What is wrong with a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// Larger than any message may be.
    #[error("the message has {0} bytes, at most {MAX_BYTES} are allowed")]
    TooLarge(usize),
    /// Nothing at all.
    #[error("the message is empty")]
    Empty,
    /// The peer runs another version of Cofferdam.
    #[error("the peer speaks message version {got}, this worker {VERSION}: run the same release")]
    Version {
        /// Its version.
        got: u8,
    },
    /// Not a message.
    #[error("the peer sent bytes that are no message: {0}")]
    Malformed(String),
}

/// The message as bytes.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, CodecError> {
    let bytes = postcard::to_extend(message, vec![VERSION])
        .map_err(|error| CodecError::Malformed(error.to_string()))?;
    if bytes.len() > MAX_BYTES {
        Err(CodecError::TooLarge(bytes.len()))
    } else {
        Ok(bytes)
    }
}

/// The message in `bytes`, if that is all there is in them.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, CodecError> {
    if bytes.len() > MAX_BYTES {
        return Err(CodecError::TooLarge(bytes.len()));
    }
    match bytes.split_first() {
        None => Err(CodecError::Empty),
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(CodecError::Malformed(format!(
                "{} bytes follow the message",
                rest.len()
            ))),
            Err(error) => Err(CodecError::Malformed(error.to_string())),
        },
        Some((&got, _)) => Err(CodecError::Version { got }),
    }
}
