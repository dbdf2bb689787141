//! Who is turned away, and that the error says why.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use crate::cluster::{Cluster, small};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use wire::control::certs::{self, CertsError, Validity};
use wire::control::{
    Addr, BindError, HandshakeError, Identity, IdentityError, Listener, Role, dial,
};

#[tokio::test]
async fn garbage_before_tls_is_refused_and_the_listener_goes_on() {
    let cluster = Cluster::new();
    let mut listener = cluster.decode_listens(&cluster.unix(), &small()).await;
    let Addr::Unix(path) = listener.addr().clone() else {
        unreachable!()
    };
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 64],
        &[0x16, 3, 1, 0xff, 0xff],
    ] {
        let mut socket = UnixStream::connect(&path).await.unwrap();
        socket.write_all(garbage).await.unwrap();
        socket.shutdown().await.unwrap();
        let refused = listener.accept().await.unwrap_err();
        assert!(
            matches!(
                refused.error,
                HandshakeError::Protocol(_) | HandshakeError::Io(_)
            ),
            "{refused}"
        );
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await; // ends: the socket was not kept
        assert!(
            !rest.windows(7).any(|window| window == b"cofferd"),
            "welcomed"
        );
    }
    let prefill = cluster.identity(Role::Prefill);
    let (addr, limits, roles) = (listener.addr().clone(), small(), [Role::Decode]);
    let (dialled, accepted) =
        tokio::join!(dial(&addr, &prefill, &roles, &limits), listener.accept());
    assert!(dialled.is_ok() && accepted.is_ok());
}

#[tokio::test]
async fn a_silent_peer_meets_the_deadline_on_either_side_and_holds_up_nobody() {
    let cluster = Cluster::new();
    let mut limits = small();
    limits.handshake = Duration::from_millis(300);
    let mut listener = cluster.decode_listens(&cluster.unix(), &limits).await;
    let Addr::Unix(path) = listener.addr().clone() else {
        unreachable!()
    };
    let silent = UnixStream::connect(&path).await.unwrap();
    assert!(matches!(
        listener.accept().await.unwrap_err().error,
        HandshakeError::Deadline(_)
    ));
    drop(silent);

    let quiet = Addr::Unix(cluster.dir.path().join("quiet.sock"));
    let Addr::Unix(path) = &quiet else {
        unreachable!()
    };
    let _never_accepts = tokio::net::UnixListener::bind(path).unwrap();
    let prefill = cluster.identity(Role::Prefill);
    let failed = dial(&quiet, &prefill, &[Role::Decode], &limits)
        .await
        .unwrap_err();
    assert!(matches!(failed, HandshakeError::Deadline(_)), "{failed}");
}

#[tokio::test]
async fn a_wrong_role_is_refused_by_the_side_that_did_not_ask_for_it() {
    let cluster = Cluster::new();
    let mut listener = cluster.decode_listens(&cluster.unix(), &small()).await;
    let (addr, limits) = (listener.addr().clone(), small());

    // Decode does not listen for decode.
    let decode = cluster.identity(Role::Decode);
    let roles = [Role::Decode];
    let (dialled, refused) = tokio::join!(dial(&addr, &decode, &roles, &limits), listener.accept());
    assert!(matches!(dialled.unwrap_err(), HandshakeError::Refused(_)));
    let refused = refused.unwrap_err();
    assert!(matches!(
        refused.error,
        HandshakeError::Role {
            got: Some(Role::Decode),
            ..
        }
    ));
    assert!(
        refused
            .to_string()
            .contains("is decode; expected prefill or gateway"),
        "{refused}"
    );

    // Prefill wanted a gateway and met decode.
    let prefill = cluster.identity(Role::Prefill);
    let roles = [Role::Gateway];
    let (dialled, refused) =
        tokio::join!(dial(&addr, &prefill, &roles, &limits), listener.accept());
    let dialled = dialled.unwrap_err();
    assert!(
        matches!(
            dialled,
            HandshakeError::Role {
                got: Some(Role::Decode),
                ..
            }
        ),
        "{dialled}"
    );
    assert!(matches!(
        refused.unwrap_err().error,
        HandshakeError::Refused(_)
    ));
}

