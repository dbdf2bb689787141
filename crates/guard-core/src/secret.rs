//! The secret that the operator sets on every engine of a fleet, and the keys made from it.

use std::fmt;

/// The shortest secret that is taken, in bytes.
pub const SECRET_BYTES_MIN: usize = 16;

/// The secret was too short to protect anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the guard's secret has {got} bytes, fewer than {SECRET_BYTES_MIN}: set the same long random \
     secret on every engine (openssl rand -hex 32)"
)]
pub struct WeakSecret {
    /// Bytes of the secret given.
    pub got: usize,
}

/// What all guards of a fleet share. Each use has a key of its own, so that a message of one kind
/// can never pass for one of another. Not printable.
#[derive(Clone)]
pub struct Secret {
    lineage: [u8; 32],
    reference: [u8; 32],
    request: [u8; 32],
    reply: [u8; 32],
    checksum: [u8; 32],
}

impl Secret {
    /// Keys from the operator's secret.
    pub fn new(secret: &[u8]) -> Result<Self, WeakSecret> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(WeakSecret { got: secret.len() });
        }
        let key = |purpose: &str| blake3::derive_key(purpose, secret);
        Ok(Self {
            lineage: key("cofferdam-guard v1 lineage of a prompt"),
            reference: key("cofferdam-guard v1 reference to blocks"),
            request: key("cofferdam-guard v1 side channel, consumer to producer"),
            reply: key("cofferdam-guard v1 side channel, producer to consumer"),
            checksum: key("cofferdam-guard v1 coefficients of block checksums"),
        })
    }

    pub(crate) fn lineage(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.lineage)
    }

    pub(crate) fn sign_reference(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.reference, bytes)
    }

    pub(crate) fn sign_message(&self, reply: bool, bytes: &[u8]) -> blake3::Hash {
        let key = if reply { &self.reply } else { &self.request };
        blake3::keyed_hash(key, bytes)
    }

    /// `n` odd 64-bit coefficients for the checksums of blocks, the same on every engine that has
    /// the same secret. Odd, so that a change of a single word always changes the sum.
    pub fn coefficients(&self, n: usize) -> Vec<u64> {
        let mut words = blake3::Hasher::new_keyed(&self.checksum).finalize_xof();
        let mut bytes = vec![0u8; n * 8];
        words.fill(&mut bytes);
        let words = bytes.chunks_exact(8).map(|word| {
            let mut le = [0; 8];
            le.copy_from_slice(word);
            u64::from_le_bytes(le) | 1
        });
        words.collect()
    }

    /// A number for an isolation domain: the salt under which a tenant's prompts are cached. A
    /// keyed hash, so that neither logs nor other engines learn the salt.
    pub fn domain(&self, salt: Option<&[u8]>) -> u64 {
        let Some(salt) = salt else { return 0 };
        let mut hasher = self.lineage();
        hasher.update(b"domain").update(salt);
        let hash = hasher.finalize();
        let mut le = [0; 8];
        le.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(le).max(1)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_secret_is_refused_and_a_secret_is_never_printed() {
        assert_eq!(Secret::new(b"fifteen bytes!!").unwrap_err().got, 15);
        let secret = Secret::new(b"sixteen bytes!!!").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn coefficients_are_odd_and_the_same_for_the_same_secret_only() {
        let one = Secret::new(b"a secret of the fleet").unwrap();
        let same = Secret::new(b"a secret of the fleet").unwrap();
        let other = Secret::new(b"a secret of the float").unwrap();
        let coefficients = one.coefficients(1000);
        assert!(coefficients.iter().all(|c| c % 2 == 1));
        assert_eq!(coefficients, same.coefficients(1000));
        assert_eq!(coefficients[..10], same.coefficients(10)[..]);
        assert_ne!(coefficients, other.coefficients(1000));
    }

    #[test]
    fn domains_of_different_salts_differ_and_no_salt_is_domain_zero() {
        let secret = Secret::new(b"a secret of the fleet").unwrap();
        assert_eq!(secret.domain(None), 0);
        assert_ne!(secret.domain(Some(b"a")), secret.domain(Some(b"b")));
        assert_ne!(secret.domain(Some(b"")), 0);
    }
}
