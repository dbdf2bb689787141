//! One `GET`, within a time and a size.

use super::address::Address;
use super::secret::Secret;
use super::tls::Tls;
use crate::facts::trouble::Trouble;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HOST, LOCATION, USER_AGENT,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error as _;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Status line and headers together, in bytes.
const HEAD_MAX: usize = 32 << 10;
/// Header lines.
const HEADERS_MAX: usize = 100;
/// Redirects on the same server.
const REDIRECTS_MAX: usize = 3;

/// The body of a 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(Vec<u8>);

impl Body {
    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Asks for an address, once, and returns the body of a 200 of at most `limit` bytes before `end`.
///
/// `key` goes to this server only: a redirect is followed only to the same path (with or without
/// a slash at its end) on the same scheme, host and port.
///
/// # Errors
/// Everything else, by kind.
pub async fn get(
    address: &Address,
    key: Option<&Secret>,
    tls: &Tls,
    limit: usize,
    end: Instant,
) -> Result<Body, Trouble> {
    let begin = Instant::now();
    let asked = async {
        let mut address = address.clone();
        for _ in 0..=REDIRECTS_MAX {
            address.refuse_if_it_acts()?;
            let connection = connect(&address, tls).await?;
            let sent = request(&address, key)?;
            let answer = exchange(connection, sent, async |response| {
                answer(response, &address, limit).await
            });
            match answer.await? {
                Answer::Body(body) => return Ok(Body(body)),
                Answer::Moved(to) => address = to,
            }
        }
        Err(Trouble::Redirect {
            to: shown(&address),
        })
    };
    let late = |_| Trouble::Timeout {
        // In tenths of a second, so that the same failure reads the same.
        limit_ms: (end - begin).as_millis().div_ceil(100) as u64 * 100,
    };
    timeout_at(end, asked).await.map_err(late)?
}

/// A connection, in the clear or not.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects to a server.
///
/// # Errors
/// It cannot be reached, or is not whom its certificate says.
pub async fn connect(address: &Address, tls: &Tls) -> Result<Box<dyn Stream>, Trouble> {
    let place = (address.host(), address.port());
    let plain = TcpStream::connect(place)
        .await
        .map_err(|it| unreachable(&it))?;
    let _ = plain.set_nodelay(true); // only speed depends on it
    if !address.is_tls() {
        return Ok(Box::new(plain));
    }
    let name = ServerName::try_from(address.host().to_owned());
    let name = name.map_err(|_| Trouble::Tls {
        why: "no name that a certificate can have".into(),
    })?;
    let connector = tokio_rustls::TlsConnector::from(tls.0.clone());
    match connector.connect(name, plain).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(Trouble::Tls {
            why: short(&error.to_string()),
        }),
    }
}

enum Answer {
    Body(Vec<u8>),
    Moved(Address),
}

async fn answer(
    response: Response<Incoming>,
    address: &Address,
    limit: usize,
) -> Result<Answer, Trouble> {
    match judge(response.status(), response.headers(), address)? {
        Some(moved) => Ok(Answer::Moved(moved)),
        None => body(response, limit).await.map(Answer::Body),
    }
}

/// Sends one request over a connection and gives the response to `read`; then, or when this is
/// dropped, the connection is closed.
///
/// # Errors
/// What `read` finds, or a [`Trouble`] before it.
pub async fn exchange<T, E: From<Trouble>>(
    connection: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, E>,
) -> Result<T, E> {
    let io = TokioIo::new(connection);
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_MAX).max_headers(HEADERS_MAX);
    let (mut sender, connection) = http.handshake(io).await.map_err(|it| broken(&it))?;
    let ask = async {
        let response = sender.send_request(request).await;
        read(response.map_err(|it| broken(&it))?).await
    };
    // The connection must be driven while we wait, and is closed when we have what we want.
    let driven = async {
        let _ = connection.await; // its error comes out of the request, too
        std::future::pending().await
    };
    tokio::select! {
        biased;
        answer = ask => answer,
        never = driven => never,
    }
}

