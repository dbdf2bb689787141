//! How a connection to an engine is opened: in the clear, or over TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// Opens connections, each within a time, its handshake included.
#[derive(Clone)]
pub(super) struct Connect {
    tcp: HttpConnector,
    tls: Option<TlsConnector>,
    time: Duration,
}

impl Connect {
    /// `tls`: whom to trust, and as whom to come; none: no engine has an `https` address.
    pub(super) fn new(time: Duration, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(time));
        tcp.enforce_http(false);
        let tls = tls.map(TlsConnector::from);
        Self { tcp, tls, time }
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connect {
    type Response = TokioIo<Line>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Line>, Failed>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (tls, time) = (self.tls.clone(), self.time);
        let open = self.tcp.call(to.clone());
        Box::pin(async move {
            let tcp = open.await?.into_inner();
            if to.scheme_str() != Some("https") {
                return Ok(TokioIo::new(Line::Plain(tcp)));
            }
            let host = to.host().unwrap_or_default();
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
            let tls = tls.ok_or("no TLS is set up")?;
            let shaken = timeout(time, tls.connect(name, tcp)).await??;
            Ok(TokioIo::new(Line::Tls(Box::new(shaken))))
        })
    }
}

/// A connection to an engine.
pub(super) enum Line {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// The same call on whichever it is.
macro_rules! either {
    ($line:expr, $call:ident $(, $argument:expr)*) => {
        match $line.get_mut() {
            Line::Plain(tcp) => Pin::new(tcp).$call($($argument),*),
            Line::Tls(tls) => Pin::new(tls).$call($($argument),*),
        }
    };
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, poll_read, cx, into)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, poll_write, cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, poll_write_vectored, cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Line::Plain(tcp) => tcp.is_write_vectored(),
            Line::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown, cx)
    }
}
