//! Names and seeds that the gateway mints itself (H-8: identity is ours). What a client sends as
//! an id is copied into the access log and decides nothing.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Mints ids that are unique in this process's life and cannot be guessed from others.
pub(super) struct Minter {
    secret: [u8; 32],
    next: AtomicU64,
}

impl Minter {
    /// A minter with a fresh secret from the operating system's entropy (by way of the standard
    /// library's hash seeds, of which each has 128 bits).
    pub(super) fn new() -> Self {
        let mut hasher = blake3::Hasher::new();
        for round in 0..4u64 {
            hasher.update(&RandomState::new().hash_one(round).to_le_bytes());
        }
        Self {
            secret: *hasher.finalize().as_bytes(),
            next: AtomicU64::new(0),
        }
    }

    /// The name of a new request.
    pub(super) fn request(&self) -> RequestName {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let digest = blake3::keyed_hash(&self.secret, &number.to_le_bytes());
        let bytes = digest.as_bytes();
        let seed = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let id = bytes[..12].iter().map(|b| format!("{b:02x}")).collect();
        RequestName { id, seed }
    }
}

/// The gateway's name for one HTTP request.
#[derive(Clone, Debug)]
pub(super) struct RequestName {
    /// 24 hexadecimal digits.
    pub id: String,
    /// Seed for sampling where the client gave none; does not follow from `id`.
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_within_and_between_lives() {
        let (a, b) = (Minter::new(), Minter::new());
        let ids: std::collections::BTreeSet<_> = (0..1000)
            .flat_map(|_| [a.request().id, b.request().id])
            .collect();
        assert_eq!(ids.len(), 2000);
        assert!(ids.iter().all(|id| id.len() == 24));
        assert_ne!(a.request().seed, a.request().seed);
    }
}
