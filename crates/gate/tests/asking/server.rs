//! Servers that answer, lie, dawdle or hang, on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

/// What a server does when asked.
#[derive(Clone)]
pub enum Reply {
    /// These bytes, then the connection closes.
    Raw(Vec<u8>),
    /// This head, then zeros for ever.
    Endless(&'static str),
    /// Half of an answer, then nothing.
    Hang,
}

pub fn ok(body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    Reply::Raw([head.as_bytes(), body].concat())
}

pub fn status(line: &str, headers: &str) -> Reply {
    Reply::Raw(format!("HTTP/1.1 {line}\r\n{headers}content-length: 0\r\n\r\n").into_bytes())
}

/// A request as it came: path with query, and the `authorization` header.
pub type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

pub struct Server {
    pub at: SocketAddr,
    pub asked: Asked,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers by path without query; another path is a 404.
pub async fn start(replies: BTreeMap<String, Reply>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let asked = Asked::default();
    let (replies, log) = (Arc::new(replies), asked.clone());
    let task = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket, replies.clone(), log.clone()));
        }
    });
    Server { at, asked, task }
}

/// The same reply for every path.
pub async fn start_always(reply: Reply) -> Server {
    start(BTreeMap::from([("*".to_owned(), reply)])).await
}

pub async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    replies: Arc<BTreeMap<String, Reply>>,
    asked: Asked,
) {
    let mut socket = BufReader::new(socket);
    let mut line = String::new();
    let (mut path, mut key) = (String::new(), None);
    while socket.read_line(&mut line).await.is_ok_and(|it| it > 0) {
        let text = line.trim_end();
        if let Some(rest) = text.strip_prefix("GET ") {
            path = rest.split(' ').next().unwrap_or_default().to_owned();
        } else if let Some((name, value)) = text.split_once(": ")
            && name.eq_ignore_ascii_case("authorization")
        {
            key = Some(value.to_owned());
        } else if text.is_empty() {
            break;
        }
        line.clear();
    }
    let bare = path.split('?').next().unwrap_or_default().to_owned();
    asked.lock().unwrap().push((path, key.clone()));
    let keyed = format!("{bare} with key");
    let reply = replies.get("*").or_else(|| {
        let keyed = replies.get(&keyed).filter(|_| key.is_some());
        keyed.or_else(|| replies.get(&bare))
    });
    let absent = status("404 Not Found", "");
    match reply.unwrap_or(&absent) {
        Reply::Raw(bytes) => {
            let _ = socket.write_all(bytes).await;
            let _ = socket.shutdown().await;
        }
        Reply::Endless(head) => {
            let _ = socket.write_all(head.as_bytes()).await;
            while socket.write_all(&[b' '; 65536]).await.is_ok() {}
        }
        Reply::Hang => {
            let _ = socket
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"")
                .await;
            let _ = socket.flush().await;
            std::future::pending::<()>().await;
        }
    }
}