#[tokio::test]
async fn a_foreign_ca_is_refused_on_both_sides() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let mut listener = ours.decode_listens(&ours.unix(), &small()).await;
    let (addr, limits, roles) = (listener.addr().clone(), small(), [Role::Decode]);

    let stranger = theirs.identity(Role::Prefill);
    let (dialled, refused) =
        tokio::join!(dial(&addr, &stranger, &roles, &limits), listener.accept());
    assert!(matches!(
        dialled.unwrap_err(),
        HandshakeError::Certificate(_)
    ));
    assert!(matches!(
        refused.unwrap_err().error,
        HandshakeError::Refused(_)
    ));

    // A stranger who believes our CA but was certified by his own.
    let mixed = tempfile::tempdir().unwrap();
    for file in ["prefill.pem", "prefill.key"] {
        std::fs::copy(theirs.certs().join(file), mixed.path().join(file)).unwrap();
    }
    std::fs::copy(ours.certs().join("ca.pem"), mixed.path().join("ca.pem")).unwrap();
    let unusable = Identity::load(mixed.path(), Role::Prefill).unwrap_err();
    assert!(
        matches!(unusable, IdentityError::Unusable { .. }),
        "{unusable}"
    );
    let (dialled, refused) = tokio::join!(raw_stranger(mixed.path(), &addr), listener.accept());
    assert!(dialled.is_err(), "a stranger was welcomed");
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused.error, HandshakeError::Certificate(_)),
        "{refused}"
    );
}

/// Joined by hand, because `Identity::load` already refuses such a set of files.
async fn raw_stranger(certs: &std::path::Path, addr: &Addr) -> Result<(), tokio::task::JoinError> {
    let (certs, addr) = (certs.to_owned(), addr.clone());
    tokio::spawn(async move { drop(crate::cluster::raw_prefill(&certs, &addr).await) }).await
}

#[test]
fn an_expired_or_future_certificate_is_refused_when_it_is_loaded() {
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    for (from, until, word) in [
        (now - 2 * day, now - day, "expired"),
        (now + day, now + 2 * day, "not valid yet"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        certs::new_cluster(dir.path(), Validity { from, until }).unwrap();
        let error = Identity::load(dir.path(), Role::Decode).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn certificates_are_private_complete_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("new").join("certs");
    let written = certs::new_cluster(&certs, Validity::days(1)).unwrap();
    // The authority's certificate, a pair for each role, and the pair that evidence is signed with.
    assert_eq!(written.len(), 1 + 2 * Role::ALL.len() + 2);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&certs), 0o700);
    for role in Role::ALL {
        assert_eq!(mode(&certs.join(format!("{role}.key"))), 0o600);
        assert_eq!(Identity::load(&certs, role).unwrap().role(), role);
    }
    assert_eq!(mode(&certs.join("evidence.key")), 0o600);
    // No CA key is left behind: nobody can add a member to this cluster later.
    assert_eq!(std::fs::read_dir(&certs).unwrap().count(), written.len());

    let before = std::fs::read(certs.join("decode.key")).unwrap();
    std::fs::remove_file(certs.join("ca.pem")).unwrap();
    let again = certs::new_cluster(&certs, Validity::days(1)).unwrap_err();
    assert!(matches!(again, CertsError::Exists(_)));
    assert!(
        !certs.join("ca.pem").exists(),
        "half a new cluster was written"
    );
    assert_eq!(std::fs::read(certs.join("decode.key")).unwrap(), before);
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let cluster = Cluster::new();
    let key = cluster.certs().join("decode.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = Identity::load(&cluster.certs(), Role::Decode).unwrap_err();
    assert!(
        matches!(error, IdentityError::KeyIsPublic { mode: 0o640, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_unix_socket_is_private_and_replaced_only_when_nobody_listens() {
    let cluster = Cluster::new();
    let addr = cluster.unix();
    let Addr::Unix(path) = &addr else {
        unreachable!()
    };
    let decode = cluster.identity(Role::Decode);
    let bind = || Listener::bind(&addr, &decode, &[Role::Prefill], &LIMITS);
    static LIMITS: std::sync::LazyLock<wire::control::Limits> = std::sync::LazyLock::new(small);

    let first = bind().await.unwrap();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert!(matches!(bind().await, Err(BindError::InUse(_))));
    assert!(path.exists(), "the living listener's socket was removed");
    drop(first);

    // A socket file left by a process that died: bound, then closed without removing the file.
    while path.exists() {
        tokio::task::yield_now().await;
    }
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(path.exists());
    let second = bind().await.unwrap();
    drop(second);
    while path.exists() {
        tokio::task::yield_now().await;
    }

    // A living listener of somebody else, without our lock.
    let other = std::os::unix::net::UnixListener::bind(path).unwrap();
    assert!(matches!(bind().await, Err(BindError::InUse(_))));
    drop(other);
    std::fs::remove_file(path).unwrap();

    std::fs::write(path, "precious").unwrap();
    assert!(matches!(bind().await, Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "precious");

    std::fs::set_permissions(
        path.parent().unwrap(),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    assert!(matches!(
        bind().await,
        Err(BindError::PublicDirectory { mode: 0o755, .. })
    ));
}