fn request(address: &Address, key: Option<&Secret>) -> Result<Request<Full<Bytes>>, Trouble> {
    let mut request = Request::get(address.path())
        .header(HOST, address.authority())
        .header(
            USER_AGENT,
            concat!("cofferdam-gate/", env!("CARGO_PKG_VERSION")),
        )
        .header(ACCEPT, "application/json, text/plain")
        .header(ACCEPT_ENCODING, "identity");
    if let Some(key) = key {
        request = request.header(AUTHORIZATION, key.bearer());
    }
    let request = request.body(Full::default());
    request.map_err(|_| Trouble::BadAddress {
        why: "not a path that can be asked for".into(),
    })
}

/// `None` if the body is to be read, an address if it has moved.
fn judge(
    status: StatusCode,
    headers: &HeaderMap,
    address: &Address,
) -> Result<Option<Address>, Trouble> {
    let code = status.as_u16();
    match code {
        200 => {}
        301 | 302 | 303 | 307 | 308 => return moved(headers, address).map(Some),
        401 | 403 => return Err(Trouble::Refused { status: code }),
        404 | 405 | 410 | 501 => return Err(Trouble::Absent { status: code }),
        _ => return Err(Trouble::Status { status: code }),
    }
    let encoding = headers.get(CONTENT_ENCODING).filter(|it| *it != "identity");
    if encoding.is_some() {
        let why = "compressed, though we asked for plain".to_owned();
        return Err(Trouble::Garbage { why });
    }
    Ok(None)
}

fn moved(headers: &HeaderMap, from: &Address) -> Result<Address, Trouble> {
    let to = headers
        .get(LOCATION)
        .and_then(|it| it.to_str().ok())
        .unwrap_or_default();
    let full = match to.strip_prefix('/') {
        Some(rest) if !rest.starts_with('/') => {
            let base = Address::parse(&format!("http://{}", from.authority()))?;
            let scheme = if from.is_tls() { "https" } else { "http" };
            base.with_path(to).to_string().replacen("http", scheme, 1)
        }
        _ => to.to_owned(),
    };
    let elsewhere = || Trouble::Redirect {
        to: short(without_secrets(to)),
    };
    let target = Address::parse(&full).map_err(|_| elsewhere())?;
    let path = |it: &Address| {
        it.path()
            .split('?')
            .next()
            .map(|it| it.trim_end_matches('/').to_owned())
    };
    let is_same =
        target.is_same_server(from) && path(&target) == path(from) && path(from).is_some();
    // Addresses end without a slash; the server wants the one that it named.
    let slash = full.split('?').next().is_some_and(|it| it.ends_with('/'));
    match is_same {
        true if slash => Ok(target.slashed()),
        true => Ok(target),
        false => Err(elsewhere()),
    }
}

/// A redirect may carry a session in its query, or credentials.
fn without_secrets(url: &str) -> &str {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once('@') {
        Some((_, rest)) => rest,
        None => url,
    }
}

async fn body(response: Response<Incoming>, limit: usize) -> Result<Vec<u8>, Trouble> {
    let too_large = || Trouble::TooLarge {
        limit: limit as u64,
    };
    let mut body = response.into_body();
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|it| broken(&it))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn broken(error: &hyper::Error) -> Trouble {
    if error.is_parse_too_large() {
        return Trouble::TooLarge {
            limit: HEAD_MAX as u64,
        };
    }
    if error.is_parse() {
        return Trouble::Garbage {
            why: short(&format!("not HTTP: {error}")),
        };
    }
    // The server's last word on our certificate comes after the handshake.
    let mut cause = error.source();
    while let Some(it) = cause {
        let io = it.downcast_ref::<io::Error>();
        if io
            .and_then(io::Error::get_ref)
            .is_some_and(|it| it.is::<rustls::Error>())
        {
            return Trouble::Tls {
                why: short(&it.to_string()),
            };
        }
        cause = it.source();
    }
    Trouble::Unreachable {
        why: short(&error.to_string()),
    }
}

fn unreachable(error: &io::Error) -> Trouble {
    Trouble::Unreachable {
        why: short(&error.to_string()),
    }
}

fn shown(address: &Address) -> String {
    short(&address.base())
}

fn short(text: &str) -> String {
    text.chars()
        .filter(|it| !it.is_control())
        .take(200)
        .collect()
}
