//! Authorities, names and client certificates.

use super::server::{Asked, Reply, ok, serve};
use super::{LATE, LIMIT};
use gate::facts::Trouble;
use gate::facts::net::{Address, Tls, TlsError, TlsFiles, get};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::time::Instant;

/// An authority and who it vouches for, as files.
struct Authority {
    folder: tempfile::TempDir,
    key: KeyPair,
    params: CertificateParams,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca"), certificate.pem()).unwrap();
        Self {
            folder,
            key,
            params,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.cert` and `NAME.key`.
    fn vouch(&self, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(self.file(&format!("{name}.cert")), certificate.pem()).unwrap();
        std::fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn pem<T>(path: &Path, read: impl Fn(&[u8]) -> T) -> T {
    read(&std::fs::read(path).unwrap())
}

async fn start(authority: &Authority, wants_client: bool) -> SocketAddr {
    use rustls::pki_types::pem::PemObject;
    let certificate = pem(&authority.file("server.cert"), |it| {
        CertificateDer::from_pem_slice(it).unwrap()
    });
    let key = pem(&authority.file("server.key"), |it| {
        PrivateKeyDer::from_pem_slice(it).unwrap()
    });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = if wants_client {
        let mut roots = rustls::RootCertStore::empty();
        let ca = pem(&authority.file("ca"), |it| {
            CertificateDer::from_pem_slice(it).unwrap()
        });
        roots.add(ca).unwrap();
        let roots = Arc::new(roots);
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider);
        config.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        config.with_no_client_auth()
    };
    let config = config.with_single_cert(vec![certificate], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let replies: Arc<BTreeMap<String, Reply>> =
        Arc::new(BTreeMap::from([("*".to_owned(), ok("{}"))]));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, replies) = (acceptor.clone(), replies.clone());
            tokio::spawn(async move {
                if let Ok(socket) = acceptor.accept(socket).await {
                    serve(socket, replies, Asked::default()).await;
                }
            });
        }
    });
    at
}

async fn ask(at: SocketAddr, files: &TlsFiles) -> Result<(), Trouble> {
    let address = Address::parse(&format!("https://{at}/server_info")).unwrap();
    let tls = Tls::new(files).unwrap();
    get(&address, None, &tls, LIMIT, Instant::now() + LATE)
        .await
        .map(|_| ())
}

#[tokio::test]
async fn only_the_named_authority_and_the_right_name_are_trusted() {
    let (ours, other) = (Authority::new(), Authority::new());
    ours.vouch("server", "127.0.0.1");
    let at = start(&ours, false).await;
    let trusting = |authority: &Authority| TlsFiles {
        ca: Some(authority.file("ca")),
        ..TlsFiles::default()
    };
    assert_eq!(ask(at, &trusting(&ours)).await, Ok(()));
    let trouble = ask(at, &trusting(&other)).await.unwrap_err();
    assert!(matches!(trouble, Trouble::Tls { .. }), "{trouble}");
    ours.vouch("server", "elsewhere.example");
    let at = start(&ours, false).await;
    let trouble = ask(at, &trusting(&ours)).await.unwrap_err();
    assert!(matches!(trouble, Trouble::Tls { .. }), "{trouble}");
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_ours_or_refuses() {
    let authority = Authority::new();
    authority.vouch("server", "127.0.0.1");
    authority.vouch("gate", "gate");
    let at = start(&authority, true).await;
    let ca = Some(authority.file("ca"));
    let without = TlsFiles {
        ca: ca.clone(),
        ..TlsFiles::default()
    };
    assert!(ask(at, &without).await.is_err());
    let with = TlsFiles {
        ca,
        cert: Some(authority.file("gate.cert")),
        key: Some(authority.file("gate.key")),
    };
    assert_eq!(ask(at, &with).await, Ok(()));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    authority.vouch("gate", "gate");
    let files = |ca: &str, cert: Option<&str>, key: Option<&str>| TlsFiles {
        ca: Some(authority.file(ca)),
        cert: cert.map(|it| authority.file(it)),
        key: key.map(|it| authority.file(it)),
    };
    let error = |files: &TlsFiles| Tls::new(files).unwrap_err();
    assert!(matches!(
        error(&files("none", None, None)),
        TlsError::File { .. }
    ));
    assert!(matches!(
        error(&files("gate.key", None, None)),
        TlsError::Pem {
            what: "certificate",
            ..
        }
    ));
    assert!(matches!(
        error(&files("ca", Some("gate.cert"), None)),
        TlsError::Half
    ));
    let swapped = files("ca", Some("gate.cert"), Some("gate.cert"));
    assert!(matches!(
        error(&swapped),
        TlsError::Pem {
            what: "private key",
            ..
        }
    ));
}
