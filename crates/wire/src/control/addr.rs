//! Where a process listens: `unix:/run/cofferdam/decode.sock` or `tcp:10.0.0.7:7400`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a control socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Addr {
    /// A Unix stream socket; its directory must be private to this user.
    Unix(PathBuf),
    /// A TCP socket. Port 0 asks the system for a free one (see `Listener::addr`).
    Tcp(SocketAddr),
}

/// The text is not an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddrError {
    /// Neither `unix:` nor `tcp:` stands in front, or nothing follows.
    #[error("bad address {0:?}: expected unix:/path or tcp:host:port")]
    Malformed(String),
    /// The host does not resolve to an address.
    #[error("cannot resolve {text:?}: {source}")]
    Unresolved {
        /// The address as given.
        text: String,
        /// What the resolver said.
        source: std::io::Error,
    },
}

impl FromStr for Addr {
    type Err = AddrError;

    /// Resolves a host name once, here; the first address found is taken.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || AddrError::Malformed(text.to_owned());
        let (scheme, rest) = text.split_once(':').ok_or_else(malformed)?;
        match scheme {
            "unix" if rest.starts_with('/') => Ok(Addr::Unix(PathBuf::from(rest))),
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(malformed)?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(malformed());
                }
                let unresolved = |source| AddrError::Unresolved {
                    text: text.to_owned(),
                    source,
                };
                let mut found = rest.to_socket_addrs().map_err(unresolved)?;
                found.next().map(Addr::Tcp).ok_or_else(malformed)
            }
            _ => Err(malformed()),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
            Addr::Tcp(addr) => write!(f, "tcp:{addr}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        for text in [
            "unix:/run/c/decode.sock",
            "tcp:127.0.0.1:7400",
            "tcp:[::1]:7400",
        ] {
            assert_eq!(text.parse::<Addr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "unix:",
            "unix:relative",
            "tcp:",
            "tcp::80",
            "tcp:1.2.3.4",
            "http://x",
        ] {
            assert!(
                matches!(text.parse::<Addr>(), Err(AddrError::Malformed(_))),
                "{text}"
            );
        }
    }
}
