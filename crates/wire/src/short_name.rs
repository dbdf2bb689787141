//! Short names for long words.

/// A short name for what these words say together: others say another one.
pub fn short_name(words: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("cofferdam 2026-12 short name");
    for word in words {
        hasher.update(&(word.len() as u64).to_le_bytes());
        hasher.update(word.as_bytes());
    }
    hasher.finalize().to_hex().chars().take(12).collect()
}
