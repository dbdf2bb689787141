//! What can come instead of an answer.

use serde::{Deserialize, Serialize};

/// Why an endpoint gave nothing that can be read. Every one of these makes figures unknown; none
/// is ever replaced by a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Trouble {
    /// No connection: name not found, refused, closed before an answer.
    #[error("unreachable ({why}): is it running, is the address right?")]
    Unreachable {
        /// The system's words.
        why: String,
    },
    /// TLS failed: another CA, no client certificate, an expired one.
    #[error("TLS failed ({why}): give its CA with `ca`, and `cert` and `key` if it wants them")]
    Tls {
        /// The library's words.
        why: String,
    },
    /// No complete answer in time.
    #[error("no complete answer within {limit_ms} ms")]
    Timeout {
        /// The limit that was hit, of this node or of the whole run.
        limit_ms: u64,
    },
    /// 401 or 403.
    #[error("refused with {status}: it wants a key, or another one")]
    Refused {
        /// 401 or 403.
        status: u16,
    },
    /// 404, 405 or 501: the server has no such endpoint.
    #[error("no such endpoint ({status})")]
    Absent {
        /// The status.
        status: u16,
    },
    /// Another status that is not 200.
    #[error("answered {status}")]
    Status {
        /// The status.
        status: u16,
    },
    /// A redirect that is not followed: to another host, scheme or port, to a path that we never
    /// ask for, or one too many.
    #[error("redirects to {to}, which is not followed")]
    Redirect {
        /// Where, without credentials and query, cut to 200 characters.
        to: String,
    },
    /// More bytes than we take.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// A web page: a proxy or a login in between.
    #[error("answered HTML: is there a proxy or a login page in between?")]
    Html,
    /// Not what the endpoint should answer.
    #[error("not an answer of this endpoint: {why}")]
    Garbage {
        /// What is wrong with it.
        why: String,
    },
    /// The address itself is of no use.
    #[error("bad address: {why}")]
    BadAddress {
        /// What is wrong with it.
        why: String,
    },
}

impl Trouble {
    /// Whether the server simply has no such endpoint.
    pub fn is_absent(&self) -> bool {
        matches!(self, Trouble::Absent { .. })
    }
}
