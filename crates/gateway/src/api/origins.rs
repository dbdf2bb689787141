//! Which pages of other origins may read answers: the half of CORS that a server decides. A browser
//! sends nothing of its own along (no cookies, no client certificates), and is never told that it
//! may: a key is a header that the page itself must have.

use std::str::FromStr;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, header};

use super::body::Reply;

/// Seconds for which a browser need not ask again.
const MAX_AGE_S: u64 = 600;
/// What a page may read of an answer's head, besides what it always may.
const EXPOSED: &str = "x-request-id, retry-after";
const METHODS: &str = "GET, HEAD, POST, OPTIONS";

/// An origin whose pages may read answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// What is no origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected * or an origin as browsers send it, such as https://app.example.org or \
     http://localhost:3000: scheme, host and port, no path"
)]
pub struct NoOrigin;

impl FromStr for Origin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let text = text.to_ascii_lowercase();
        if text == "*" {
            return Ok(Self(HeaderValue::from_static("*")));
        }
        let (scheme, host) = text.split_once("://").ok_or(NoOrigin)?;
        let word = |text: &str, more: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            !text.is_empty() && text.chars().all(fits)
        };
        if !word(scheme, "+-.") || !word(host, "-._:[]") {
            return Err(NoOrigin);
        }
        // Browsers leave out what the scheme says already.
        let usual = match scheme {
            "https" => ":443",
            "http" => ":80",
            _ => "\0",
        };
        let host = host.strip_suffix(usual).unwrap_or(host);
        let value = HeaderValue::from_str(&format!("{scheme}://{host}"));
        value.map(Self).map_err(|_| NoOrigin)
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default()) // it was made of text
    }
}

/// The origins of `--allow-origin`; by default none.
#[derive(Clone, Debug, Default)]
pub struct Origins(pub Vec<Origin>);

impl Origins {
    /// What the answer to this request's origin says: that origin, or that any may.
    fn grant(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let asking = headers.get(header::ORIGIN)?;
        let mut known = self.0.iter();
        let found = known.find(|origin| origin.0 == "*" || origin.0 == asking)?;
        Some(found.0.clone())
    }

    /// Whether a browser asks here if a page of an allowed origin may send a request.
    pub fn is_preflight(&self, head: &Parts) -> bool {
        head.method == Method::OPTIONS
            && head
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
            && self.grant(&head.headers).is_some()
    }

    /// Tells the browser whether its page may read this answer, whatever it is.
    pub fn sign(&self, head: &Parts, response: &mut Response<Reply>) {
        if self.0.is_empty() {
            return;
        }
        let preflight = self.is_preflight(head);
        let headers = response.headers_mut();
        let mut put = |name: HeaderName, value: HeaderValue| headers.append(name, value);
        put(header::VARY, HeaderValue::from_static("Origin"));
        let Some(grant) = self.grant(&head.headers) else {
            return;
        };
        put(header::ACCESS_CONTROL_ALLOW_ORIGIN, grant);
        if !preflight {
            let exposed = HeaderValue::from_static(EXPOSED);
            put(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
            return;
        }
        let asked = header::ACCESS_CONTROL_REQUEST_HEADERS;
        put(
            header::VARY,
            HeaderValue::from_static("Access-Control-Request-Headers"),
        );
        let methods = HeaderValue::from_static(METHODS);
        put(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        put(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S.into());
        // Clients put what they like into a head; nothing there but the key decides anything.
        for names in head.headers.get_all(asked) {
            put(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        for (text, shown) in [
            ("*", "*"),
            ("https://App.Example.org", "https://app.example.org"),
            ("https://app.example.org:443", "https://app.example.org"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
            ("tauri://localhost", "tauri://localhost"),
        ] {
            let origin = text.parse::<Origin>().unwrap();
            assert_eq!(origin.to_string(), shown);
        }
        for text in [
            "",
            "null",
            "example.org",
            "https://",
            "https://example.org/",
            "https://*.example.org",
            "https://a@b",
            "https://a b",
            "https://a\nb",
        ] {
            assert_eq!(text.parse::<Origin>(), Err(NoOrigin), "{text:?}");
        }
    }
}
