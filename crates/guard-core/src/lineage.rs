//! What a block's content was computed from.

use crate::Secret;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Everything that a KV cache depends on besides the tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context<'a> {
    /// The model, as both engines name it (its path or repository and revision).
    pub model: &'a str,
    /// The adapter (LoRA) of the request, if any.
    pub adapter: Option<&'a str>,
    /// The salt of the request's isolation domain, if any (H-13).
    pub salt: Option<&'a str>,
    /// Whatever else the engine mixes in (multimodal hashes), if any.
    pub extra: Option<&'a [u8]>,
}

/// A keyed hash over context and prompt. Equal lineages: the same prompt for the same model,
/// adapter and domain. It says nothing about the prompt to whoever lacks the secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lineage(pub(crate) [u8; 32]);

impl Lineage {
    /// The lineage of a prompt, in tokens.
    pub fn of(secret: &Secret, context: Context<'_>, tokens: &[u32]) -> Self {
        let mut hasher = secret.lineage();
        // Each part with its length, so that no part can be taken for the end of another.
        let mut part = |tag: u8, bytes: Option<&[u8]>| {
            hasher.update(&[tag, u8::from(bytes.is_some())]);
            let bytes = bytes.unwrap_or_default();
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(1, Some(context.model.as_bytes()));
        part(2, context.adapter.map(str::as_bytes));
        part(3, context.salt.map(str::as_bytes));
        part(4, context.extra);
        let tokens: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        part(5, Some(&tokens));
        Self(*hasher.finalize().as_bytes())
    }

    /// The 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From 32 bytes that [`Lineage::bytes`] gave.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Lineage {
    /// The first 48 bits: enough for a log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lineage({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::new(b"a secret of the fleet").unwrap()
    }

    #[test]
    fn every_part_counts() {
        let base = Context {
            model: "m",
            adapter: Some("a"),
            salt: Some("s"),
            extra: None,
        };
        let lineage = |context, tokens: &[u32]| Lineage::of(&secret(), context, tokens);
        let all = [
            lineage(base, &[1, 2, 3]),
            lineage(base, &[1, 2, 4]),
            lineage(base, &[1, 2]),
            lineage(Context { model: "n", ..base }, &[1, 2, 3]),
            lineage(
                Context {
                    adapter: None,
                    ..base
                },
                &[1, 2, 3],
            ),
            lineage(Context { salt: None, ..base }, &[1, 2, 3]),
            lineage(
                Context {
                    salt: Some(""),
                    ..base
                },
                &[1, 2, 3],
            ),
            lineage(
                Context {
                    extra: Some(b""),
                    ..base
                },
                &[1, 2, 3],
            ),
            // An adapter is not a salt (vllm#44701).
            lineage(
                Context {
                    adapter: Some("s"),
                    salt: Some("a"),
                    ..base
                },
                &[1, 2, 3],
            ),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(one, other);
            }
        }
        assert_eq!(all[0], lineage(base, &[1, 2, 3]));
    }

    #[test]
    fn another_secret_gives_another_lineage() {
        let other = Secret::new(b"a secret of the float").unwrap();
        let context = Context::default();
        assert_ne!(
            Lineage::of(&secret(), context, &[1]),
            Lineage::of(&other, context, &[1])
        );
    }
}
