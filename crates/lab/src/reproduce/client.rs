//! The client: plain HTTP/1.1 over a socket, as anybody's curl would send it.

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest silence of the server.
const SILENCE_MAX: Duration = Duration::from_secs(900);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Where the API is.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    /// `host:port`.
    pub addr: String,
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub body: Value,
}

impl Api {
    /// Sends JSON with this key, and reads the whole answer.
    pub(crate) fn post(&self, path: &str, key: &str, body: &Value) -> anyhow::Result<Reply> {
        let mut socket = TcpStream::connect(&self.addr).context("the gateway does not answer")?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            self.addr,
            body.len()
        );
        socket.write_all(head.as_bytes())?;
        socket.write_all(body.as_bytes())?;
        let mut answer = Vec::new();
        socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        parse(&answer)
    }
}

/// The gateway sends an answer that is no stream whole, with its length.
fn parse(answer: &[u8]) -> anyhow::Result<Reply> {
    let end = answer.windows(4).position(|at| at == b"\r\n\r\n");
    let end = end.ok_or_else(|| anyhow!("an answer without a head"))?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let Some(status) = status else {
        bail!("no status in {head}");
    };
    let body = serde_json::from_slice(&answer[end + 4..]);
    let body = body.with_context(|| format!("an answer that is no JSON: {head}"))?;
    Ok(Reply { status, body })
}
