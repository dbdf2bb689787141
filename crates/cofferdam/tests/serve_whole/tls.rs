//! TLS of the API and of engines, by a client and a front of rustls that are not ours; and clients that
//! are slow.

use crate::COFFERDAM;
use crate::door::{ask_of, tokens};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use scripted::{Engine, Fleet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::process::{PATIENCE, Running, wait_for};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// An authority, and the files that it has made.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

/// A certificate and its key, as files.
struct Issued {
    cert: PathBuf,
    key: PathBuf,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("authority {}", MADE.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn issue(&self, file: &str, names: &[&str]) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let issued = Issued {
            cert: self.dir.path().join(format!("{file}.pem")),
            key: self.dir.path().join(format!("{file}.key")),
        };
        fs::write(&issued.cert, cert.pem()).unwrap();
        fs::write(&issued.key, key.serialize_pem()).unwrap();
        issued
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.ca()).unwrap())
            .unwrap();
        roots
    }

    /// Somebody who trusts this authority, with a certificate of its own or without.
    fn client(&self, own: Option<&Issued>) -> Arc<ClientConfig> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        Arc::new(match own {
            None => config.with_no_client_auth(),
            Some(own) => config
                .with_client_auth_cert(own.chain(), own.key())
                .unwrap(),
        })
    }
}

impl Issued {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_file(&self.cert).unwrap()]
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).unwrap()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

type Secure = StreamOwned<ClientConnection, TcpStream>;

fn dial(addr: &str, name: &str, config: Arc<ClientConfig>) -> Secure {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let tcp = TcpStream::connect(addr).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), tcp)
}

/// One request on a connection that stays, and the status of its answer.
fn live(line: &mut Secure) -> io::Result<u16> {
    line.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"}") {
        let mut some = [0; 4096];
        match line.read(&mut some)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&some[..n]),
        }
    }
    let head = String::from_utf8(bytes).unwrap();
    Ok(head.split(' ').nth(1).unwrap().parse().unwrap())
}

fn served(words: &[&str]) -> (Running, String) {
    let weights = crate::small::model(4096);
    let first = [
        "gateway",
        "--model",
        text(&weights),
        "--port=0",
        "--engine",
        "http://127.0.0.1:9",
    ];
    let running = Running::start(COFFERDAM, &[&first, words].concat());
    // No engine is there, so it is never ready: where it listens is looked up.
    let addr = wait_for("it listens", || listens(running.pid()));
    (running, addr)
}

/// The address on which a process listens.
fn listens(pid: u32) -> Option<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .flatten()
        .filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_str()?.to_owned()))
        .collect();
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = sockets.contains(&format!("socket:[{}]", words[9]));
        let port = u16::from_str_radix(words[1].split(':').nth(1)?, 16).ok()?;
        (ours && words[3] == "0A").then(|| format!("127.0.0.1:{port}"))
    })
}

/// Everything up to the end, and how long it took.
fn to_the_end(tcp: &mut TcpStream) -> (String, Duration) {
    let start = Instant::now();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    match tcp.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("not hung up on: {error}"),
    }
    (
        String::from_utf8_lossy(&bytes).into_owned(),
        start.elapsed(),
    )
}

#[test]
fn the_api_speaks_https_and_takes_new_certificates() {
    let ours = Authority::new();
    let one = ours.issue("one", &["one.example"]);
    let words = ["--tls-cert", text(&one.cert), "--tls-key", text(&one.key)];
    let (running, addr) = served(&words);
    let mut line = dial(&addr, "one.example", ours.client(None));
    assert_eq!(live(&mut line).unwrap(), 200);
    for (name, client) in [
        ("two.example", ours.client(None)),
        ("one.example", Authority::new().client(None)),
    ] {
        let error = live(&mut dial(&addr, name, client)).unwrap_err();
        assert!(
            error.to_string().contains("invalid peer certificate"),
            "{error}"
        );
    }
    let mut plain = TcpStream::connect(&addr).unwrap();
    plain
        .write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let (said, _) = to_the_end(&mut plain);
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
    assert!(
        said.ends_with("\r\n\r\nthis port speaks HTTPS, use https://\n"),
        "{said}"
    );

    let reloads = |result: &str| {
        let mut line = dial(&addr, "one.example", ours.client(None));
        line.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        let _ = line.read_to_string(&mut page);
        let series = format!(r#"cofferdam_reloads_total{{what="tls-cert",result="{result}"}} "#);
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(&series).map(str::to_owned));
        value.map_or(0, |value| value.parse::<u64>().unwrap())
    };
    // A certificate without its key is none; what there was stays.
    let two = ours.issue("two", &["two.example", "one.example"]);
    fs::rename(&two.cert, &one.cert).unwrap();
    wait_for("the half is refused", || {
        (reloads("refused") == 1).then_some(())
    });
    assert!(live(&mut dial(&addr, "two.example", ours.client(None))).is_err());
    fs::rename(&two.key, &one.key).unwrap();
    wait_for("the new certificate", || {
        live(&mut dial(&addr, "two.example", ours.client(None))).ok()
    });
    assert_eq!(reloads("taken"), 1);
    assert_eq!(live(&mut line).unwrap(), 200, "an open connection goes on");
    running.signal(Signal::HUP);
    wait_for("it is read on SIGHUP", || {
        (reloads("taken") == 2).then_some(())
    });
}

