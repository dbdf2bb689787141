//! What a process authenticates itself with, and whom it believes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::control::Role;
use crate::control::certs::Files;
use crate::control::trust::{self, HandshakeFault};

/// One process's certificate, key and CA. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    inner: Arc<Inner>,
}

struct Inner {
    role: Role,
    /// Where it was read from, for errors.
    dir: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
}

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file is missing or cannot be read.
    #[error("cannot read {path}: {reason}; `cofferdam certs new` makes certificates")]
    Read {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        reason: String,
    },
    /// Others may read the private key.
    #[error("{path} has mode {mode:03o}: a private key must be readable by its owner alone (600)")]
    KeyIsPublic {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The certificate and the CA or the key do not fit together, or it is not valid now.
    #[error("the certificate of {role} in {dir} is not usable: {reason}")]
    Unusable {
        /// The role asked for.
        role: Role,
        /// The directory read.
        dir: PathBuf,
        /// What was wrong.
        reason: String,
    },
}

impl Identity {
    /// Reads `ca.pem`, `ROLE.pem` and `ROLE.key` from `dir`, and checks them against each other:
    /// a certificate that no peer would accept is an error here, once, and not in every dial.
    pub fn load(dir: &Path, role: Role) -> Result<Self, IdentityError> {
        let ca = certificates(&Files::ca(dir))?;
        let chain = certificates(&Files::certificate(dir, role))?;
        let key_path = Files::key(dir, role);
        private(&key_path)?;
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| IdentityError::Read {
            path: key_path,
            reason: error.to_string(),
        })?;

        let unusable = |reason: String| IdentityError::Unusable {
            role,
            dir: dir.to_owned(),
            reason,
        };
        let mut roots = RootCertStore::empty();
        for certificate in ca {
            roots
                .add(certificate)
                .map_err(|error| unusable(error.to_string()))?;
        }
        let inner = Inner {
            role,
            dir: dir.to_owned(),
            chain,
            key,
            roots: Arc::new(roots),
        };
        let identity = Self {
            inner: Arc::new(inner),
        };
        trust::check_own(&identity.inner.chain, role, &identity.inner.roots)
            .map_err(|fault| unusable(fault.to_string()))?;
        identity
            .client_config(&[role])
            .map_err(|fault| unusable(fault.to_string()))?;
        Ok(identity)
    }

    /// The role that this process proves to its peers.
    pub fn role(&self) -> Role {
        self.inner.role
    }

    /// TLS for dialling data ports of listeners of one of `allowed`: the same certificates and the
    /// same checks as for control connections, under a protocol name of its own. Names of hosts
    /// are not looked at.
    ///
    /// # Errors
    /// This process's certificates cannot be used.
    pub fn data_dialler(&self, allowed: &[Role]) -> Result<Arc<ClientConfig>, IdentityError> {
        let config = self.client_config(allowed);
        let mut config = config.map_err(|fault| self.unusable(&fault))?;
        config.alpn_protocols = vec![trust::DATA_ALPN.to_vec()];
        Ok(Arc::new(config))
    }

    /// TLS for a data port that accepts diallers of one of `allowed`; see [`Self::data_dialler`].
    ///
    /// # Errors
    /// This process's certificates cannot be used.
    pub fn data_listener(&self, allowed: &[Role]) -> Result<Arc<ServerConfig>, IdentityError> {
        let config = self.server_config(allowed);
        let mut config = config.map_err(|fault| self.unusable(&fault))?;
        config.alpn_protocols = vec![trust::DATA_ALPN.to_vec()];
        Ok(Arc::new(config))
    }

    fn unusable(&self, fault: &HandshakeFault) -> IdentityError {
        IdentityError::Unusable {
            role: self.inner.role,
            dir: self.inner.dir.clone(),
            reason: fault.to_string(),
        }
    }

    /// The dialling side: accepts a listener of one of `allowed`.
    pub(crate) fn client_config(&self, allowed: &[Role]) -> Result<ClientConfig, HandshakeFault> {
        let verifier = trust::servers(&self.inner.roots, allowed)?;
        let mut config = ClientConfig::builder_with_provider(trust::provider())
            .with_protocol_versions(trust::VERSIONS)
            .map_err(HandshakeFault::Tls)?
            .dangerous() // the name for "own verifier"; ours asks the standard one and adds the role
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.inner.chain.clone(), self.inner.key.clone_key())
            .map_err(HandshakeFault::Tls)?;
        config.alpn_protocols = vec![trust::ALPN.to_vec()];
        config.enable_sni = false;
        // A resumed session would skip the certificates, and with them their expiry.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }

    /// The listening side: accepts a dialler of one of `allowed`.
    pub(crate) fn server_config(&self, allowed: &[Role]) -> Result<ServerConfig, HandshakeFault> {
        let verifier = trust::clients(&self.inner.roots, allowed)?;
        let mut config = ServerConfig::builder_with_provider(trust::provider())
            .with_protocol_versions(trust::VERSIONS)
            .map_err(HandshakeFault::Tls)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.inner.chain.clone(), self.inner.key.clone_key())
            .map_err(HandshakeFault::Tls)?;
        config.alpn_protocols = vec![trust::ALPN.to_vec()];
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl std::fmt::Debug for Identity {
    /// The key is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("role", &self.inner.role)
            .finish_non_exhaustive()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let read = |reason: String| IdentityError::Read {
        path: path.to_owned(),
        reason,
    };
    let found = CertificateDer::pem_file_iter(path)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .map_err(|error| read(error.to_string()))?;
    if found.is_empty() {
        Err(read("no certificate in it".to_owned()))
    } else {
        Ok(found)
    }
}

/// Root's file may also be readable by a group: so an orchestrator hands secrets to who runs as another
/// user, and whom root lets in there is root's to say.
fn is_private(mode: u32, owner: u32, us: u32) -> bool {
    let others = if owner == 0 && us != 0 { 0o037 } else { 0o077 };
    mode & others == 0
}

fn private(path: &Path) -> Result<(), IdentityError> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).map_err(|error| IdentityError::Read {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mode = metadata.mode() & 0o777;
    let us = rustix::process::geteuid().as_raw();
    if is_private(mode, metadata.uid(), us) {
        Ok(())
    } else {
        Err(IdentityError::KeyIsPublic {
            path: path.to_owned(),
            mode,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::is_private;

    #[test]
    fn a_group_may_read_what_root_handed_to_it_and_nothing_else() {
        let (root, us, somebody) = (0, 65_532, 1000);
        for (mode, owner, who, good) in [
            (0o600, us, us, true),
            (0o400, root, root, true),
            (0o440, root, us, true), // a secret of Kubernetes, with fsGroup
            (0o640, root, us, true),
            (0o640, us, us, false),
            (0o640, root, root, false),
            (0o640, somebody, us, false),
            (0o444, root, us, false),
            (0o460, root, us, false),
        ] {
            assert_eq!(
                is_private(mode, owner, who),
                good,
                "{mode:o} of {owner} for {who}"
            );
        }
    }
}
