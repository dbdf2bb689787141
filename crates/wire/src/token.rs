//! What was sampled.

use crate::Malformed;
use crate::codec::{decode, encode};
use serde::{Deserialize, Serialize};

/// Choices of one request, at most.
pub const CHOICES_MAX: usize = 128;

/// One sampled token: the payload of an output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenOut {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of its probability, where log-probabilities were asked for.
    pub logprob: Option<f32>,
    /// The most likely alternatives with theirs, best first, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

impl TokenOut {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a payload.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let token: Self = decode("token", bytes)?;
        token.check()?;
        Ok(token)
    }

    fn check(&self) -> Result<(), Malformed> {
        let most = usize::from(crate::TOP_MAX);
        if self.top.len() > most {
            let reason = format!("{} alternatives, at most {most}", self.top.len());
            return Err(Malformed::Bytes {
                what: "token",
                reason,
            });
        }
        let mut logprobs = self
            .logprob
            .iter()
            .chain(self.top.iter().map(|(_, logprob)| logprob));
        match logprobs.find(|logprob| logprob.is_nan()) {
            None => Ok(()),
            Some(_) => {
                let reason = "a log-probability that is no number".into();
                Err(Malformed::Bytes {
                    what: "token",
                    reason,
                })
            }
        }
    }
}

/// The first token of every choice, in the order of the choices: what prefill puts into `Closed`.
pub fn encode_first(tokens: &[TokenOut]) -> Vec<u8> {
    encode(&tokens)
}

/// Reads them; `choices` is what the request asked for, and exactly as many must be there.
pub fn decode_first(bytes: &[u8], choices: usize) -> Result<Vec<TokenOut>, Malformed> {
    let tokens: Vec<TokenOut> = decode("first tokens", bytes)?;
    if tokens.len() != choices || choices > CHOICES_MAX {
        let reason = format!("{} tokens for {choices} choices", tokens.len());
        return Err(Malformed::Bytes {
            what: "first tokens",
            reason,
        });
    }
    tokens.iter().try_for_each(TokenOut::check)?;
    Ok(tokens)
}