#[test]
fn an_api_with_client_certificates_lets_nobody_else_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (server, client) = (
        ours.issue("s", &["s.example"]),
        theirs.issue("c", &["c.example"]),
    );
    let authority = theirs.ca();
    let (_running, addr) = served(&[
        "--ssl-certfile",
        text(&server.cert),
        "--ssl-keyfile",
        text(&server.key),
        "--tls-client-ca",
        text(&authority),
    ]);
    let ask = |config| live(&mut dial(&addr, "s.example", config));
    assert_eq!(ask(ours.client(Some(&client))).unwrap(), 200);
    assert!(ask(ours.client(None)).is_err());
    assert!(
        ask(ours.client(Some(&server))).is_err(),
        "of another authority"
    );
}

/// Half a handshake, half a head and half a body: none is waited for longer than ten seconds.
#[test]
fn slow_clients_are_hung_up_on() {
    let ours = Authority::new();
    let one = ours.issue("one", &["one.example"]);
    let (_secure, secure) = served(&["--tls-cert", text(&one.cert), "--tls-key", text(&one.key)]);
    let (_plain, plain) = served(&[]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{\"pro";
    let cases = [
        (secure.as_str(), "", ""),
        (&secure, "\u{16}\u{3}\u{1}", ""),
        (&plain, "", ""),
        (&plain, "GET /livez HTTP/1.1\r\nhost: x\r\nx-slow", ""),
        (&plain, head, "408"),
    ];
    std::thread::scope(|scope| {
        for (addr, sent, told) in cases {
            scope.spawn(move || {
                let mut socket = TcpStream::connect(addr).unwrap();
                socket.write_all(sent.as_bytes()).unwrap();
                let (said, took) = to_the_end(&mut socket);
                let seconds = took.as_secs_f64();
                // Behind a 408 what still comes of the body is read for a while.
                let most = if told.is_empty() { 14.0 } else { 25.0 };
                assert!((9.0..most).contains(&seconds), "{sent:?}: {seconds}");
                assert_eq!(said.split(' ').nth(1).unwrap_or_default(), told, "{said}");
            });
        }
    });
}

/// The answer to a body that is too large can be read by who sends all of it first.
#[test]
fn a_refusal_is_read_by_who_is_still_sending() {
    let (_running, addr) = served(&[]);
    let body = vec![b' '; 20 << 20];
    for sent in [
        "content-length: 20971520\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n1400000\r\n".to_owned(),
    ] {
        let mut socket = TcpStream::connect(&addr).unwrap();
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{sent}");
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(&body).expect("nobody has hung up");
        let (said, took) = to_the_end(&mut socket);
        assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
        assert!(
            said.contains("payload_too_large") && said.contains("connection: close"),
            "{said}"
        );
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
}

/// A scripted engine behind TLS.
struct Front {
    fleet: Fleet,
    url: String,
    _runtime: Runtime,
}

fn front(own: &Issued, clients: Option<&Authority>) -> Front {
    let runtime = Runtime::new().unwrap();
    let fleet = runtime.block_on(Fleet::start([Engine::sglang()])).unwrap();
    let behind = fleet.address("single");
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(authority.roots());
            let clients = WebPkiClientVerifier::builder_with_provider(roots, provider());
            config.with_client_cert_verifier(clients.build().unwrap())
        }
    };
    let config = config.with_single_cert(own.chain(), own.key()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outer = acceptor.accept(tcp).await?;
                let mut inner = tokio::net::TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut outer, &mut inner).await
            });
        }
    });
    Front {
        fleet,
        url: format!("https://localhost:{port}"),
        _runtime: runtime,
    }
}

#[test]
fn engines_are_asked_over_tls() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let good = ours.issue("good", &["localhost"]);
    let other = ours.issue("other", &["elsewhere.example"]);
    let us = theirs.issue("us", &["gateway.example"]);
    let (ca, wrong) = (ours.ca(), theirs.ca());
    let (ca, wrong) = (["--engine-ca", text(&ca)], ["--engine-ca", text(&wrong)]);
    let own = [
        "--engine-cert",
        text(&us.cert),
        "--engine-cert-key",
        text(&us.key),
    ];
    let mutual = [ca.as_slice(), &own].concat();
    let weights = crate::small::model(4096);
    for (own, clients, words) in [(&good, None, &ca[..]), (&good, Some(&theirs), &mutual)] {
        let front = front(own, clients);
        let (_gateway, api) = ask_of(&[&front.url], &weights, words);
        let prompt: Vec<u32> = (300..340).collect();
        let answer = api.post("/v1/completions", &tokens(&prompt, 5)).good();
        assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
        assert_eq!(front.fleet.all().arrived, 1);
    }
    for (own, clients, words, why) in [
        (&good, None, &wrong[..], "UnknownIssuer"),
        (&good, None, &[][..], "UnknownIssuer"),
        (&other, None, &ca, "certificate not valid for name"),
        (&good, Some(&theirs), &ca, "CertificateRequired"),
    ] {
        let front = front(own, clients);
        let first = ["--engine", &front.url];
        let (running, addr) = served(&[&first, words].concat());
        let said = running.line_from(0, "why nothing goes to it", |line| {
            line.contains("engine-1 ")
                .then(|| line.to_owned())
                .filter(|it| it.contains("WARN"))
        });
        assert!(said.contains(why), "{said}");
        let api = testkit::Api { addr, key: None };
        let reply = api.post("/v1/completions", &tokens(&[300, 301], 5));
        let (code, message) = reply.error();
        assert_eq!(
            (reply.status, code.as_str()),
            (503, "unavailable"),
            "{message}"
        );
        assert_eq!(front.fleet.all().arrived, 0);
    }
}
