//! Servers on loopback that answer from recordings, or badly. Tests and the bench share them.
#![allow(dead_code, reason = "the bench needs a part of them")]

use gate::facts::recording::Recording;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a path is answered with.
#[derive(Clone, Debug)]
pub enum Answer {
    /// 200 with these bytes.
    Body(Vec<u8>),
    /// A status alone.
    Status(u16),
    /// 302 to this address.
    Redirect(String),
    /// 200, and bytes for as long as they are taken.
    Endless,
    /// Nothing, until the other side goes away.
    Silence,
}

type Answers = BTreeMap<String, Answer>;

/// Path and `Authorization` of a request.
pub type Asked = (String, Option<String>);

/// One server. It ends with the process of the test.
#[derive(Clone, Debug)]
pub struct Fake {
    /// Without a slash at its end.
    pub url: String,
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Without this key, every answer is 401.
    key: Option<String>,
}

impl Fake {
    /// A server that answers as recorded, and 404 to everything else.
    pub fn recorded(recording: &Recording) -> Fake {
        let body = |(path, body): (&String, &Vec<u8>)| (path.clone(), Answer::Body(body.clone()));
        Fake::new(recording.answers.iter().map(body).collect(), None)
    }

    /// A server that answers everything with this.
    pub fn always(answer: Answer) -> Fake {
        Fake::new(BTreeMap::from([("*".to_owned(), answer)]), None)
    }

    /// [`Fake::recorded`] for those who have the key.
    pub fn locked(recording: &Recording, key: &str) -> Fake {
        let body = |(path, body): (&String, &Vec<u8>)| (path.clone(), Answer::Body(body.clone()));
        Fake::new(
            recording.answers.iter().map(body).collect(),
            Some(key.to_owned()),
        )
    }

    fn new(answers: Answers, key: Option<String>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Fake {
            url: format!("http://{}", listener.local_addr().unwrap()),
            answers: Arc::new(Mutex::new(answers)),
            asked: Arc::default(),
            key,
        };
        let serving = fake.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(socket));
            }
        });
        fake
    }

    /// Answers otherwise from now on.
    pub fn becomes(&self, recording: &Recording) {
        let mut answers = self.answers();
        for (path, body) in &recording.answers {
            answers.insert(path.clone(), Answer::Body(body.clone()));
        }
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap()
    }

    fn serve(&self, mut socket: TcpStream) -> Option<()> {
        let mut head = Vec::new();
        let mut bytes = [0; 4096];
        loop {
            while !head.windows(4).any(|it| it == b"\r\n\r\n") {
                match socket.read(&mut bytes).ok()? {
                    0 => return None,
                    n => head.extend_from_slice(&bytes[..n]),
                }
            }
            let text = String::from_utf8_lossy(&head).into_owned();
            head.clear(); // a GET has no body, and nobody here pipelines
            let path = text.split(' ').nth(1)?.split('?').next()?.to_owned();
            let header = |line: &str| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("authorization")
                    .then(|| value.to_owned())
            };
            let auth = text.lines().find_map(header);
            self.asked
                .lock()
                .unwrap()
                .push((path.clone(), auth.clone()));
            let wanted = self.key.as_ref().map(|key| format!("Bearer {key}"));
            let answer = match wanted.is_some() && auth != wanted {
                true => Answer::Status(401),
                false => {
                    let answers = self.answers();
                    let found = answers.get(&path).or(answers.get("*"));
                    found.cloned().unwrap_or(Answer::Status(404))
                }
            };
            say(&mut socket, &answer).ok()?;
        }
    }
}

fn say(socket: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    let whole = |status: &str, more: &str, body: &[u8]| {
        let length = body.len();
        let mut bytes =
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{more}\r\n").into_bytes();
        bytes.extend_from_slice(body);
        bytes
    };
    match answer {
        Answer::Body(body) => socket.write_all(&whole("200 OK", "", body)),
        Answer::Status(status) => socket.write_all(&whole(&format!("{status} No"), "", b"{}")),
        Answer::Redirect(to) => {
            socket.write_all(&whole("302 Found", &format!("location: {to}\r\n"), b""))
        }
        Answer::Endless => {
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")?;
            for _ in 0..1024 {
                socket.write_all(&[b' '; 1 << 20])?;
            }
            Ok(())
        }
        Answer::Silence => {
            let mut byte = [0];
            socket.read(&mut byte).map(|_| ())
        }
    }
}

/// A recording of the crate that reads them.
pub fn recording(name: &str) -> Recording {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate/tests/fixtures");
    Recording::load(&fixtures.join(name)).only_answers(&[])
}

/// The same server with another pool (2000 was recorded): what SGLang's formula makes of it.
pub fn with_pool(mut recording: Recording, pool: u64) -> Recording {
    let limit = pool.saturating_sub(1).min(4095) - 5;
    for body in recording.answers.values_mut() {
        let mut text = String::from_utf8_lossy(body).into_owned();
        for (old, new) in [
            ("tokens\":2000", format!("tokens\":{pool}")),
            ("capacity\":2000", format!("capacity\":{pool}")),
            ("} 2000.0", format!("}} {pool}.0")),
            ("input_len\":1994", format!("input_len\":{limit}")),
        ] {
            text = text.replace(old, &new);
        }
        *body = text.into_bytes();
    }
    recording
}
