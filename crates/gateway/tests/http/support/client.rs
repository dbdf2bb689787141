use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The bytes of a request; JSON is declared where there is a body.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
    if !body.is_empty() {
        text += "content-type: application/json\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

/// A connection that shows what really came over it.
pub struct Client {
    pub socket: TcpStream,
    buffer: Vec<u8>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// Whether the body came to its own end.
    pub complete: bool,
}

impl Reply {
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The code of OpenAI's envelope, which must be whole.
    pub fn code(&self) -> String {
        let json = self.json();
        let error = json["error"]
            .as_object()
            .unwrap_or_else(|| panic!("no envelope: {json}"));
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "{json}"
        );
        assert!(error.contains_key("param"), "{json}");
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self {
            socket: TcpStream::connect(address).await.unwrap(),
            buffer: Vec::new(),
        }
    }

    /// A connection that takes little unless it is read.
    pub async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self {
            socket: socket.connect(address).await.unwrap(),
            buffer: Vec::new(),
        }
    }

    /// Sends a request and reads its whole answer.
    pub async fn send(&mut self, bytes: &[u8]) -> Reply {
        self.socket.write_all(bytes).await.unwrap();
        self.reply().await.expect("an answer")
    }

    /// Sends a request whose answer has no body, whatever its head says.
    pub async fn head_of(&mut self, bytes: &[u8]) -> (u16, BTreeMap<String, String>) {
        self.socket.write_all(bytes).await.unwrap();
        self.head().await.expect("an answer")
    }

    /// Reads a whole answer; none if the connection is closed first.
    pub async fn reply(&mut self) -> Option<Reply> {
        let (status, headers) = self.head().await?;
        let mut reply = Reply {
            status,
            headers,
            body: Vec::new(),
            complete: true,
        };
        if reply.headers.contains_key("transfer-encoding") {
            loop {
                match self.chunk().await {
                    Some(chunk) if chunk.is_empty() => break,
                    Some(chunk) => reply.body.extend(chunk),
                    None => {
                        reply.complete = false;
                        break;
                    }
                }
            }
        } else {
            let length = reply
                .headers
                .get("content-length")
                .map_or(0, |n| n.parse().unwrap());
            while self.buffer.len() < length && self.more().await {}
            reply.complete = self.buffer.len() >= length;
            reply.body = self.buffer.drain(..length.min(self.buffer.len())).collect();
        }
        Some(reply)
    }

    /// Sends a request and reads its head only.
    pub async fn stream(mut self, bytes: &[u8]) -> Stream {
        self.socket.write_all(bytes).await.unwrap();
        let (status, headers) = self.head().await.expect("an answer");
        assert_eq!(status, 200);
        Stream {
            client: self,
            headers,
            text: String::new(),
            clean: false,
        }
    }

    async fn head(&mut self) -> Option<(u16, BTreeMap<String, String>)> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at;
            }
            if !self.more().await {
                return None;
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Some((status, headers))
    }

    /// The next chunk; empty at the end; none if the connection was broken off.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let size = std::str::from_utf8(&self.buffer[..at]).unwrap();
                let size = usize::from_str_radix(size, 16).unwrap();
                if self.buffer.len() >= at + 2 + size + 2 {
                    let chunk: Vec<u8> = self.buffer.drain(..at + 2 + size + 2).collect();
                    return Some(chunk[at + 2..at + 2 + size].to_vec());
                }
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn more(&mut self) -> bool {
        matches!(within(self.socket.read_buf(&mut self.buffer)).await, Ok(n) if n > 0)
    }
}

/// An answer that is read as it comes.
pub struct Stream {
    client: Client,
    pub headers: BTreeMap<String, String>,
    text: String,
    clean: bool,
}

impl Stream {
    /// The data of the next event; none at the end.
    pub async fn event(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.text.find("\n\n") {
                let event: String = self.text.drain(..at + 2).collect();
                // An event may have a name, in a line before.
                let named = event
                    .strip_prefix("event: ")
                    .and_then(|it| it.split_once('\n'));
                let data = named.map_or(&*event, |(_, data)| data);
                let data = data.strip_prefix("data: ").expect("one data line an event");
                return Some(data.trim_end().to_owned());
            }
            match self.client.chunk().await {
                None => return None,
                Some(chunk) if chunk.is_empty() => {
                    self.clean = true;
                    assert_eq!(self.text, "", "no half event before the end");
                    return None;
                }
                Some(chunk) => self.text += std::str::from_utf8(&chunk).unwrap(),
            }
        }
    }

    /// The next event as JSON.
    pub async fn json(&mut self) -> Value {
        serde_json::from_str(&self.event().await.expect("another event")).unwrap()
    }

    /// All further events, and whether the body came to its own end.
    pub async fn rest(mut self) -> (Vec<String>, bool) {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        (events, self.clean)
    }
}
