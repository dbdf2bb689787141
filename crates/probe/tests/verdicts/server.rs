//! A scripted server: answers like a model that copies its prompt, and misbehaves as it is told.
//! One word is one token.

use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What one request is answered.
pub enum Reply {
    /// 200 with this text.
    Text(String),
    /// A status and a message.
    Error(u16, &'static str),
    /// The other, after so long: as if it had been computed.
    After(Duration, Box<Reply>),
    /// Nothing, ever.
    Hang,
    /// These bytes, head included, and the end of the connection.
    Raw(Vec<u8>),
    /// A status, headers and a body.
    Json(u16, Vec<(&'static str, String)>, Value),
}

/// How a text is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Gzip,
    /// Chunks of three bytes, whatever they cut.
    Crumbs,
}

/// One request, as the server sees it.
pub struct Asked {
    /// Counted from 0.
    pub n: u64,
    pub method: String,
    pub path: String,
    /// Empty without one.
    pub key: String,
    pub prompt: String,
    pub tokens: u64,
    pub body: Value,
    /// Prompts before it, with their keys.
    pub before: Vec<(String, String)>,
}

impl Asked {
    /// What a model that copies would say: the sentence whose beginning ends the prompt, from there
    /// on.
    pub fn copied(&self) -> String {
        let words: Vec<_> = self
            .prompt
            .split_whitespace()
            .filter(|it| *it != "a")
            .collect();
        let Some(opening) = words.len().checked_sub(3).map(|at| &words[at..]) else {
            return String::new();
        };
        let at = words.windows(3).position(|it| it == opening).unwrap_or(0);
        let end = words.len() - 3;
        let rest = &words[(at + 3).min(end)..end];
        rest.iter().take(12).copied().collect::<Vec<_>>().join(" ")
    }

    /// Eight words from the middle of somebody else's prompt, if there is one.
    pub fn foreign(&self) -> Option<String> {
        let (_, prompt) = self.before.iter().rev().find(|(key, _)| *key != self.key)?;
        Some(from_the_middle(prompt))
    }

    /// The same of the last prompt that came with its own key.
    pub fn of_before(&self) -> Option<String> {
        let (_, prompt) = self.before.iter().rev().find(|(key, _)| *key == self.key)?;
        Some(from_the_middle(prompt))
    }
}

fn from_the_middle(prompt: &str) -> String {
    let words: Vec<_> = prompt.split_whitespace().skip(2).take(8).collect();
    words.join(" ").to_uppercase()
}

impl Asked {
    /// So many words of somebody else's prompt, from its third on.
    pub fn words_of_another(&self, n: usize) -> Option<Vec<String>> {
        let (_, prompt) = self.before.iter().rev().find(|(key, _)| *key != self.key)?;
        let words = prompt
            .split_whitespace()
            .map(|it| it.trim_matches('.').to_owned());
        let words: Vec<_> = words.skip(2).take(n).collect();
        (words.len() == n).then_some(words)
    }

    /// The body of a whole answer with this text.
    pub fn answer(&self, text: &str) -> Value {
        json!({
            "choices": [{"index": 0, "text": text, "finish_reason": "length"}],
            "usage": {"prompt_tokens": self.tokens, "completion_tokens": 12},
        })
    }
}

type Script = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

struct Shared {
    script: Script,
    form: Form,
    count: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    asked: Mutex<(u64, Vec<(String, String)>)>,
}

/// Serves on a free port; the URL.
pub async fn serve(
    form: Form,
    count: impl Fn(u64) -> u64 + Send + Sync + 'static,
    script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shared = Arc::new(Shared {
        script: Arc::new(script),
        form,
        count: Box::new(count),
        asked: Mutex::default(),
    });
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(one(socket, shared.clone()));
        }
    });
    url
}

