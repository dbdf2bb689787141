//! What a process of the cluster is, as its certificate says it.

use std::fmt;
use std::str::FromStr;

/// The part that a process plays. It is proven by the name in its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Computes the KV cache of prompts.
    Prefill,
    /// Takes KV caches over and generates.
    Decode,
    /// Speaks to clients and owns the outcome of a request.
    Gateway,
}

impl Role {
    /// Every role, in the order in which files and errors list them.
    pub const ALL: [Role; 3] = [Role::Prefill, Role::Decode, Role::Gateway];

    /// The word for this role in file names, flags and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Gateway => "gateway",
        }
    }

    /// The DNS name that a certificate of this role carries, and no other certificate does.
    pub fn certificate_name(self) -> &'static str {
        match self {
            Role::Prefill => "prefill.cofferdam",
            Role::Decode => "decode.cofferdam",
            Role::Gateway => "gateway.cofferdam",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The word is not the name of a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {0:?}: expected prefill, decode or gateway")]
pub struct UnknownRole(pub String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Role::ALL.into_iter().find(|role| role.as_str() == word);
        found.ok_or_else(|| UnknownRole(word.to_owned()))
    }
}

/// "prefill or decode": for errors that say which roles would have been accepted.
pub(crate) fn list(roles: &[Role]) -> String {
    let words: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    if words.is_empty() {
        "nobody".to_owned()
    } else {
        words.join(" or ")
    }
}
