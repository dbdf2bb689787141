//! A cluster of certificates in a temporary directory, and peers that misbehave below the frames.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wire::control::certs::{self, Validity};
use wire::control::{Addr, Connection, Identity, Limits, Listener, Role, dial};

pub struct Cluster {
    pub dir: tempfile::TempDir,
}

impl Cluster {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        certs::new_cluster(&dir.path().join("certs"), Validity::days(1)).unwrap();
        Self { dir }
    }

    pub fn certs(&self) -> std::path::PathBuf {
        self.dir.path().join("certs")
    }

    pub fn identity(&self, role: Role) -> Identity {
        Identity::load(&self.certs(), role).unwrap()
    }

    pub fn unix(&self) -> Addr {
        Addr::Unix(self.dir.path().join("run").join("decode.sock"))
    }

    /// Decode listens for prefill and the gateway, as in the product.
    pub async fn decode_listens(&self, addr: &Addr, limits: &Limits) -> Listener {
        let allowed = [Role::Prefill, Role::Gateway];
        Listener::bind(addr, &self.identity(Role::Decode), &allowed, limits)
            .await
            .unwrap()
    }

    pub async fn pair(&self, addr: &Addr, limits: &Limits) -> (Connection, Connection) {
        let mut listener = self.decode_listens(addr, limits).await;
        let prefill = self.identity(Role::Prefill);
        let addr = listener.addr().clone();
        let (dialled, accepted) = tokio::join!(
            dial(&addr, &prefill, &[Role::Decode], limits),
            listener.accept()
        );
        (dialled.unwrap(), accepted.unwrap())
    }
}

/// A peer with good certificates and a welcome, whose bytes the test writes itself.
pub async fn raw_prefill(certs: &Path, addr: &Addr) -> TlsStream<UnixStream> {
    let Addr::Unix(path) = addr else {
        panic!("unix only")
    };
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(certs.join("ca.pem")).unwrap())
        .unwrap();
    let chain = vec![CertificateDer::from_pem_file(certs.join("prefill.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certs.join("prefill.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"cofferdam-control/1".to_vec()];
    let name = ServerName::try_from("decode.cofferdam").unwrap();
    let socket = UnixStream::connect(path).await.unwrap();
    let mut tls = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .unwrap();
    let mut welcome = [0; 8];
    tls.read_exact(&mut welcome).await.unwrap();
    tls
}

/// Small, so that a test reaches every limit at once.
pub fn small() -> Limits {
    Limits {
        frame_bytes_max: 64 << 10,
        queue_frames_max: 8,
        queue_bytes_max: 256 << 10,
        handshake: Duration::from_secs(20),
    }
}
