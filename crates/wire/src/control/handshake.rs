//! From a raw socket to a [`Connection`]: TLS, roles and the welcome, under one deadline.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::control::connection::{Connection, Limits, Peer};
use crate::control::socket::{self, Socket};
use crate::control::trust::{self, RoleRefused};
use crate::control::{Addr, Identity, Role};

/// Sent by the listener when it has accepted the dialler's certificate. In TLS 1.3 the dialler
/// finishes its handshake before the listener has judged it; without the welcome a refusal would
/// look like a connection that broke later.
const WELCOME: &[u8; 8] = b"cofferd\x01";

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Nobody listens there, or the socket broke.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// The peer did not finish in time.
    #[error("no handshake within {0:?}: the peer is stuck, or is not one of our processes")]
    Deadline(Duration),
    /// The peer's certificate is not of this cluster, or not valid now.
    #[error("the peer's certificate is refused: {0}; both sides need one `cofferdam certs new`")]
    Certificate(CertificateError),
    /// The peer is of this cluster and of a role that has no business here.
    #[error("wrong role: {reason}")]
    Role {
        /// What the peer's certificate says, if it names exactly one role.
        got: Option<Role>,
        /// Both roles in words.
        reason: String,
    },
    /// The peer refused us; its own log says why.
    #[error(
        "the peer refused us ({0:?}): its log says whether it was the role, the CA or the date"
    )]
    Refused(AlertDescription),
    /// What arrived is not TLS 1.3 as our processes speak it.
    #[error("the peer does not speak our protocol: {0}")]
    Protocol(String),
    /// This side's own certificate or limits cannot be used.
    #[error("own configuration: {0}")]
    Own(String),
}

/// Opens a connection to a listener that proves one of the `allowed` roles.
///
/// # Errors
/// When nobody listens, the peer is refused or refuses us, or `limits.handshake` has passed.
pub async fn dial(
    addr: &Addr,
    identity: &Identity,
    allowed: &[Role],
    limits: &Limits,
) -> Result<Connection, HandshakeError> {
    limits.check().map_err(HandshakeError::Own)?;
    let config = identity
        .client_config(allowed)
        .map_err(|fault| HandshakeError::Own(fault.to_string()))?;
    let work = async {
        let socket = socket::connect(addr).await?;
        greet(socket, Arc::new(config), limits).await
    };
    within(limits.handshake, work).await
}

async fn greet(
    socket: Socket,
    config: Arc<ClientConfig>,
    limits: &Limits,
) -> Result<Connection, HandshakeError> {
    // The name is not sent and not what is checked (see `trust`); rustls wants one.
    let name = trust::server_name(Role::Gateway);
    let mut tls = TlsConnector::from(config)
        .connect(name, socket)
        .await
        .map_err(explain)?;
    let mut welcome = [0; WELCOME.len()];
    tls.read_exact(&mut welcome).await.map_err(explain)?;
    if &welcome != WELCOME {
        return Err(HandshakeError::Protocol(
            "the listener did not say welcome".to_owned(),
        ));
    }
    let (_, session) = tls.get_ref();
    let peer = peer(session.peer_certificates(), session.alpn_protocol())?;
    Ok(Connection::new(peer, tls.into(), limits))
}

/// The listener's side of [`dial`].
pub(crate) async fn receive(
    socket: Socket,
    config: Arc<ServerConfig>,
    limits: &Limits,
) -> Result<Connection, HandshakeError> {
    let work = async {
        let mut tls = TlsAcceptor::from(config)
            .accept(socket)
            .await
            .map_err(explain)?;
        tls.write_all(WELCOME).await.map_err(explain)?;
        tls.flush().await.map_err(explain)?;
        let (_, session) = tls.get_ref();
        let peer = peer(session.peer_certificates(), session.alpn_protocol())?;
        Ok(Connection::new(peer, tls.into(), limits))
    };
    within(limits.handshake, work).await
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    tokio::time::timeout(deadline, work)
        .await
        .unwrap_or(Err(HandshakeError::Deadline(deadline)))
}

/// Who is on the other side. The verifier has checked it; this only reads it again.
fn peer(chain: Option<&[CertificateDer<'_>]>, alpn: Option<&[u8]>) -> Result<Peer, HandshakeError> {
    // rustls lets a peer that offers no protocol at all pass.
    if alpn != Some(trust::ALPN) {
        return Err(HandshakeError::Protocol(
            "no agreement on cofferdam-control/1".to_owned(),
        ));
    }
    let certificate = chain.and_then(|chain| chain.first());
    let certificate =
        certificate.ok_or_else(|| HandshakeError::Protocol("no certificate".to_owned()))?;
    let role = trust::role_of(certificate)
        .ok_or_else(|| HandshakeError::Protocol("no single role".to_owned()))?;
    Ok(Peer::new(role, certificate))
}

/// Says in our words what rustls packs into an I/O error.
fn explain(error: io::Error) -> HandshakeError {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        None => HandshakeError::Io(error),
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) => {
            match other.0.downcast_ref::<RoleRefused>() {
                Some(refused) => HandshakeError::Role {
                    got: refused.got,
                    reason: refused.to_string(),
                },
                None => HandshakeError::Protocol(other.to_string()),
            }
        }
        Some(rustls::Error::InvalidCertificate(bad)) => HandshakeError::Certificate(bad.clone()),
        Some(rustls::Error::AlertReceived(alert)) => HandshakeError::Refused(*alert),
        Some(other) => HandshakeError::Protocol(other.to_string()),
    }
}
