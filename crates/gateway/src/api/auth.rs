//! API keys: who asks, and how much it may ask for.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use super::quota::{Rate, Rates};
use crate::engine::{Code, Fault, TenantId};

/// Most keys a file may have: every request is compared with every key.
const MAX_KEYS: usize = 10_000;

/// Known keys. Only hashes are kept, so neither a log nor a core dump of this struct has a key.
pub struct ApiKeys {
    entries: Vec<([u8; 32], TenantId)>,
    /// Of tenants that have limits of their own.
    rates: BTreeMap<TenantId, Rates<Option<Option<Rate>>>>,
}

/// The keys that count now. A clone has the same ones, also after they are replaced.
#[derive(Clone)]
pub struct KeyRing(Arc<RwLock<Arc<ApiKeys>>>);

impl From<ApiKeys> for KeyRing {
    fn from(keys: ApiKeys) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(keys))))
    }
}

impl KeyRing {
    /// The keys of this moment.
    pub fn now(&self) -> Arc<ApiKeys> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// From now on these count, and no others. What runs goes on.
    pub fn replace(&self, keys: ApiKeys) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }
}

/// Why a key file was refused. Never quotes a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// A line is not `tenant key`, with limits behind it or none.
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
    /// What stands behind the key is no limit.
    #[error(
        "API keys, line {line}: behind the key may stand rpm=N and tpm=N, each once; N is 1 to \
             4294967295, or none"
    )]
    Rate {
        /// Line number, from 1.
        line: usize,
    },
    /// Two lines of a tenant say different limits: which would count?
    #[error("API keys, line {line}: an earlier line of this tenant has another limit")]
    Rates {
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
    /// Reads lines of `tenant key [rpm=N] [tpm=N]`; blank lines and lines that begin with `#` are skipped. A
    /// tenant may have several keys (to change them without a gap).
    ///
    /// # Errors
    /// The first line that cannot be used, by number.
    pub fn parse(file: &str) -> Result<Self, KeyFileError> {
        let mut entries: Vec<([u8; 32], TenantId)> = Vec::new();
        let mut rates: BTreeMap<TenantId, Rates<Option<Option<Rate>>>> = BTreeMap::new();
        for (line, text) in (1..).zip(file.lines()) {
            let words: Vec<&str> = text.split_whitespace().collect();
            if words.first().is_none_or(|word| word.starts_with('#')) {
                continue;
            }
            let [tenant, key, limits @ ..] = &words[..] else {
                return Err(KeyFileError::Shape {
                    line,
                    found: words.len(),
                });
            };
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
            let tenant = TenantId::new(tenant);
            let own = Rates::parse(limits).ok_or(KeyFileError::Rate { line })?;
            let known = rates.entry(tenant.clone()).or_default();
            *known = known.with(own).ok_or(KeyFileError::Rates { line })?;
            entries.push((digest, tenant));
            if entries.len() > MAX_KEYS {
                return Err(KeyFileError::TooMany {
                    found: entries.len(),
                });
            }
        }
        if entries.is_empty() {
            return Err(KeyFileError::Empty);
        }
        Ok(Self { entries, rates })
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
            rates: BTreeMap::new(),
        })
    }

    /// Keys that this process has drawn for itself, of tenants whose names no key file can have.
    pub fn drawn(keys: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let entry = |(tenant, key): (&'static str, String)| {
            debug_assert!(!is_tenant_name(tenant), "a key file could name it");
            let digest = *blake3::hash(key.as_bytes()).as_bytes();
            (digest, TenantId::new(tenant))
        };
        Self {
            entries: keys.into_iter().map(entry).collect(),
            rates: BTreeMap::new(),
        }
    }

    /// Every tenant that has a key, each once, in order of names.
    pub fn tenants(&self) -> Vec<TenantId> {
        let set: std::collections::BTreeSet<_> = self.entries.iter().map(|(_, t)| t).collect();
        set.into_iter().cloned().collect()
    }

    /// Whether there is more than one tenant.
    pub(super) fn several(&self) -> bool {
        self.entries.windows(2).any(|two| two[0].1 != two[1].1)
    }

    /// A tenant's limits: its own, or else those that everybody has.
    pub(super) fn rates(&self, tenant: &TenantId, usual: Rates) -> Rates {
        let own = self.rates.get(tenant).copied().unwrap_or_default();
        Rates {
            requests: own.requests.unwrap_or(usual.requests),
            tokens: own.tokens.unwrap_or(usual.tokens),
        }
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
pub fn tenant(
    keys: Option<&KeyRing>,
    canaries: Option<&ApiKeys>,
    headers: &HeaderMap,
) -> Result<TenantId, Fault> {
    if let Some(canary) = canaries.and_then(|it| it.find(given(headers)?)) {
        return Ok(canary.clone());
    }
    let Some(keys) = keys.map(KeyRing::now) else {
        return Ok(TenantId::anonymous());
    };
    if headers.get_all(header::AUTHORIZATION).iter().count() != 1 {
        return Err(Fault::new(
            Code::InvalidApiKey,
            "expected exactly one header `Authorization: Bearer KEY`",
        ));
    }
    let key = given(headers);
    key.and_then(|key| keys.find(key)).cloned().ok_or_else(|| {
        Fault::new(
            Code::InvalidApiKey,
            "this API key is not known here; ask who runs the server",
        )
    })
}

/// The key of a request that has exactly one.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return None;
    };
    let (scheme, key) = value.as_bytes().split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| key.trim_ascii())
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
        let tenants = keys.tenants();
        let ring = KeyRing::from(keys);
        let who =
            |v: &[&str]| tenant(Some(&ring), None, &headers(v)).map(|t| t.as_str().to_owned());
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
        assert_eq!(tenants, [TenantId::new("blue"), TenantId::new("red")]);
        ring.replace(ApiKeys::parse("blue k-1").unwrap());
        assert_eq!(who(&["Bearer k-1"]).unwrap(), "blue");
        assert!(who(&["Bearer k-2"]).is_err(), "a key that was taken out");
    }

    #[test]
    fn without_keys_everybody_is_one_tenant() {
        assert_eq!(
            tenant(None, None, &headers(&["Bearer x"])).unwrap(),
            TenantId::anonymous()
        );
    }

    #[test]
    fn a_canary_has_a_key_of_its_own_whatever_the_file_says() {
        let inner = ApiKeys::drawn([("canary:a", "k-9".to_owned())]);
        let ring = KeyRing::from(ApiKeys::parse("red k-1").unwrap());
        for ring in [None, Some(&ring)] {
            let who = tenant(ring, Some(&inner), &headers(&["Bearer k-9"])).unwrap();
            assert_eq!(who.as_str(), "canary:a");
        }
        assert!(tenant(Some(&ring), Some(&inner), &headers(&["Bearer k-2"])).is_err());
        assert!(ApiKeys::parse("canary:a k").is_err());
    }

    #[test]
    fn an_unusable_file_is_refused_by_line_and_never_quoted() {
        let refused = |file: &str| ApiKeys::parse(file).err().unwrap();
        assert_eq!(refused("a k\nb"), KeyFileError::Shape { line: 2, found: 1 });
        for limits in [
            "x",
            "rpm",
            "rpm=",
            "rpm=0",
            "rpm=-1",
            "rpm=1 rpm=1",
            "tpm=4294967296",
            "Rpm=1",
        ] {
            let file = format!("a k {limits}");
            assert_eq!(refused(&file), KeyFileError::Rate { line: 1 }, "{file}");
        }
        assert_eq!(
            refused("a k rpm=1\na l rpm=2"),
            KeyFileError::Rates { line: 2 }
        );
        assert_eq!(refused("a/b k"), KeyFileError::Tenant { line: 1 });
        assert_eq!(refused("anonymous k"), KeyFileError::Tenant { line: 1 });
        assert_eq!(refused("a k\nb k"), KeyFileError::Twice { line: 2 });
        assert_eq!(refused("a ké"), KeyFileError::Key { line: 1 });
        assert_eq!(refused("# nothing\n"), KeyFileError::Empty);
        assert!(!refused("a se cret").to_string().contains("cret"));
    }

    #[test]
    fn limits_stand_behind_a_key_and_are_their_tenants() {
        let file = "a k1 rpm=60 tpm=none\na k2\na k3 rpm=60\nb k4 tpm=9\nc k5\n";
        let keys = ApiKeys::parse(file).unwrap();
        let rate = Rate::new;
        let usual = Rates {
            requests: rate(7),
            tokens: rate(8),
        };
        let of = |name: &str| {
            let rates = keys.rates(&TenantId::new(name), usual);
            [rates.requests, rates.tokens].map(|it| it.map(Rate::get))
        };
        assert_eq!(of("a"), [Some(60), None]);
        assert_eq!(of("b"), [Some(7), Some(9)]);
        assert_eq!(of("c"), [Some(7), Some(8)]);
        assert!(keys.several() && !ApiKeys::parse("a k\na l").unwrap().several());
    }
}
