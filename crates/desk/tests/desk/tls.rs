//! The listener over TLS.

use super::client::*;
use super::made_up::{MadeUp, fleet};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

#[tokio::test]
async fn over_tls_it_is_the_same_and_in_the_clear_nothing() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(ring.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();

    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    let within = desk::Limits {
        head_within: Duration::from_millis(500),
        ..limits()
    };
    let served = served_over(Some(Arc::new(server)), desk, within).await;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(client))
        .connect(name, served.connect().await)
        .await;
    let mut stream = stream.unwrap();
    let asked = format!(
        "GET /state HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n",
        bearer(ANNA)
    );
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("prefill-0"));

    let mut plain = served.connect().await;
    plain.write_all(asked.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes).await;
    assert!(!String::from_utf8_lossy(&bytes).contains("prefill-0"));
    let mut silent = served.connect().await;
    assert_eq!(
        rest(&mut silent).await,
        "",
        "a handshake is not waited for either"
    );
    served.end().await;
}
