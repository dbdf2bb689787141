//! What one frame of a control connection is: a message of the core, or one beside it.

use crate::codec::{decode, encode};
use crate::{Facts, Malformed};

const CORE: u8 = 0;
const ASK_FACTS: u8 = 1;
const FACTS: u8 = 2;

/// A frame. Messages of the core stay bytes here: `handoff::codec` reads them.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<'a> {
    /// A message of the handoff.
    Core(&'a [u8]),
    /// A gateway asks for the worker's facts. Answered with `Facts`; may be asked before Hello.
    AskFacts,
    /// The answer.
    Facts(Box<Facts>),
}

/// The frame is none of ours.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Nothing in it.
    #[error("the peer sent an empty frame")]
    Empty,
    /// A kind that is not known.
    #[error("the peer sent a frame of unknown kind {0}")]
    Kind(u8),
    /// Bytes behind a frame that has none.
    #[error("the peer sent {0} bytes behind a question that has none")]
    Trailing(usize),
    /// The facts in it are no facts.
    #[error("the peer sent facts that are none: {0}")]
    Facts(#[from] Malformed),
}

impl<'a> Frame<'a> {
    /// Reads a frame.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FrameError> {
        match bytes.split_first() {
            None => Err(FrameError::Empty),
            Some((&CORE, body)) => Ok(Self::Core(body)),
            Some((&ASK_FACTS, [])) => Ok(Self::AskFacts),
            Some((&ASK_FACTS, rest)) => Err(FrameError::Trailing(rest.len())),
            Some((&FACTS, body)) => Ok(Self::Facts(Box::new(decode::<Facts>("facts", body)?))),
            Some((&kind, _)) => Err(FrameError::Kind(kind)),
        }
    }

    /// The bytes of a frame.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Core(message) => {
                let mut bytes = Vec::with_capacity(message.len() + 1);
                bytes.push(CORE);
                bytes.extend_from_slice(message);
                bytes
            }
            Self::AskFacts => vec![ASK_FACTS],
            Self::Facts(facts) => {
                let mut bytes = vec![FACTS];
                bytes.extend(encode(facts.as_ref()));
                bytes
            }
        }
    }
}