async fn one(mut socket: TcpStream, shared: Arc<Shared>) {
    let Some((line, key, body)) = request(&mut socket).await else {
        return; // the client has left
    };
    let prompt = body["prompt"].as_str().unwrap_or_default().to_owned();
    let tokens = prompt.split_whitespace().count() as u64;
    let asked = {
        let mut all = shared.asked.lock().unwrap();
        let (n, before) = (all.0, all.1.iter().rev().take(8).rev().cloned().collect());
        all.0 += 1;
        all.1.push((key.clone(), prompt.clone()));
        Asked {
            n,
            method: line[0].clone(),
            path: line[1].clone(),
            key,
            prompt,
            tokens,
            body,
            before,
        }
    };
    let counted = (shared.count)(asked.tokens);
    let reply = match (shared.script)(&asked) {
        Reply::After(time, reply) => {
            tokio::time::sleep(time).await;
            *reply
        }
        reply => reply,
    };
    let bytes = match reply {
        Reply::Hang | Reply::After(..) => std::future::pending().await,
        Reply::Raw(bytes) => bytes,
        Reply::Json(status, headers, body) => {
            let more: String = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let (kind, body) = match asked.body["stream"] == json!(true) && status == 200 {
                true => (
                    "text/event-stream",
                    format!("data: {body}\n\ndata: [DONE]\n\n"),
                ),
                false => ("application/json", body.to_string()),
            };
            let more = format!("{more}content-length: {}\r\n", body.len());
            head(status, kind, &more, body.into_bytes())
        }
        Reply::Error(status, message) => {
            let body = json!({"error": {"message": message, "code": status}}).to_string();
            head(
                status,
                "application/json",
                &format!("content-length: {}\r\n", body.len()),
                body.into_bytes(),
            )
        }
        Reply::Text(text) if asked.body["stream"] == json!(true) => {
            events(&text, counted, shared.form)
        }
        Reply::Text(text) => whole(&text, counted, shared.form),
    };
    let _ = socket.write_all(&bytes).await;
    let _ = socket.shutdown().await;
}

fn head(status: u16, kind: &str, more: &str, body: Vec<u8>) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\nconnection: close\r\n{more}\r\n");
    [head.into_bytes(), body].concat()
}

fn whole(text: &str, tokens: u64, form: Form) -> Vec<u8> {
    let body = json!({
        "choices": [{"index": 0, "text": text, "finish_reason": "length"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 12},
    });
    pack(body.to_string().into_bytes(), "application/json", form)
}

/// Events of three bytes of text each, so that every canary is cut.
fn events(text: &str, tokens: u64, form: Form) -> Vec<u8> {
    let mut body = String::new();
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(3) {
        let piece: String = piece.iter().collect();
        let event = json!({"choices": [{"index": 0, "text": piece}]});
        body.push_str(&format!("data: {event}\n\n: keep-alive\n\n"));
    }
    let usage = json!({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 12}});
    body.push_str(&format!("data: {usage}\n\ndata: [DONE]\n\n"));
    pack(body.into_bytes(), "text/event-stream", form)
}

fn pack(body: Vec<u8>, kind: &str, form: Form) -> Vec<u8> {
    match form {
        Form::Plain => head(
            200,
            kind,
            &format!("content-length: {}\r\n", body.len()),
            body,
        ),
        Form::Gzip => {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(&body).unwrap();
            head(
                200,
                kind,
                "content-encoding: gzip\r\n",
                packer.finish().unwrap(),
            )
        }
        Form::Crumbs => {
            let mut chunks = Vec::new();
            for chunk in body.chunks(3) {
                // Extensions and leading zeros are allowed, and nobody expects them.
                chunks.extend_from_slice(format!("00{:X};x=y\r\n", chunk.len()).as_bytes());
                chunks.extend_from_slice(chunk);
                chunks.extend_from_slice(b"\r\n");
            }
            chunks.extend_from_slice(b"0\r\n\r\n");
            head(200, kind, "transfer-encoding: chunked\r\n", chunks)
        }
    }
}

/// The words of the request line, the key and the body of a request.
async fn request(socket: &mut TcpStream) -> Option<(Vec<String>, String, Value)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            break end + 4;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|it| it.split_once(": "));
        lines
            .find(|(it, _)| it.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    let line = head.lines().next()?.split(' ').map(str::to_owned).collect();
    let length: usize = header("content-length")
        .map_or(Ok(0), |it| it.parse())
        .ok()?;
    while bytes.len() < end + length {
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&bytes[end..end + length]).unwrap_or_default();
    Some((line, header("authorization").unwrap_or_default(), body))
}
