//! A little collector of OpenTelemetry spans: OTLP over HTTP, in JSON.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Nothing here takes so long, unless it never happens.
const NEVER: Duration = Duration::from_secs(60);

/// What was exported.
#[derive(Default)]
struct Got {
    bodies: Vec<String>,
    connections: usize,
}

/// One that listens.
pub struct Collector {
    /// `http://…`
    pub url: String,
    got: Arc<(Mutex<Got>, Condvar)>,
}

impl Collector {
    /// One that takes what it gets.
    pub fn start() -> Self {
        Self::listen(true)
    }

    /// One that takes connections and never answers.
    pub fn that_hangs() -> Self {
        Self::listen(false)
    }

    fn listen(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got: Arc<(Mutex<Got>, Condvar)> = Arc::default();
        let told = got.clone();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                told.0.lock().unwrap().connections += 1;
                told.1.notify_all();
                match answers {
                    true => drop(std::thread::spawn({
                        let told = told.clone();
                        move || serve(&stream, &told)
                    })),
                    false => held.push(stream),
                }
            }
        });
        Self { url, got }
    }

    /// Waits until so many connections were made.
    pub fn connected(&self, n: usize) {
        self.until(|got| (got.connections >= n).then_some(()));
    }

    /// Everything that was exported, as it was sent.
    pub fn text(&self) -> String {
        self.got.0.lock().unwrap().bodies.join("\n")
    }

    /// Waits until a trace has a span of each of these names; gives all spans of that trace, by name.
    pub fn trace(&self, id: &str, names: &[&str]) -> BTreeMap<String, Value> {
        self.until(|got| {
            let spans = got.bodies.iter().flat_map(|body| spans(body));
            let of_trace = spans.filter(|it| it["traceId"] == id);
            let named = of_trace.map(|it| (it["name"].as_str().unwrap().to_owned(), it));
            let spans: BTreeMap<String, Value> = named.collect();
            names
                .iter()
                .all(|name| spans.contains_key(*name))
                .then_some(spans)
        })
    }

    fn until<T>(&self, found: impl Fn(&Got) -> Option<T>) -> T {
        let until = Instant::now() + NEVER;
        let (mutex, told) = &*self.got;
        let mut got = mutex.lock().unwrap();
        loop {
            if let Some(found) = found(&got) {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it never came; what did: {:?}", got.bodies);
            got = told.wait_timeout(got, left).unwrap().0;
        }
    }
}

/// The value of an attribute, as text.
pub fn attribute<'a>(span: &'a Value, name: &str) -> Option<&'a str> {
    let all = span["attributes"].as_array()?.iter();
    let value = &all.clone().find(|it| it["key"] == name)?["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str())
}

fn spans(body: &str) -> Vec<Value> {
    let body: Value = serde_json::from_str(body).unwrap();
    let list = |it: &Value, name: &str| it[name].as_array().cloned().unwrap_or_default();
    let scopes = list(&body, "resourceSpans")
        .into_iter()
        .flat_map(move |it| list(&it, "scopeSpans"));
    scopes
        .flat_map(|it| it["spans"].as_array().cloned().unwrap_or_default())
        .collect()
}

fn serve(stream: &TcpStream, told: &(Mutex<Got>, Condvar)) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line, mut first) = (0, String::new(), true);
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if std::mem::take(&mut first) {
                assert!(line.starts_with("POST /v1/traces HTTP/1.1"), "{line}");
            }
            if line == "\r\n" {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(n) = lower.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        told.0
            .lock()
            .unwrap()
            .bodies
            .push(String::from_utf8(body).unwrap());
        told.1.notify_all();
        let answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        if (&*stream).write_all(answer).is_err() {
            return;
        }
    }
}
