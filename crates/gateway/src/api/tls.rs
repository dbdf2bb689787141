//! TLS on the listener: certificate, key, and whom to let in by a certificate of their own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// First byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 22;
/// What a client of plain HTTP is told.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 37\r\nconnection: close\r\n\r\nthis port speaks HTTPS, use https://\n";
/// Bytes of such a client that are read before the end, so that it can read ours.
const PLAIN_BYTES_MAX: u64 = 1 << 20;

/// PEM files.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// The certificate, then those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of clients' certificates; none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerTlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words.
        why: io::Error,
    },
    /// A file holds no certificate or key in PEM.
    #[error("{path} holds no {what} in PEM")]
    Pem {
        /// Which.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// They do not belong together, or are not usable.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The authorities are not usable.
    #[error("no client can be judged by these authorities: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// What new connections are answered with; the files can be read again while others are open.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    now: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// See [`ServerTlsError`].
    pub fn load(files: ServerFiles) -> Result<Self, ServerTlsError> {
        let now = RwLock::new(config(&files)?);
        Ok(Self { files, now })
    }

    /// Reads them again. Connections that are open stay as they are.
    ///
    /// # Errors
    /// They cannot be used; what there was goes on.
    pub fn reload(&self) -> Result<(), ServerTlsError> {
        let config = config(&self.files)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// The handshake. A client that speaks plain HTTP is told so.
    pub(super) async fn accept(&self, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            stream.write_all(PLAIN).await?;
            stream.shutdown().await?;
            let mut rest = stream.take(PLAIN_BYTES_MAX);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
            return Err(io::Error::other("no TLS"));
        }
        let config = self
            .now
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn config(files: &ServerFiles) -> Result<Arc<ServerConfig>, ServerTlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let config = match &files.client_ca {
        None => config.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority)?;
            }
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(clients.build()?)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(&bytes(&files.key)?);
    let key = key.map_err(|_| ServerTlsError::Pem {
        path: files.key.clone(),
        what: "private key",
    })?;
    let mut config = config.with_single_cert(certificates(&files.cert)?, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerTlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(path)?).collect();
    let found = found.ok().filter(|it| !it.is_empty());
    found.ok_or_else(|| ServerTlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, ServerTlsError> {
    std::fs::read(path).map_err(|why| ServerTlsError::File {
        path: path.to_owned(),
        why,
    })
}
