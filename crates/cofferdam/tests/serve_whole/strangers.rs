//! Strangers on every port of a running cluster get nothing, and whom it serves notices nothing.

use crate::{COFFERDAM, counter, info_when, rest, serve, small, topology::Topology, worker};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::Api;
use testkit::crowd::{COMPLETIONS, prompt};
use testkit::process::PATIENCE;
use wire::control::{Addr, Identity, Limits, Role};

fn question(owner: usize) -> Value {
    json!({
        "prompt": prompt(owner, 200, 16, 9), "max_tokens": 8, "temperature": 0, "logprobs": 1,
    })
}

fn choices(api: &Api, owner: usize) -> Value {
    api.post(COMPLETIONS, &question(owner)).good()["choices"].clone()
}

fn alone(model: &Path) -> Vec<Value> {
    let (_running, api) = serve(model, &["--in-process"]);
    (0..4).map(|owner| choices(&api, owner)).collect()
}

/// What somebody says who does not know the protocol.
fn nonsense() -> Vec<Vec<u8>> {
    let client_hello = [&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..], &[7; 194]].concat();
    vec![
        b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![0; 4096],
        (0..65536_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect(),
        client_hello,
    ]
}

/// All that a socket gives until it ends.
fn heard(mut socket: impl Read) -> Vec<u8> {
    let mut heard = Vec::new();
    match socket.read_to_end(&mut heard) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("not hung up on: {error}"),
    }
    heard
}

/// Says something to a TCP port, and then nothing.
fn say(port: &str, what: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(port).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = socket.write_all(what); // it may hang up before the end
    heard(socket)
}

/// Another cluster's certificates.
fn foreign(dir: &Path) -> PathBuf {
    let theirs = dir.join("foreign");
    let made = Command::new(COFFERDAM)
        .args(["certs", "new"])
        .arg(&theirs)
        .output();
    assert!(made.unwrap().status.success());
    theirs
}

/// A TLS client that trusts anybody and shows what it was told to, or nothing; prints what it heard.
const ANYBODY: &str = r#"
import socket, ssl, sys
host, port, cert, key = sys.argv[1:5]
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
if cert:
    tls.load_cert_chain(cert, key)
heard = b""
try:
    with tls.wrap_socket(socket.create_connection((host, int(port)), 60)) as s:
        s.sendall(b"\0" * 4096)
        while piece := s.recv(65536):
            heard += piece
except (ssl.SSLError, ConnectionError) as refused:
    print("refused:", refused)
print("heard", len(heard))
"#;

/// The port ends a handshake with this certificate, before it has said anything of its own.
fn refuses(port: &str, cert: &str, key: &str) {
    let (host, number) = port.rsplit_once(':').expect("host:port");
    let ran = Command::new("python3")
        .args(["-c", ANYBODY, host, number, cert, key])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{ran:?}");
    assert!(said.contains("refused: "), "{cert:?} at {port}: {said}");
    assert!(said.ends_with("heard 0\n"), "{cert:?} at {port}: {said}");
}

/// Garbage, certificates of another cluster, and certificates of ours in the wrong hands, on the
/// control ports of prefill and decode and on decode's data port.
#[test]
fn strangers_on_the_control_and_data_ports_get_nothing() {
    let model = small::model(256);
    let expected = alone(&model);
    let data = {
        let free = std::net::TcpListener::bind("127.0.0.6:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let listen = format!("--data-listen=tcp:{data}");
    let prefill = ["--listen=tcp:127.0.0.1:0"];
    let decode = ["--listen=tcp:127.0.0.1:0", listen.as_str()];
    let all = Topology::start(&model, &prefill, &decode);
    assert_eq!(choices(&all.api, 0), expected[0]);
    let port = |addr: &str| addr.strip_prefix("tcp:").expect("a TCP port").to_owned();
    let ports = [port(&all.prefill), port(&all.decode), data];

    for port in &ports {
        for what in nonsense() {
            let heard = say(port, &what);
            // A TLS alert is 7 bytes, of which none is about anybody.
            assert!(heard.len() <= 7, "{port} said {heard:?}");
            assert!(
                heard.is_empty() || heard[0] == 0x15,
                "{port} said {heard:?}"
            );
        }
    }
    assert_eq!(choices(&all.api, 1), expected[1]);

    let dir = tempfile::tempdir().unwrap();
    let foreign = foreign(dir.path());
    for port in &ports {
        refuses(port, "", "");
        for role in ["gateway", "prefill", "decode"] {
            let file = |end: &str| foreign.join(format!("{role}.{end}"));
            let (cert, key) = (file("pem"), file("key"));
            refuses(port, cert.to_str().unwrap(), key.to_str().unwrap());
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Only a gateway asks a prefill, and nobody asks a decode who is one himself.
    for (port, own, server) in [
        (&ports[0], Role::Prefill, Role::Prefill),
        (&ports[0], Role::Decode, Role::Prefill),
        (&ports[1], Role::Decode, Role::Decode),
    ] {
        let identity = Identity::load(&all.certs, own).unwrap();
        let addr: Addr = format!("tcp:{port}").parse().unwrap();
        let (allowed, limits) = ([server], Limits::default());
        let dialled = runtime.block_on(wire::control::dial(&addr, &identity, &allowed, &limits));
        assert!(dialled.is_err(), "{own:?} was welcomed at {port}");
    }
    assert_eq!(choices(&all.api, 2), expected[2]);
    unharmed(&all.api);
}

/// Whoever may open the socket at all, but shows no token, gets no descriptor.
#[test]
fn strangers_on_the_arenas_socket_get_no_memory() {
    let model = small::model(256);
    let expected = alone(&model);
    let (running, api) = serve(&model, &[]);
    assert_eq!(choices(&api, 0), expected[0]);
    let sockets: Vec<PathBuf> = listening(running.part("decode"));
    let before = counter(worker(&rest(&api), "decode"), "attaches_refused");
    let claim = [&b"cfd-fd?\x02"[..], &[0; 120]].concat();
    let mut shown = 0;
    for socket in &sockets {
        for what in [&claim[..], &nonsense()[0], &nonsense()[1]] {
            let mut stranger = UnixStream::connect(socket).unwrap();
            stranger
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            let _ = stranger.write_all(what);
            let heard = heard(stranger);
            // The control socket may say an alert; an arena's says one byte, and 0 is "granted".
            assert!(
                heard.len() <= 7 && heard.first() != Some(&0),
                "{socket:?} said {heard:?}"
            );
            shown += usize::from(heard.len() == 1);
        }
    }
    assert!(shown > 0, "none of {sockets:?} is the arenas'");
    info_when(&api, "the strangers are counted", |info| {
        counter(worker(info, "decode"), "attaches_refused") > before
    });
    assert_eq!(choices(&api, 1), expected[1]);
    unharmed(&api);
}

fn unharmed(api: &Api) {
    let info = rest(api);
    for role in ["prefill", "decode"] {
        assert_eq!(
            counter(worker(&info, role), "integrity_faults"),
            0,
            "{info}"
        );
    }
}

/// Paths of the sockets on which a process listens.
fn listening(pid: u32) -> Vec<PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = descriptors.filter_map(|it| std::fs::read_link(it.unwrap().path()).ok());
    let own: Vec<String> = links
        .filter_map(|link| {
            let inode = link
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .to_owned();
            Some(inode)
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let rows = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Flags 00010000: it listens.
    rows.filter(|row| row.len() == 8 && row[3] == "00010000" && own.contains(&row[6].to_owned()))
        .map(|row| PathBuf::from(row[7]))
        .collect()
}
