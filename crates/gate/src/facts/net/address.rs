//! Addresses of servers, and which of them are never asked for.

use crate::facts::trouble::Trouble;
use http::Uri;
use std::fmt;

/// A URL without credentials: scheme, host, port, and where the server's paths begin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    tls: bool,
    host: String,
    port: u16,
    /// With a leading slash, or empty; the query, if there is one, is part of it.
    path: String,
}

impl Address {
    /// Reads `http://host:port/prefix` or `https://…`.
    ///
    /// # Errors
    /// Another scheme, no host, credentials in it (they would be seen in reports and process
    /// lists: give keys by environment or file), or a path that acts.
    pub fn parse(url: &str) -> Result<Self, Trouble> {
        let bad = |why: &str| Trouble::BadAddress { why: why.into() };
        if url.len() > 2048 {
            return Err(bad("longer than 2048 bytes"));
        }
        if url.split('/').nth(2).is_some_and(|it| it.contains('@')) {
            return Err(bad(
                "it holds credentials; give them by environment or file",
            ));
        }
        let uri: Uri = url.trim().parse().map_err(|_| bad("not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("it must begin with http:// or https://")),
        };
        let host = uri.host().filter(|it| !it.is_empty());
        let host = host.ok_or_else(|| bad("it has no host"))?;
        let path = uri.path_and_query().map_or("", |it| it.as_str());
        let address = Self {
            tls,
            host: host.to_ascii_lowercase(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: path.trim_end_matches('/').to_owned(),
        };
        // A port that is no number below 65536 is no port to the parser, and would become 80.
        let authority = uri.authority().map_or("", |it| it.as_str());
        if authority.len() > host.len() && uri.port_u16().is_none() {
            return Err(bad("its port is not a number below 65536"));
        }
        address.refuse_if_it_acts()?;
        Ok(address)
    }

    /// What a user gives as the address of a server: also that of its API or of one of its pages,
    /// as clients and dashboards have it.
    ///
    /// # Errors
    /// See [`Address::parse`].
    pub fn server(url: &str) -> Result<Self, Trouble> {
        const PAGES: [&str; 9] = [
            "/chat/completions",
            "/completions",
            "/models",
            "/metrics",
            "/health",
            "/readyz",
            "/server_info",
            "/get_server_info",
            "/generate",
        ];
        let mut address = Self::parse(url)?;
        if address.path.contains('?') {
            return Ok(address);
        }
        for tail in PAGES.into_iter().chain(["/v1"]) {
            if let Some(base) = address.path.strip_suffix(tail) {
                address.path = base.trim_end_matches('/').to_owned();
            }
        }
        Ok(address)
    }

    /// An endpoint of the server at this address.
    pub fn with_path(&self, path: &str) -> Self {
        let base = self.path.split('?').next().unwrap_or_default();
        Self {
            path: format!("{base}{path}"),
            ..self.clone()
        }
    }

    /// With a slash at the end of its path.
    pub(super) fn slashed(&self) -> Self {
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let query = if query.is_empty() {
            String::new()
        } else {
            format!("?{query}")
        };
        Self {
            path: format!("{}/{query}", path.trim_end_matches('/')),
            ..self.clone()
        }
    }

    /// SGLang drops its cache on `GET /flush_cache`. Names are compared without regard to case,
    /// escapes and separators, so that no other spelling reaches it.
    pub(super) fn refuse_if_it_acts(&self) -> Result<(), Trouble> {
        let mut bare = String::new();
        let mut bytes = self.path.bytes();
        while let Some(byte) = bytes.next() {
            let hex = |it: Option<u8>| (it? as char).to_digit(16);
            let byte = match byte {
                b'%' => match (hex(bytes.next()), hex(bytes.next())) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => b'%',
                },
                other => other,
            };
            if byte.is_ascii_alphanumeric() {
                bare.push(byte.to_ascii_lowercase() as char);
            }
        }
        if bare.contains("flushcache") || self.path.contains("%25") {
            let why = "it acts on GET, or may be a name of what does, and is never asked for";
            return Err(Trouble::BadAddress { why: why.into() });
        }
        Ok(())
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port, 80 or 443 if none was given.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query, `/` if there is none.
    pub fn path(&self) -> &str {
        if self.path.is_empty() {
            "/"
        } else {
            &self.path
        }
    }

    /// Host and port as a `Host` header has them.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Everything before a query.
    pub fn base(&self) -> String {
        let text = self.to_string();
        text.split('?').next().unwrap_or_default().to_owned()
    }

    /// Whether both are on the same server: scheme, host and port.
    pub(super) fn is_same_server(&self, other: &Self) -> bool {
        (self.tls, &self.host, self.port) == (other.tls, &other.host, other.port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_their_parts() {
        let address = Address::parse("http://[::1]:31100/p/").unwrap();
        assert_eq!((address.host(), address.port()), ("::1", 31100));
        assert_eq!(
            address.with_path("/v1/loads?x=1").to_string(),
            "http://[::1]:31100/p/v1/loads?x=1"
        );
        assert_eq!(
            address.with_path("/v1/loads?x=1").base(),
            "http://[::1]:31100/p/v1/loads"
        );
        assert_eq!(
            Address::parse("HTTPS://Host").unwrap().to_string(),
            "https://host:443"
        );
        assert_eq!(Address::parse("http://h").unwrap().path(), "/");
    }

    #[test]
    fn the_address_of_a_server_is_told_from_that_of_its_api() {
        for (given, server) in [
            ("http://h:1/v1", "http://h:1"),
            ("http://h:1/v1/", "http://h:1"),
            ("http://h:1/v1/models", "http://h:1"),
            ("http://h:1/v1/chat/completions", "http://h:1"),
            ("http://h:1/metrics", "http://h:1"),
            ("http://h:1/server_info", "http://h:1"),
            ("http://h:1/generate", "http://h:1"),
            ("http://h:1/llm/v1", "http://h:1/llm"),
            ("http://h:1/llm", "http://h:1/llm"),
            ("http://h:1/v2", "http://h:1/v2"),
            ("http://h:1/v1beta", "http://h:1/v1beta"),
            ("http://h:1", "http://h:1"),
        ] {
            let address = Address::server(given).unwrap();
            assert_eq!(address.to_string(), server, "{given}");
        }
    }

    #[test]
    fn addresses_that_are_refused() {
        let long = format!("http://h/{}", "x".repeat(3000));
        for url in [
            "",
            "h:1",
            "ftp://h",
            "http://",
            "file:///x",
            "http://user:key@h/",
            "http://h:99999/",
            &long,
        ] {
            assert!(
                matches!(Address::parse(url), Err(Trouble::BadAddress { .. })),
                "{url}"
            );
        }
    }

    #[test]
    fn what_acts_on_get_is_never_asked_for() {
        for path in [
            "/flush_cache",
            "/FLUSH_cache/",
            "/x/flush%5Fcache",
            "/flush-cache?a=1",
            "/%66lush_cache",
            "/%2566lush_cache",
        ] {
            let parsed = Address::parse(&format!("http://h{path}"));
            assert!(matches!(parsed, Err(Trouble::BadAddress { .. })), "{path}");
            let joined = Address::parse("http://h").unwrap().with_path(path);
            assert!(joined.refuse_if_it_acts().is_err(), "{path}");
        }
    }
}
