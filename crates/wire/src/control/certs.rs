//! Making the certificates of a cluster.
//!
//! The CA's key lives only inside [`new_cluster`]: it signs one certificate for each role and is
//! dropped. There is nothing to steal afterwards and nothing to renew with: a new set of
//! certificates is a new cluster, whose processes do not speak to those of the old one.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use crate::control::Role;

/// Clocks of two hosts may differ by this much without a fresh certificate being refused.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Why no certificates were written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertsError {
    /// A file of that name exists; certificates are never overwritten.
    #[error("{0} exists already: choose an empty directory, or remove the old cluster yourself")]
    Exists(PathBuf),
    /// The file system refused.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The time of validity lies outside what a certificate can say.
    #[error("validity must begin after 1970, end after it begins and end before the year 9999")]
    Validity,
}

/// From when until when the certificates of a cluster are valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// First instant at which they are accepted.
    pub from: SystemTime,
    /// Last instant at which they are accepted.
    pub until: SystemTime,
}

impl Validity {
    /// From now (less five minutes for differing clocks) for so many days.
    pub fn days(days: u32) -> Self {
        let now = SystemTime::now();
        let length = Duration::from_secs(u64::from(days) * 24 * 3600);
        Self {
            from: now - CLOCK_SKEW,
            until: now + length,
        }
    }
}

/// The file names of one cluster in its directory.
pub(crate) struct Files;

impl Files {
    pub(crate) fn ca(dir: &Path) -> PathBuf {
        dir.join("ca.pem")
    }
    pub(crate) fn certificate(dir: &Path, role: Role) -> PathBuf {
        dir.join(format!("{role}.pem"))
    }
    pub(crate) fn key(dir: &Path, role: Role) -> PathBuf {
        dir.join(format!("{role}.key"))
    }
}

/// Writes `ca.pem`, for each [`Role`] `ROLE.pem` and `ROLE.key` (mode 0600), and a key for
/// [`attest`] (`evidence.key`, mode 0600, and `evidence.pub`) into `dir`, which is created
/// with mode 0700 where it is missing. Returns the files written.
///
/// # Errors
/// Refuses to overwrite: with any of the files there, nothing is written.
pub fn new_cluster(dir: &Path, validity: Validity) -> Result<Vec<PathBuf>, CertsError> {
    let made = make(validity)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| CertsError::Io {
            path: dir.to_owned(),
            source,
        })?;

    let mut files = vec![(Files::ca(dir), made.ca, 0o644)];
    for (role, certificate, key) in made.roles {
        files.push((Files::certificate(dir, role), certificate, 0o644));
        files.push((Files::key(dir, role), key, 0o600));
    }
    let (key, public) = evidence_key()?;
    files.push((dir.join("evidence.pub"), public, 0o644));
    files.push((dir.join("evidence.key"), key, 0o600));
    if let Some((path, ..)) = files
        .iter()
        .find(|(path, ..)| path.symlink_metadata().is_ok())
    {
        return Err(CertsError::Exists(path.clone()));
    }
    for (path, pem, mode) in &files {
        write_new(path, pem, *mode)?;
    }
    Ok(files.into_iter().map(|(path, ..)| path).collect())
}

/// A new key for evidence: PEM of the private half, text of the public one.
fn evidence_key() -> Result<(String, String), rcgen::Error> {
    let pair = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let public = attest::hex(pair.public_key_raw()) + "\n";
    Ok((pair.serialize_pem(), public))
}

struct Made {
    ca: String,
    roles: Vec<(Role, String, String)>,
}

fn make(validity: Validity) -> Result<Made, CertsError> {
    let mut ca = base(validity, "cofferdam cluster CA")?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

    let mut roles = Vec::new();
    for role in Role::ALL {
        let mut leaf = base(validity, role.certificate_name())?;
        leaf.subject_alt_names = vec![rcgen::SanType::DnsName(role.certificate_name().try_into()?)];
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Every role dials and listens, so each certificate serves both directions of TLS.
        leaf.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &ca)?;
        roles.push((role, certificate.pem(), key.serialize_pem()));
    }
    Ok(Made {
        ca: ca.pem(),
        roles,
    })
}

fn base(validity: Validity, name: &str) -> Result<CertificateParams, CertsError> {
    let seconds = |at: SystemTime| -> Result<u64, CertsError> {
        let seconds = at
            .duration_since(UNIX_EPOCH)
            .map_err(|_| CertsError::Validity)?
            .as_secs();
        // 9999-01-01: later dates cannot be written into a certificate.
        if seconds < 253_370_764_800 {
            Ok(seconds)
        } else {
            Err(CertsError::Validity)
        }
    };
    let (from, until) = (seconds(validity.from)?, seconds(validity.until)?);
    if until <= from {
        return Err(CertsError::Validity);
    }
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(until);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn write_new(path: &Path, pem: &str, mode: u32) -> Result<(), CertsError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AlreadyExists => CertsError::Exists(path.to_owned()),
        _ => CertsError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(failed)?;
    file.write_all(pem.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)
}
