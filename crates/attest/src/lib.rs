//! Statements that somebody vouches for: a text and an Ed25519 signature over it.
//!
//! The key is made with the certificates of a cluster (`cofferdam certs new`) and kept by whoever tests;
//! servers are given its public half, and believe nothing else.
//!
//! A crate of its own because the tools sign without the engine, whose processes speak with one another by
//! much that the tools do not need (`wire`).
#![forbid(unsafe_code)]

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// First line of a signed file: what kind it is.
const KIND: &str = "cofferdam-evidence-1";

/// Why a statement is not signed, or not believed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvidenceError {
    /// The file with the key is not one.
    #[error("{path} holds no Ed25519 key: {reason}; `cofferdam certs new` makes one")]
    Key {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        reason: String,
    },
    /// The file has another form: three lines, kind, signature and statement.
    #[error("this is no evidence: {0}")]
    Form(&'static str),
    /// Somebody else has signed, or what was signed was changed.
    #[error("the signature is not that of this key over this statement")]
    Signature,
}

/// The key of whoever vouches.
pub struct Signer(Ed25519KeyPair);

impl Signer {
    /// Reads `evidence.key`.
    ///
    /// # Errors
    /// The file cannot be read or holds no such key.
    pub fn load(path: &Path) -> Result<Self, EvidenceError> {
        let wrong = |reason: String| EvidenceError::Key {
            path: path.to_owned(),
            reason,
        };
        let key = PrivatePkcs8KeyDer::from_pem_file(path).map_err(|it| wrong(it.to_string()))?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der());
        pair.map(Self).map_err(|it| wrong(it.to_string()))
    }

    /// The public half, as [`Pinned`] reads it.
    pub fn public(&self) -> String {
        hex(self.0.public_key().as_ref())
    }

    /// The signed statement, as a file holds it. A statement is one line.
    ///
    /// # Errors
    /// The statement has a line end in it.
    pub fn sign(&self, statement: &str) -> Result<String, EvidenceError> {
        if statement.contains('\n') {
            return Err(EvidenceError::Form("a statement of several lines"));
        }
        let signature = hex(self.0.sign(statement.as_bytes()).as_ref());
        Ok(format!("{KIND}\n{signature}\n{statement}\n"))
    }
}

/// The public half of the only key that is believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pinned(Vec<u8>);

impl Pinned {
    /// Reads `evidence.pub`: 64 hexadecimal digits.
    ///
    /// # Errors
    /// The file cannot be read or holds something else.
    pub fn load(path: &Path) -> Result<Self, EvidenceError> {
        let wrong = |reason: &str| EvidenceError::Key {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let text = std::fs::read_to_string(path).map_err(|it| wrong(&it.to_string()))?;
        let key = unhex(text.trim()).filter(|it| it.len() == 32);
        key.map(Self)
            .ok_or_else(|| wrong("not 64 hexadecimal digits"))
    }

    /// The statement of a signed file.
    ///
    /// # Errors
    /// It is not in that form, or not signed by this key.
    pub fn verify<'a>(&self, file: &'a str) -> Result<&'a str, EvidenceError> {
        let mut lines = file.lines();
        if lines.next() != Some(KIND) {
            return Err(EvidenceError::Form("the first line names another kind"));
        }
        let (Some(signature), Some(statement), None) = (lines.next(), lines.next(), lines.next())
        else {
            return Err(EvidenceError::Form("not three lines"));
        };
        let signature = unhex(signature).ok_or(EvidenceError::Form("no signature"))?;
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        key.verify(statement.as_bytes(), &signature)
            .map_err(|_| EvidenceError::Signature)?;
        Ok(statement)
    }
}

/// Bytes as `evidence.pub` has them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dir: &Path) -> (Signer, Pinned) {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        std::fs::write(dir.join("k"), pair.serialize_pem()).unwrap();
        std::fs::write(dir.join("p"), hex(pair.public_key_raw()) + "\n").unwrap();
        let signer = Signer::load(&dir.join("k")).unwrap();
        (signer, Pinned::load(&dir.join("p")).unwrap())
    }

    #[test]
    fn what_was_signed_is_read_back_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (signer, pinned) = key(dir.path());
        let file = signer.sign("{\"verdict\":\"clean\"}").unwrap();
        assert_eq!(pinned.verify(&file), Ok("{\"verdict\":\"clean\"}"));
        assert_eq!(
            signer.public() + "\n",
            std::fs::read_to_string(dir.path().join("p")).unwrap()
        );

        let changed = file.replace("clean", "found");
        assert_eq!(pinned.verify(&changed), Err(EvidenceError::Signature));
        let (_, other) = key(tempfile::tempdir().unwrap().path());
        assert_eq!(other.verify(&file), Err(EvidenceError::Signature));
        for wrong in [
            "",
            "x",
            KIND,
            &file.replace(KIND, "evidence-0"),
            &format!("{file}more\n"),
        ] {
            assert!(
                matches!(pinned.verify(wrong), Err(EvidenceError::Form(_))),
                "{wrong:?}"
            );
        }
        assert!(signer.sign("two\nlines").is_err());
    }

    #[test]
    fn what_is_no_key_is_said_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        assert!(Signer::load(&file).is_err());
        for text in ["", "zz", "0102", &"0".repeat(66)] {
            std::fs::write(&file, text).unwrap();
            assert!(Pinned::load(&file).is_err(), "{text}");
            assert!(Signer::load(&file).is_err(), "{text}");
        }
    }
}
