//! Whom to trust over TLS, and as whom to come.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where systems keep the authorities that they trust.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlsFiles {
    /// Authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate, then those between it and the authority.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// A configuration of TLS, shared by the targets that use it.
#[derive(Clone)]
pub struct Tls(pub(super) Arc<ClientConfig>);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {why}")]
    File {
        /// Which.
        path: String,
        /// The system's words.
        why: std::io::Error,
    },
    /// A file holds no certificate or key in PEM.
    #[error("{path} holds no {what} in PEM")]
    Pem {
        /// Which.
        path: String,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("`cert` and `key` belong together: one is missing")]
    Half,
    /// They do not belong together, or are not usable.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(rustls::Error),
}

impl Tls {
    /// Reads the files; without an authority of its own, those of the system (`SSL_CERT_FILE`, or
    /// the usual places; if there is none at all, no server is trusted).
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        match &files.ca {
            Some(path) => {
                for authority in certificates(path)? {
                    roots.add(authority).map_err(TlsError::Unusable)?;
                }
            }
            None => add_system(&mut roots),
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unusable)?
            .with_root_certificates(roots);
        let config = match (&files.cert, &files.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let (chain, key) = (certificates(cert)?, private_key(key)?);
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(TlsError::Unusable)?
            }
            _ => return Err(TlsError::Half),
        };
        Ok(Self(Arc::new(config)))
    }

    /// The same for whoever speaks to these servers besides.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// What of the system's bundle can be read; the rest is not trusted.
fn add_system(roots: &mut RootCertStore) {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = BUNDLES.iter().map(PathBuf::from);
    let bundle = named.into_iter().chain(usual).find(|it| it.is_file());
    if let Some(found) = bundle.and_then(|it| certificates(&it).ok()) {
        roots.add_parsable_certificates(found);
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bytes(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.ok().filter(|it| !it.is_empty());
    let path = path.display().to_string();
    found.ok_or(TlsError::Pem {
        path,
        what: "certificate",
    })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let key = PrivateKeyDer::from_pem_slice(&bytes(path)?);
    let path = path.display().to_string();
    key.map_err(|_| TlsError::Pem {
        path,
        what: "private key",
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|why| TlsError::File {
        path: path.display().to_string(),
        why,
    })
}
