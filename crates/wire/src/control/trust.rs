//! Who is believed: the standard chain check against the cluster's CA, and then the role.
//!
//! Nothing here relaxes what rustls checks. The verifiers ask the standard ones first and only
//! add: the certificate carries exactly one role, and it is one of those that were asked for.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};

use crate::control::Role;
use crate::control::role::list;

/// TLS 1.3 and nothing else.
pub(crate) const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
/// Agreed on in the handshake, so that another TLS service is not taken for one of ours.
pub(crate) const ALPN: &[u8] = b"cofferdam-control/1";
/// The same for data connections: neither port takes a connection that was meant for the other.
pub(crate) const DATA_ALPN: &[u8] = b"cofferdam-data/1";

/// The one cryptography provider: no process-wide default is needed or set.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Why a verifier or a configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeFault {
    #[error("{0}")]
    Tls(Error),
    #[error("{0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// The chain is good, the role is not: carried through rustls as a certificate error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoleRefused {
    pub(crate) got: Option<Role>,
    pub(crate) allowed: Vec<Role>,
}

impl fmt::Display for RoleRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = list(&self.allowed);
        match self.got {
            Some(got) => write!(f, "the peer is {got}; expected {allowed}"),
            None => write!(
                f,
                "the peer's certificate names no single role; expected {allowed}"
            ),
        }
    }
}

impl std::error::Error for RoleRefused {}

/// The one role that a certificate carries; `None` if it carries none or several.
pub(crate) fn role_of(certificate: &CertificateDer<'_>) -> Option<Role> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let carries =
        |role: &Role| rustls::client::verify_server_name(&parsed, &server_name(*role)).is_ok();
    let mut roles = Role::ALL.into_iter().filter(carries);
    match (roles.next(), roles.next()) {
        (Some(role), None) => Some(role),
        _ => None,
    }
}

/// The name under which a role is dialled.
pub(crate) fn server_name(role: Role) -> ServerName<'static> {
    ServerName::try_from(role.certificate_name()).expect("role names are DNS names")
}

fn check_role(certificate: &CertificateDer<'_>, allowed: &[Role]) -> Result<Role, Error> {
    match role_of(certificate) {
        Some(role) if allowed.contains(&role) => Ok(role),
        got => {
            let refused = RoleRefused {
                got,
                allowed: allowed.to_vec(),
            };
            Err(CertificateError::Other(OtherError(Arc::new(refused))).into())
        }
    }
}

/// Would a peer accept this certificate as `role` at this moment?
pub(crate) fn check_own(
    chain: &[CertificateDer<'static>],
    role: Role,
    roots: &Arc<RootCertStore>,
) -> Result<(), HandshakeFault> {
    let (first, rest) = chain
        .split_first()
        .ok_or(HandshakeFault::Tls(CertificateError::BadEncoding.into()))?;
    let verifier = servers(roots, &[role])?;
    verifier
        .verify_server_cert(first, rest, &server_name(role), &[], UnixTime::now())
        .map(|_| ())
        .map_err(HandshakeFault::Tls)
}

/// For a dialler: the listener's certificate.
pub(crate) fn servers(
    roots: &Arc<RootCertStore>,
    allowed: &[Role],
) -> Result<Arc<dyn ServerCertVerifier>, HandshakeFault> {
    let standard =
        WebPkiServerVerifier::builder_with_provider(roots.clone(), provider()).build()?;
    Ok(Arc::new(Servers {
        standard,
        allowed: allowed.to_vec(),
    }))
}

/// For a listener: the dialler's certificate, which is never optional.
pub(crate) fn clients(
    roots: &Arc<RootCertStore>,
    allowed: &[Role],
) -> Result<Arc<dyn ClientCertVerifier>, HandshakeFault> {
    let standard =
        WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build()?;
    Ok(Arc::new(Clients {
        standard,
        allowed: allowed.to_vec(),
    }))
}

#[derive(Debug)]
struct Servers {
    standard: Arc<WebPkiServerVerifier>,
    allowed: Vec<Role>,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        asked_for: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The standard check wants one name, several roles may be allowed: it is asked with the
        // name of the role that the certificate carries, so that chain and dates are judged first
        // and a wrong role is reported as such.
        let name = role_of(end_entity).map(server_name);
        let name = name.as_ref().unwrap_or(asked_for);
        let verified =
            self.standard
                .verify_server_cert(end_entity, intermediates, name, ocsp, now)?;
        check_role(end_entity, &self.allowed)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.standard
            .verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.standard
            .verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.standard.supported_verify_schemes()
    }
}

#[derive(Debug)]
struct Clients {
    standard: Arc<dyn ClientCertVerifier>,
    allowed: Vec<Role>,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.standard.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .standard
            .verify_client_cert(end_entity, intermediates, now)?;
        check_role(end_entity, &self.allowed)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.standard
            .verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.standard
            .verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.standard.supported_verify_schemes()
    }
}
