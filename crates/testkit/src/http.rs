//! A client of the API that shows what really came over the connection. Blocking; one connection
//! a request; every read has a deadline, so that a server that hangs fails a test.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest silence of a server that is still waited for: above its own deadline of a request.
const SILENCE_MAX: Duration = Duration::from_secs(900);

/// Where an API is, and who asks.
#[derive(Clone, Debug)]
pub struct Api {
    /// `host:port`.
    pub addr: String,
    /// Sent as `Authorization: Bearer`.
    pub key: Option<String>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Names are lower case.
    pub headers: BTreeMap<String, String>,
    /// As it came, without chunk sizes.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The JSON of a 200.
    pub fn good(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, 200, "{text}");
        self.json()
    }

    /// `code` and `message` of OpenAI's error envelope.
    pub fn error(&self) -> (String, String) {
        let error = &self.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (text("code"), text("message"))
    }
}

impl Api {
    /// The same API for the owner of this key.
    pub fn with_key(&self, key: &str) -> Api {
        let (addr, key) = (self.addr.clone(), Some(key.to_owned()));
        Api { addr, key }
    }

    /// Asks and reads the whole answer.
    pub fn get(&self, path: &str) -> Reply {
        self.try_get(path)
            .unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// [`Api::get`] of a server that may not be there.
    pub fn try_get(&self, path: &str) -> io::Result<Reply> {
        self.send("GET", path, None)?.whole()
    }

    /// Sends JSON and reads the whole answer.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.try_post(path, body)
            .unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// [`Api::post`] to a server that may end meanwhile.
    pub fn try_post(&self, path: &str, body: &Value) -> io::Result<Reply> {
        self.send("POST", path, Some(body))?.whole()
    }

    /// Sends JSON and reads nothing yet. Dropped, the connection is closed.
    pub fn begin(&self, path: &str, body: &Value) -> io::Result<Pending> {
        self.send("POST", path, Some(body))
    }

    /// Sends JSON and reads the head of a stream, which must be a 200.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let pending = self.begin(path, body).expect("the server takes a request");
        pending
            .events()
            .unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Pending> {
        let mut socket = TcpStream::connect(&self.addr)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        socket.set_write_timeout(Some(SILENCE_MAX))?;
        let host = &self.addr;
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        if let Some(key) = &self.key {
            text += &format!("authorization: Bearer {key}\r\n");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        if !body.is_empty() {
            text += "content-type: application/json\r\n";
        }
        text += &format!("content-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(text.as_bytes())?;
        let buffer = Vec::new();
        Ok(Pending { socket, buffer })
    }
}

/// A request that was sent.
#[derive(Debug)]
pub struct Pending {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Pending {
    /// Reads the whole answer.
    ///
    /// # Errors
    /// It does not come, or is not whole.
    pub fn whole(mut self) -> io::Result<Reply> {
        let (status, headers) = self.head()?;
        let mut body = Vec::new();
        if headers.contains_key("transfer-encoding") {
            loop {
                match self.chunk()? {
                    chunk if chunk.is_empty() => break,
                    chunk => body.extend(chunk),
                }
            }
        } else {
            let length = headers
                .get("content-length")
                .map_or(0, |n| n.parse().unwrap_or(0));
            while self.buffer.len() < length {
                self.more()?;
            }
            body = self.buffer;
            body.truncate(length);
        }
        Ok(Reply {
            status,
            headers,
            body,
        })
    }

    /// Reads the head of a stream. An answer that is none gives its body as the error.
    ///
    /// # Errors
    /// It is no stream, or nothing comes.
    pub fn events(mut self) -> io::Result<Events> {
        let (status, headers) = self.head()?;
        let streams = headers
            .get("content-type")
            .is_some_and(|it| it.contains("event-stream"));
        if status == 200 && streams {
            let (text, ended) = (String::new(), false);
            return Ok(Events {
                from: self,
                text,
                ended,
            });
        }
        let _ = self.socket.read_to_end(&mut self.buffer);
        let text = String::from_utf8_lossy(&self.buffer);
        Err(io::Error::other(format!("status {status}: {text}")))
    }

    fn head(&mut self) -> io::Result<(u16, BTreeMap<String, String>)> {
        let end = loop {
            match self
                .buffer
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
            {
                Some(at) => break at + 4,
                None => self.more()?,
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status in {head}")))?;
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        Ok((status, headers.collect()))
    }

    /// The next chunk; empty at the end.
    fn chunk(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let size = std::str::from_utf8(&self.buffer[..at]).unwrap_or("no size");
                let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
                let end = at + 2 + size + 2;
                if self.buffer.len() >= end {
                    let chunk: Vec<u8> = self.buffer.drain(..end).collect();
                    return Ok(chunk[at + 2..at + 2 + size].to_vec());
                }
            }
            self.more()?;
        }
    }

    fn more(&mut self) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.buffer.extend_from_slice(&bytes[..n]);
                Ok(())
            }
            // A read with a deadline is not taken up again by itself after a stop of this process.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A stream of server-sent events that is read as it comes. Dropped, the connection is closed.
#[derive(Debug)]
pub struct Events {
    from: Pending,
    text: String,
    ended: bool,
}

impl Events {
    /// The data of the next event; none at the body's own end.
    ///
    /// # Errors
    /// The connection was broken off.
    pub fn next_event(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(at) = self.text.find("\n\n") {
                let event: String = self.text.drain(..at + 2).collect();
                let data = event
                    .strip_prefix("data: ")
                    .expect("one data line an event");
                return Ok(Some(data.trim_end().to_owned()));
            }
            if self.ended {
                assert_eq!(self.text, "", "no half event before the end");
                return Ok(None);
            }
            let chunk = self.from.chunk()?;
            self.ended = chunk.is_empty();
            self.text += std::str::from_utf8(&chunk).expect("events are whole characters");
        }
    }

    /// All further events; whether the last one was `[DONE]` and the body came to its own end.
    pub fn rest(mut self) -> (Vec<Value>, bool) {
        let (mut events, mut done) = (Vec::new(), false);
        loop {
            match self.next_event() {
                Ok(Some(data)) if data == "[DONE]" => done = true,
                Ok(Some(data)) => {
                    assert!(!done, "nothing follows [DONE]: {data}");
                    events.push(serde_json::from_str(&data).expect("an event is JSON"));
                }
                Ok(None) => return (events, done),
                Err(_) => return (events, false),
            }
        }
    }
}
