//! Keys: read from the environment or a file, sent, never shown.

use std::fmt;
use std::path::Path;

/// No key is longer.
const BYTES_MAX: usize = 4096;

/// A key. Neither `Debug` nor an error shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The environment does not have it.
    #[error("the environment has no {0} that is text")]
    NotSet(String),
    /// The file cannot be read.
    #[error("the key file {path} cannot be read: {why}")]
    File {
        /// Which.
        path: String,
        /// The system's words.
        why: std::io::Error,
    },
    /// It is empty, too long, or has characters that a header cannot carry.
    #[error("the key in {0} is not 1 to 4096 visible ASCII characters")]
    Shape(String),
}

impl Secret {
    /// From an environment variable.
    ///
    /// # Errors
    /// It is not set, or not a key.
    pub fn from_env(name: &str) -> Result<Self, SecretError> {
        let text = std::env::var(name).map_err(|_| SecretError::NotSet(name.to_owned()))?;
        Self::of(&text, name)
    }

    /// From a file that holds it and nothing else (a final line end is taken off).
    ///
    /// # Errors
    /// The file cannot be read, or holds no key.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|why| SecretError::File {
            path: shown.clone(),
            why,
        })?;
        Self::of(&text, &shown)
    }

    /// One that this process has drawn itself.
    ///
    /// # Errors
    /// It is not a key.
    pub fn new(key: &str) -> Result<Self, SecretError> {
        Self::of(key, "memory")
    }

    fn of(text: &str, place: &str) -> Result<Self, SecretError> {
        let key = text.trim_end_matches(['\r', '\n']);
        let good =
            (1..=BYTES_MAX).contains(&key.len()) && key.bytes().all(|it| it.is_ascii_graphic());
        good.then(|| Self(key.to_owned()))
            .ok_or_else(|| SecretError::Shape(place.to_owned()))
    }

    /// The value of an `Authorization` header.
    pub fn bearer(&self) -> http::HeaderValue {
        let text = format!("Bearer {}", self.0);
        let mut value = http::HeaderValue::from_str(&text).expect("visible ASCII, as checked");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_files_and_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "sk-1234\n").unwrap();
        let key = Secret::from_file(&path).unwrap();
        assert_eq!(key.bearer(), "Bearer sk-1234");
        assert_eq!(format!("{key:?} {:?}", key.bearer()), "Secret Sensitive");
        for bad in ["", "\n", "a b", "a\nb", "ä", &"x".repeat(5000)] {
            std::fs::write(&path, bad).unwrap();
            let error = Secret::from_file(&path).unwrap_err();
            assert!(matches!(error, SecretError::Shape(_)), "{bad:?}");
            assert!(bad.len() < 3 || !error.to_string().contains(bad));
        }
        let error = Secret::from_env("COFFERDAM_NO_SUCH_KEY").unwrap_err();
        assert!(matches!(error, SecretError::NotSet(_)));
    }
}
