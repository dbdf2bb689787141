//! A client over plain sockets, which sees every byte and can leave when it likes.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a test waits for what must come.
pub const SOON: Duration = Duration::from_secs(10);
/// How long it waits for what must not come.
pub const A_WHILE: Duration = Duration::from_millis(120);

/// A response: status, head, and a body without its framing.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub body: String,
    /// It ended as its framing says.
    pub whole: bool,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of all events but `[DONE]`, and whether that came.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let data = self
            .body
            .split("\n\n")
            .filter_map(|it| it.strip_prefix("data: "));
        let done = data.clone().any(|it| it == "[DONE]");
        let data = data.filter(|it| *it != "[DONE]");
        let parse = |it: &str| serde_json::from_str(it).unwrap();
        (data.map(parse).collect(), done)
    }
}

pub async fn connect(at: SocketAddr) -> TcpStream {
    TcpStream::connect(at).await.unwrap()
}

/// Sends a request and does not wait.
pub async fn send(at: SocketAddr, path: &str, body: &Value) -> TcpStream {
    let mut stream = connect(at).await;
    write(&mut stream, path, body).await;
    stream
}

pub async fn write(stream: &mut TcpStream, path: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).await.unwrap();
}

pub async fn post(at: SocketAddr, path: &str, body: &Value) -> Got {
    let mut stream = send(at, path, body).await;
    timeout(SOON, read(&mut stream))
        .await
        .expect("an answer")
        .expect("a head")
}

pub async fn get(at: SocketAddr, path: &str) -> Got {
    let mut stream = connect(at).await;
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    timeout(SOON, read(&mut stream))
        .await
        .expect("an answer")
        .expect("a head")
}

/// One response; none if the connection closes before a head.
pub async fn read(stream: &mut TcpStream) -> Option<Got> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec())
        .unwrap()
        .to_lowercase();
    let status = head[9..12].parse().unwrap();
    let rest = bytes.split_off(end);
    let length = head
        .lines()
        .find_map(|it| it.strip_prefix("content-length: "));
    let (body, whole) = match length {
        Some(length) => counted(stream, rest, length.parse().unwrap()).await,
        None => chunked(stream, rest).await,
    };
    let body = String::from_utf8_lossy(&body).into_owned();
    Some(Got {
        status,
        body,
        whole,
    })
}

async fn counted(stream: &mut TcpStream, mut body: Vec<u8>, length: usize) -> (Vec<u8>, bool) {
    while body.len() < length {
        if stream.read_buf(&mut body).await.unwrap_or(0) == 0 {
            return (body, false);
        }
    }
    body.truncate(length);
    (body, true)
}

async fn chunked(stream: &mut TcpStream, mut rest: Vec<u8>) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        while let Some(line) = rest.windows(2).position(|it| it == b"\r\n") {
            let size = std::str::from_utf8(&rest[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            if rest.len() < line + 2 + size + 2 {
                break;
            }
            body.extend_from_slice(&rest[line + 2..line + 2 + size]);
            rest.drain(..line + 4 + size);
            if size == 0 {
                return (body, true);
            }
        }
        if stream.read_buf(&mut rest).await.unwrap_or(0) == 0 {
            return (body, false);
        }
    }
}
