//! Two hundred servers on loopback, asked at once: `cargo bench -p gate`.
//!
//! One task plays all servers, in this process, with a recording of SGLang 0.5.23: time and memory
//! are those of asking and answering together. A second run has ten that never answer.

use gate::facts::net::{Address, Limits, NetTarget, Tls, TlsFiles, describe};
use gate::facts::recording::Recording;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const NODES: usize = 200;

#[tokio::main]
async fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sglang-0.5.23-decode");
    let recording = Arc::new(Recording::load(&folder).only_answers(&[]));
    let tls = Tls::new(&TlsFiles::default()).expect("no files, no errors");
    let mut targets = Vec::new();
    for n in 0..NODES {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(play(listener, recording.clone()));
        let address = Address::parse(&url).expect("an address");
        targets.push(NetTarget {
            name: format!("node {n}"),
            address,
            key: None,
            tls: tls.clone(),
        });
    }
    let limits = Limits {
        node: Duration::from_secs(2),
        ..Limits::default()
    };
    for run in 0..3 {
        let begin = Instant::now();
        let nodes = describe(&targets, &limits).await;
        let known = nodes
            .iter()
            .flatten()
            .filter(|it| it.smallest_pool().is_ok())
            .count();
        println!(
            "run {run}: {known} of {NODES} known in {:?}; {}",
            begin.elapsed(),
            peak()
        );
    }
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let silent = Address::parse(&format!("http://{}", silent.local_addr().expect("bound")));
    for target in targets.iter_mut().take(10) {
        target.address = silent.clone().expect("an address");
    }
    let begin = Instant::now();
    let nodes = describe(&targets, &limits).await;
    let known = nodes
        .iter()
        .flatten()
        .filter(|it| it.smallest_pool().is_ok())
        .count();
    println!(
        "ten silent: {known} of {NODES} known in {:?} (limit of a node: 2 s)",
        begin.elapsed()
    );
}

async fn play(listener: TcpListener, recording: Arc<Recording>) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(answer(socket, recording.clone()));
    }
}

async fn answer(socket: TcpStream, recording: Arc<Recording>) {
    let mut socket = BufReader::new(socket);
    let (mut line, mut path) = (String::new(), String::new());
    while socket.read_line(&mut line).await.is_ok_and(|it| it > 2) {
        if let Some(rest) = line.strip_prefix("GET ") {
            path = rest.split([' ', '?']).next().unwrap_or_default().to_owned();
        }
        line.clear();
    }
    let (status, body) = match recording.answers.get(&path) {
        Some(body) => ("200 OK", body.as_slice()),
        None => ("404 Not Found", b"".as_slice()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = socket.write_all(head.as_bytes()).await;
    let _ = socket.write_all(body).await;
    let _ = socket.shutdown().await;
}

/// The most memory that this process has had, as the system says.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|it| it.starts_with("VmHWM:"));
    line.map_or("peak unknown".into(), |it| {
        it.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}
