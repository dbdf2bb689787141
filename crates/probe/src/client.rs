//! One request, and everything that can be observed of its answer.

use crate::finding::Sent;
use crate::wire::{self, Dialect, Said};
use flate2::read::MultiGzDecoder;
use gate::facts::Trouble;
use gate::facts::net::{Address, Secret, Tls, connect, exchange};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::ext::ReasonPhrase;
use std::io::Read;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of one answer that are read, packed or not.
const ANSWER_MAX: usize = 32 << 20;

/// A server, as one tenant reaches it.
#[derive(Clone)]
pub struct TenantEndpoint {
    /// Where.
    pub address: Address,
    /// The tenant's key.
    pub key: Option<Secret>,
    /// Whom to trust.
    pub tls: Tls,
    /// How it is spoken to.
    pub dialect: Dialect,
    /// Which model is asked for.
    pub model: Option<String>,
}

/// When the client leaves before the answer is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leave {
    /// It stays.
    Never,
    /// After this time, whatever has come.
    After(Duration),
    /// When the first byte of the body has come.
    AtFirstByte,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpReply {
    /// HTTP status.
    pub status: u16,
    /// What it says; what its headers say is in `everything`.
    pub said: Said,
    /// Seconds after which to come again, if it says so.
    pub retry_after: Option<u64>,
    /// From the request to the first byte of the body.
    pub first_byte: Option<Duration>,
    /// From the request to the end.
    pub total: Duration,
    /// The connection ended before the body did.
    pub broken: bool,
}

impl HttpReply {
    /// Its status; of an error in an answer with 200 the one that the error names, or else 500.
    pub fn worth(&self) -> u16 {
        match (self.status, &self.said.error) {
            (200, Some(_)) => self.said.code.unwrap_or(500),
            (status, _) => status,
        }
    }
}

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq)]
pub enum NoReply {
    /// Not within the time for a request.
    Hang(Duration),
    /// The client left, as it was told.
    Left,
    /// The server cannot be reached, or does not speak HTTP.
    Trouble(Trouble),
}

impl From<Trouble> for NoReply {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl TenantEndpoint {
    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub async fn ask(
        &self,
        sent: &Sent,
        leave: Leave,
        limit: Duration,
    ) -> Result<HttpReply, NoReply> {
        let begin = Instant::now();
        let stays = match leave {
            Leave::After(time) => time.min(limit),
            _ => limit,
        };
        let asked = async {
            let request = self.request(sent)?;
            self.exchange(request, async |response| read(response, leave, begin).await)
                .await
        };
        match tokio::time::timeout(stays, asked).await {
            Ok(done) => done,
            Err(_) if matches!(leave, Leave::After(time) if time < limit) => Err(NoReply::Left),
            Err(_) => Err(NoReply::Hang(limit)),
        }
    }

    /// The status of an empty request to another path, with or without the tenant's key.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub async fn status(
        &self,
        method: Method,
        path: &str,
        with_key: bool,
        limit: Duration,
    ) -> Result<u16, NoReply> {
        let asked = async {
            let request = self.head(method, path, with_key);
            let request = request.body(Full::new(Bytes::new())).map_err(unsendable)?;
            self.exchange(request, async |response| Ok(response.status().as_u16()))
                .await
        };
        let done = tokio::time::timeout(limit, asked).await;
        done.unwrap_or(Err(NoReply::Hang(limit)))
    }

    async fn exchange<T>(
        &self,
        request: Request<Full<Bytes>>,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, NoReply>,
    ) -> Result<T, NoReply> {
        let stream = connect(&self.address, &self.tls).await;
        exchange(stream?, request, read).await
    }

    fn head(&self, method: Method, path: &str, with_key: bool) -> http::request::Builder {
        let address = self.address.with_path(path);
        let mut request = Request::builder()
            .method(method)
            .uri(address.path())
            .header(HOST, address.authority())
            .header(
                USER_AGENT,
                concat!("cofferdam-probe/", env!("CARGO_PKG_VERSION")),
            );
        if let (Some(key), true) = (&self.key, with_key) {
            request = request.header(AUTHORIZATION, key.bearer());
        }
        request
    }

