//! A client that says exactly what it is told to say, and a desk that is really served.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use desk::state::DeskState;
use desk::{Desk, Keys, Limits, View, serve_within};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const ANNA: &str = "anna-0123456789abcdef";
pub const BEN: &str = "ben-0123456789abcdef";
/// What must come comes long before; this only makes a test that hangs one that fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Served {
    pub port: u16,
    pub keys: Keys,
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

/// Limits that let a test see them.
pub fn limits() -> Limits {
    Limits {
        every: Duration::from_millis(20),
        ..Limits::default()
    }
}

pub async fn served(desk: Arc<dyn Desk>, limits: Limits) -> Served {
    served_over(None, desk, limits).await
}

pub async fn served_over(
    tls: Option<Arc<ServerConfig>>,
    desk: Arc<dyn Desk>,
    limits: Limits,
) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let keys = Keys::parse(&format!("anna {ANNA}\nben {BEN}\n")).unwrap();
    let (end, ended) = oneshot::channel();
    let shutdown = async {
        let _ = ended.await;
    };
    let task = tokio::spawn(serve_within(
        limits,
        listener,
        tls,
        keys.clone(),
        desk,
        shutdown,
    ));
    Served {
        port,
        keys,
        end: Some(end),
        task,
    }
}

/// An answer, or as much as came of it.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In small letters.
    pub head: String,
    pub body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect(text);
        Self {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Of an error: what was expected, and what came.
    pub fn fault(&self) -> (String, String) {
        let json = self.json();
        let word = |name: &str| json["error"][name].as_str().unwrap().to_owned();
        assert!(!word("next").is_empty(), "{json}");
        (word("expected"), word("got"))
    }
}

impl Served {
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    /// Sends these bytes and reads to the end.
    pub async fn say(&self, bytes: &str) -> Answer {
        let mut stream = self.connect().await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        Answer::parse(&rest(&mut stream).await)
    }

    pub async fn get(&self, path: &str, more: &str) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        self.say(&format!("{head}{more}\r\n")).await
    }

    /// An action of Anna's, with these header lines too.
    pub async fn post(&self, body: &str, more: &str) -> Answer {
        self.say(&self.posted(body, more)).await
    }

    pub fn posted(&self, body: &str, more: &str) -> String {
        format!(
            "POST /actions HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nconnection: close\r\n{}{more}content-length: \
             {}\r\n\r\n{body}",
            self.port,
            bearer(ANNA),
            body.len()
        )
    }

    pub async fn end(mut self) {
        let _ = self.end.take().unwrap().send(());
        timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

pub fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

pub const JSON: &str = "content-type: application/json\r\n";

/// What comes until the server closes.
pub async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    read.expect("the server closes").unwrap();
    String::from_utf8(bytes).unwrap()
}

/// A stream of events, read as they are asked for.
pub struct Events {
    pub operator: String,
    body: Incoming,
    text: Vec<u8>,
    /// Of the connection.
    _task: JoinHandle<()>,
}

impl Events {
    pub async fn of(served: &Served, key: &str) -> Self {
        let stream = TokioIo::new(served.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let _task = tokio::spawn(async move {
            let _ = connection.await;
        });
        let request = Request::get("/events")
            .header("host", "x")
            .header("authorization", format!("Bearer {key}"))
            .body(Empty::<Bytes>::new());
        let response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            operator: response.headers()["x-operator"].to_str().unwrap().into(),
            body: response.into_body(),
            text: Vec::new(),
            _task,
        }
    }

    /// The next event; none: the stream has ended.
    pub async fn next(&mut self) -> Option<DeskState> {
        loop {
            // JSON has no line end in it.
            if let Some(end) = self.text.iter().position(|it| *it == b'\n') {
                let event: Vec<u8> = self.text.drain(..end + 2).collect();
                match event.strip_prefix(b"data: ") {
                    Some(json) => return Some(serde_json::from_slice::<View>(json).unwrap().state),
                    None => assert_eq!(event, b": still here\n\n"),
                }
                continue;
            }
            let frame = timeout(PATIENCE, self.body.frame()).await;
            let frame = frame.expect("an event, or the end")?;
            self.text
                .extend_from_slice(&frame.ok()?.into_data().unwrap());
        }
    }

    /// The first state of which this is so; the same one may come twice.
    pub async fn until(&mut self, holds: impl Fn(&DeskState) -> bool) -> DeskState {
        loop {
            let state = self.next().await.expect("the stream goes on");
            if holds(&state) {
                return state;
            }
        }
    }

    /// The stream ends.
    pub async fn ends(&mut self) {
        while self.next().await.is_some() {}
    }
}
