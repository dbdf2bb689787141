//! API keys: who asks.

use http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use crate::engine::{Code, Fault, TenantId};

/// Most keys a file may have: every request is compared with every key.
const MAX_KEYS: usize = 10_000;

/// Known keys. Only hashes are kept, so neither a log nor a core dump of this struct has a key.
pub struct ApiKeys {
    entries: Vec<([u8; 32], TenantId)>,
}

/// Why a key file was refused. Never quotes a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// A line is not `tenant key`.
    #[error("API keys, line {line}: expected `tenant key`, found {found} words")]
    Shape {
        /// Line number, from 1.
        line: usize,
        /// How many words it has.
        found: usize,
    },
    /// A tenant's name is unusable.
    #[error(
        "API keys, line {line}: a tenant is 1 to 64 of a-z A-Z 0-9 . _ - and not `{}`",
        TenantId::ANONYMOUS
    )]
    Tenant {
        /// Line number, from 1.
        line: usize,
    },
    /// A key is not visible ASCII, so no header could carry it.
    #[error("API keys, line {line}: a key is visible ASCII without spaces")]
    Key {
        /// Line number, from 1.
        line: usize,
    },
    /// Two lines have the same key: whose would it be?
    #[error("API keys, line {line}: this key stands in an earlier line too")]
    Twice {
        /// Line number, from 1.
        line: usize,
    },
    /// The file has no key, and an empty list must not mean "everybody".
    #[error("API keys: the file has no key; leave the option out to serve everybody")]
    Empty,
    /// More keys than a request can be compared with.
    #[error("API keys: {found} keys, at most {MAX_KEYS} are supported")]
    TooMany {
        /// How many there are.
        found: usize,
    },
}

impl ApiKeys {
    /// Reads lines of `tenant key`; blank lines and lines that begin with `#` are skipped. A
    /// tenant may have several keys (to change them without a gap).
    ///
    /// # Errors
    /// The first line that cannot be used, by number.
    pub fn parse(file: &str) -> Result<Self, KeyFileError> {
        let mut entries: Vec<([u8; 32], TenantId)> = Vec::new();
        for (line, text) in (1..).zip(file.lines()) {
            let words: Vec<&str> = text.split_whitespace().collect();
            let [tenant, key] = words[..] else {
                if words.is_empty() || words[0].starts_with('#') {
                    continue;
                }
                return Err(KeyFileError::Shape {
                    line,
                    found: words.len(),
                });
            };
            if tenant.starts_with('#') {
                continue;
            }
            if !is_tenant_name(tenant) {
                return Err(KeyFileError::Tenant { line });
            }
            if !key.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(KeyFileError::Key { line });
            }
            let digest = *blake3::hash(key.as_bytes()).as_bytes();
            if entries.iter().any(|(known, _)| *known == digest) {
                return Err(KeyFileError::Twice { line });
            }
            entries.push((digest, TenantId::new(tenant)));
            if entries.len() > MAX_KEYS {
                return Err(KeyFileError::TooMany {
                    found: entries.len(),
                });
            }
        }
        if entries.is_empty() {
            return Err(KeyFileError::Empty);
        }
        Ok(Self { entries })
    }

    /// One key for one tenant named `default`, as from `--api-key`.
    ///
    /// # Errors
    /// The key is empty or not visible ASCII.
    pub fn single(key: &str) -> Result<Self, KeyFileError> {
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(KeyFileError::Key { line: 1 });
        }
        let digest = *blake3::hash(key.as_bytes()).as_bytes();
        Ok(Self {
            entries: vec![(digest, TenantId::new("default"))],
        })
    }

    /// Every tenant that has a key, each once, in order of names.
    pub fn tenants(&self) -> Vec<TenantId> {
        let set: std::collections::BTreeSet<_> = self.entries.iter().map(|(_, t)| t).collect();
        set.into_iter().cloned().collect()
    }

    /// Hash first, then compare every digest without an early exit: neither the length of the
    /// right prefix nor the position of the key shows in the time taken.
    fn find(&self, key: &[u8]) -> Option<&TenantId> {
        let digest = blake3::hash(key);
        let mut found = None;
        for (known, tenant) in &self.entries {
            if bool::from(known.ct_eq(digest.as_bytes())) {
                found = Some(tenant);
            }
        }
        found
    }
}

fn is_tenant_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && name != TenantId::ANONYMOUS
}

/// Who asks, by the `Authorization: Bearer` header.
///
/// # Errors
/// Keys are configured and the request has none, an unknown one, or more than one.
pub fn tenant(keys: Option<&ApiKeys>, headers: &HeaderMap) -> Result<TenantId, Fault> {
    let Some(keys) = keys else {
        return Ok(TenantId::anonymous());
    };
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err(Fault::new(
            Code::InvalidApiKey,
            "expected exactly one header `Authorization: Bearer KEY`",
        ));
    };
    let key = value
        .as_bytes()
        .split_at_checked(7)
        .and_then(|(scheme, key)| {
            scheme
                .eq_ignore_ascii_case(b"bearer ")
                .then(|| key.trim_ascii())
        });
    key.and_then(|key| keys.find(key)).cloned().ok_or_else(|| {
        Fault::new(
            Code::InvalidApiKey,
            "this API key is not known here; ask who runs the server",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn a_key_names_its_tenant() {
        let keys = ApiKeys::parse("# comment\n\n red  k-1 \nblue k-2\nred k-3\n#x y\n").unwrap();
        let who = |v: &[&str]| tenant(Some(&keys), &headers(v)).map(|t| t.as_str().to_owned());
        assert_eq!(who(&["Bearer k-1"]).unwrap(), "red");
        assert_eq!(who(&["bearer k-3"]).unwrap(), "red");
        assert_eq!(who(&["Bearer k-2"]).unwrap(), "blue");
        for bad in [
            &[][..],
            &["k-1"],
            &["Basic k-1"],
            &["Bearer "],
            &["Bearer k-"],
            &["Bearer k-11"],
            &["Bearer k-1", "Bearer k-2"],
        ] {
            assert_eq!(who(bad).unwrap_err().code, Code::InvalidApiKey, "{bad:?}");
        }
        assert_eq!(
            keys.tenants(),
            [TenantId::new("blue"), TenantId::new("red")]
        );
    }

    #[test]
    fn without_keys_everybody_is_one_tenant() {
        assert_eq!(
            tenant(None, &headers(&["Bearer x"])).unwrap(),
            TenantId::anonymous()
        );
    }

    #[test]
    fn an_unusable_file_is_refused_by_line_and_never_quoted() {
        let refused = |file: &str| ApiKeys::parse(file).err().unwrap();
        assert_eq!(refused("a k\nb"), KeyFileError::Shape { line: 2, found: 1 });
        assert_eq!(refused("a k x"), KeyFileError::Shape { line: 1, found: 3 });
        assert_eq!(refused("a/b k"), KeyFileError::Tenant { line: 1 });
        assert_eq!(refused("anonymous k"), KeyFileError::Tenant { line: 1 });
        assert_eq!(refused("a k\nb k"), KeyFileError::Twice { line: 2 });
        assert_eq!(refused("a ké"), KeyFileError::Key { line: 1 });
        assert_eq!(refused("# nothing\n"), KeyFileError::Empty);
        assert!(!refused("a se cret").to_string().contains("cret"));
    }
}
