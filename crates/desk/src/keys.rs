//! Operators' keys: who asks. There is no way in without one.

use std::sync::{Arc, PoisonError, RwLock};

use http::{HeaderMap, header};
use subtle::ConstantTimeEq;

/// Shortest key: there is nothing else between a stranger and the buttons.
const KEY_MIN: usize = 16;
/// Most keys: every request is compared with every one.
const KEYS_MAX: usize = 1000;

type Digest = [u8; 32];
/// Every key, as its hash, with its name.
type Known = Vec<(Digest, Arc<str>)>;

/// The operators' keys that count now, as hashes. A clone has the same ones, also after they are
/// replaced.
#[derive(Clone)]
pub struct Keys(Arc<RwLock<Arc<Known>>>);

/// Who asks. What an operator was let in with may be taken away while a stream is open.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    digest: Digest,
    /// The key's name.
    pub name: Arc<str>,
}

/// Why keys were refused. Never quotes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// A line is not `name key`.
    #[error("operators' keys, line {line}: expected `name key`, found {found} words")]
    Shape {
        /// Line number, from 1.
        line: usize,
        /// How many words it has.
        found: usize,
    },
    /// A name is unusable.
    #[error(
        "operators' keys, line {line}: a name is 1 to 64 of a-z A-Z 0-9 . _ - and not `policy`"
    )]
    Name {
        /// Line number, from 1.
        line: usize,
    },
    /// A key is unusable.
    #[error(
        "operators' keys, line {line}: a key is at least {KEY_MIN} characters of visible ASCII; make \
         one with: openssl rand -hex 24"
    )]
    Key {
        /// Line number, from 1.
        line: usize,
    },
    /// Two lines have the same key: who would it be?
    #[error("operators' keys, line {line}: this key stands in an earlier line too")]
    Twice {
        /// Line number, from 1.
        line: usize,
    },
    /// There is none.
    #[error("operators' keys: there is none, so that nobody could come in; write `name key` lines")]
    Empty,
    /// More than a request can be compared with.
    #[error("operators' keys: {found} of them, at most {KEYS_MAX} are supported")]
    TooMany {
        /// How many there are.
        found: usize,
    },
}

impl Keys {
    /// Reads lines of `name key`; blank lines and lines that begin with `#` are skipped. An operator
    /// may have several keys (to change them without a gap).
    ///
    /// # Errors
    /// The first line that cannot be used, by number.
    pub fn parse(file: &str) -> Result<Self, KeysError> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(read(file)?)))))
    }

    /// From now on the keys of this file count, and no others; streams of those that are gone end.
    ///
    /// # Errors
    /// The first line that cannot be used; those that counted go on counting.
    pub fn replace(&self, file: &str) -> Result<(), KeysError> {
        let keys = Arc::new(read(file)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    fn now(&self) -> Arc<Known> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Every digest is compared, without an early exit: neither the length of the right prefix nor
    /// the place of the key shows in the time taken.
    fn find(&self, digest: &Digest) -> Option<Operator> {
        let mut found = None;
        for (known, name) in self.now().iter() {
            if bool::from(known.ct_eq(digest)) {
                found = Some(name.clone());
            }
        }
        found.map(|name| Operator {
            digest: *digest,
            name,
        })
    }

    /// Whether the key with which somebody was let in still counts.
    pub(crate) fn still_has(&self, operator: &Operator) -> bool {
        self.find(&operator.digest).is_some()
    }

    /// Who asks, by `Authorization: Bearer`.
    ///
    /// # Errors
    /// What came instead.
    pub(crate) fn operator(&self, headers: &HeaderMap) -> Result<Operator, &'static str> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let value = given.next().ok_or("no such header")?;
        if given.next().is_some() {
            return Err("more than one such header");
        }
        let (scheme, key) = value
            .as_bytes()
            .split_at_checked(7)
            .ok_or("another scheme")?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err("another scheme");
        }
        let digest = *blake3::hash(key.trim_ascii()).as_bytes();
        self.find(&digest).ok_or("a key that is not known here")
    }
}

fn read(file: &str) -> Result<Known, KeysError> {
    let mut keys = Known::new();
    for (line, text) in (1..).zip(file.lines()) {
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            continue;
        }
        let [name, key] = words[..] else {
            let found = words.len();
            return Err(KeysError::Shape { line, found });
        };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.len() > 64 || !name.bytes().all(is_plain) || name == "policy" {
            return Err(KeysError::Name { line });
        }
        if key.len() < KEY_MIN || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(KeysError::Key { line });
        }
        let digest = *blake3::hash(key.as_bytes()).as_bytes();
        if keys.iter().any(|(known, _)| *known == digest) {
            return Err(KeysError::Twice { line });
        }
        keys.push((digest, name.into()));
    }
    match keys.len() {
        0 => Err(KeysError::Empty),
        found if found > KEYS_MAX => Err(KeysError::TooMany { found }),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNA: &str = "anna-0123456789abcdef";
    const BEN: &str = "ben-0123456789abcdef";

    fn headers(values: &[&str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn a_key_names_its_operator_until_it_is_taken_away() {
        let keys = Keys::parse(&format!("# on call\n\nanna {ANNA}\nben {BEN}\n")).unwrap();
        let who = |value: &str| keys.operator(&headers(&[value]));
        let anna = who(&format!("Bearer {ANNA}")).unwrap();
        assert_eq!(&*anna.name, "anna");
        assert_eq!(&*who(&format!("bearer {BEN}")).unwrap().name, "ben");
        for bad in ["Bearer ", ANNA, "Basic x", &format!("Bearer {ANNA}x")] {
            assert!(who(bad).is_err(), "{bad}");
        }
        let twice = headers(&[&format!("Bearer {ANNA}"), &format!("Bearer {BEN}")]);
        assert_eq!(
            keys.operator(&twice).unwrap_err(),
            "more than one such header"
        );
        keys.replace(&format!("ben {BEN}")).unwrap();
        assert!(!keys.still_has(&anna), "a key that was taken out");
        assert_eq!(keys.replace("").unwrap_err(), KeysError::Empty);
        assert!(
            who(&format!("Bearer {BEN}")).is_ok(),
            "a bad file changes nothing"
        );
    }

    #[test]
    fn an_unusable_file_is_refused_by_line_and_never_quoted() {
        let refused = |file: &str| Keys::parse(file).err().unwrap();
        assert_eq!(refused("a"), KeysError::Shape { line: 1, found: 1 });
        assert_eq!(refused("a/b 0123456789abcdef"), KeysError::Name { line: 1 });
        assert_eq!(
            refused("policy 0123456789abcdef"),
            KeysError::Name { line: 1 }
        );
        assert_eq!(refused("# x\na secret"), KeysError::Key { line: 2 });
        assert_eq!(
            refused("a 0123456789abcdef\nb 0123456789abcdef"),
            KeysError::Twice { line: 2 }
        );
        assert_eq!(refused("# nothing\n"), KeysError::Empty);
        assert!(!refused("a secret").to_string().contains("secret"));
    }
}
