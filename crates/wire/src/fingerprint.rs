//! Which weights and which tokenizer: equal on every side of a connection, or nothing works.

use std::io::{self, Read};

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Fingerprint of a model file, over all of its bytes: `Hello::model` of gateway and workers. A
/// gateway only tokenizes, so how a worker computes (exact or fast) is part of the page layout's
/// fingerprint instead, which workers alone compare.
pub fn model_fingerprint(mut file: impl Read) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("cofferdam 2026-11 model file");
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(*hasher.finalize().as_bytes()),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
    }
}

/// A short name for what these words say together: others say another one.
pub fn short_name(words: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("cofferdam 2026-12 short name");
    for word in words {
        hasher.update(&(word.len() as u64).to_le_bytes());
        hasher.update(word.as_bytes());
    }
    hasher.finalize().to_hex().chars().take(12).collect()
}