    fn request(&self, sent: &Sent) -> Result<Request<Full<Bytes>>, NoReply> {
        let mut request = self
            .head(Method::POST, self.dialect.path(), true)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT_ENCODING, "gzip, identity");
        for (name, value) in &sent.headers {
            request = request.header(name, value);
        }
        let body = serde_json::to_vec(&sent.body).expect("made of strings and numbers");
        request.body(Full::new(body.into())).map_err(unsendable)
    }
}

fn unsendable(error: http::Error) -> NoReply {
    let why = format!("a header that cannot be sent: {error}");
    NoReply::Trouble(Trouble::Garbage { why })
}

async fn read(
    response: Response<Incoming>,
    leave: Leave,
    begin: Instant,
) -> Result<HttpReply, NoReply> {
    let status = response.status().as_u16();
    let mut headers = response.headers().clone();
    let reason = response.extensions().get::<ReasonPhrase>();
    let reason = reason.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned());
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    let (mut first_byte, mut broken) = (None, false);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            broken = true;
            break;
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                headers.extend(frame.into_trailers().unwrap_or_default());
                continue;
            }
        };
        if !data.is_empty() && first_byte.is_none() {
            first_byte = Some(begin.elapsed());
            if leave == Leave::AtFirstByte {
                return Err(NoReply::Left);
            }
        }
        bytes.extend_from_slice(&data);
        if bytes.len() > ANSWER_MAX {
            let limit = ANSWER_MAX as u64;
            return Err(NoReply::Trouble(Trouble::TooLarge { limit }));
        }
    }
    let mut said = said(&headers, bytes);
    if broken {
        said.unfinished = true;
    }
    heard(&headers, &mut said);
    said.everything.extend(reason);
    let after = headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok());
    Ok(HttpReply {
        status,
        said,
        retry_after: after.and_then(|it| it.trim().parse().ok()),
        first_byte,
        total: begin.elapsed(),
        broken,
    })
}

/// What headers and trailers say: all of them are one more text.
fn heard(headers: &HeaderMap, said: &mut Said) {
    let lines = headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if value.to_lowercase().contains("truncat") || is_cut(name.as_str(), &value) {
            said.truncated
                .get_or_insert_with(|| format!("{name}: {value}"));
        }
        value
    });
    let lines: Vec<_> = lines.collect();
    said.everything.push(lines.join("\n"));
    let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    said.everything.push(names.join("\n"));
}

fn is_cut(name: &str, value: &str) -> bool {
    name.contains("truncat") && !matches!(value, "" | "0" | "false" | "no" | "none")
}

fn said(headers: &HeaderMap, bytes: Vec<u8>) -> Said {
    let is = |name, value: &str| {
        let found = headers.get(name).and_then(|it| it.to_str().ok());
        found.is_some_and(|it| it.to_ascii_lowercase().contains(value))
    };
    let (bytes, packed) = match is(CONTENT_ENCODING, "gzip") {
        true => unpack(&bytes),
        false => (bytes, None),
    };
    // Some servers stream under another type: what begins like events is read as events.
    let events = is(CONTENT_TYPE, "text/event-stream")
        || ["data:", "event:", ": "]
            .iter()
            .any(|it| bytes.starts_with(it.as_bytes()));
    let mut said = match events {
        true => wire::stream(&bytes),
        false => wire::whole(&bytes),
    };
    if packed.is_some() {
        said.garbage = packed;
    }
    said
}

/// What can be unpacked, and what is wrong with the rest.
fn unpack(bytes: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut unpacked = Vec::new();
    let limit = ANSWER_MAX as u64 + 1;
    let read = MultiGzDecoder::new(bytes)
        .take(limit)
        .read_to_end(&mut unpacked);
    let wrong = match read {
        Err(error) => Some(format!("damaged gzip: {error}")),
        Ok(_) if unpacked.len() > ANSWER_MAX => Some("gzip of more than 32 MiB".to_owned()),
        Ok(_) => None,
    };
    unpacked.truncate(ANSWER_MAX);
    (unpacked, wrong)
}
