//! A running `cofferdam serve` on the small model, as its user sees it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use testkit::{SmallSpec, small_gguf};

/// Nothing here takes so long, unless it never happens.
const NEVER: Duration = Duration::from_secs(60);

pub struct Serving {
    pub child: Child,
    /// `host:port` of the API.
    pub address: String,
    /// The request to copy.
    tries: String,
    /// Lines of standard error, as they come.
    log: Receiver<String>,
    seen: Vec<String>,
}

/// The program under test.
pub const COFFERDAM: &str = env!("CARGO_BIN_EXE_cofferdam");
/// A directory on the same file system as the program.
pub const TARGET: &str = env!("CARGO_TARGET_TMPDIR");

/// `cofferdam serve` on the small model with a private runtime directory in `base`.
pub fn command(base: &Path, words: &[&str]) -> Command {
    command_of(Path::new(COFFERDAM), base, words)
}

fn command_of(program: &Path, base: &Path, words: &[&str]) -> Command {
    let models = PathBuf::from(TARGET);
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COFFERDAM_")) {
        command.env_remove(name);
    }
    command.env("XDG_RUNTIME_DIR", base).arg("serve");
    command
        .arg("--model")
        .arg(small_gguf(&models, SmallSpec::default()));
    // As variables, which flags of a test may overrule.
    command
        .env("COFFERDAM_PORT", "0")
        .env("COFFERDAM_THREADS", "1");
    command.env("COFFERDAM_MAX_CONTEXT", "256").args(words);
    command
}

/// Starts it and waits until it says that it is ready.
pub fn start(base: &Path, words: &[&str]) -> Serving {
    start_program(Path::new(COFFERDAM), base, words)
}

/// [`start`] from another path.
pub fn start_program(program: &Path, base: &Path, words: &[&str]) -> Serving {
    let mut command = command_of(program, base, words);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let log = follow(child.stderr.take().unwrap());
    let out = follow(child.stdout.take().unwrap());
    let mut serving = Serving {
        child,
        address: String::new(),
        tries: String::new(),
        log,
        seen: Vec::new(),
    };
    let line = match out.recv_timeout(NEVER) {
        Ok(line) => line,
        Err(_) => panic!("it is never ready:\n{}", serving.told()),
    };
    let url = line
        .strip_prefix("ready: http")
        .and_then(|rest| rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://"))
        .unwrap_or_else(|| panic!("{line}"));
    serving.address = url.split("/v1").next().unwrap().to_owned();
    let tries = out.recv_timeout(NEVER).expect("a second line");
    let tries = tries.strip_prefix("try:").expect("a request to copy");
    serving.tries = tries.trim().to_owned();
    serving
}

fn follow(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Serving {
    /// The request that it printed, to copy.
    pub fn tries(&self) -> &str {
        &self.tries
    }

    /// Waits for a line of the log that contains `part`.
    pub fn says(&mut self, part: &str) -> String {
        let until = Instant::now() + NEVER;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(_) => panic!("it never says {part:?}:\n{}", self.told()),
            }
            let last = self.seen.last().unwrap();
            if last.contains(part) {
                return last.clone();
            }
        }
    }

    /// Everything that it has said.
    pub fn told(&mut self) -> String {
        self.seen.extend(self.log.try_iter());
        self.seen.join("\n")
    }

    /// Its child processes: what each plays, and a handle that outlives the process.
    pub fn parts(&self) -> Vec<(String, Pid, OwnedFd)> {
        let parent = self.child.id().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
                continue;
            };
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // After the name in brackets: state, parent.
            let parents = stat.rsplit(") ").next().and_then(|it| it.split(' ').nth(1));
            if parents != Some(parent.as_str()) {
                continue;
            }
            let words = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let role = words.split('\0').nth(1).unwrap_or_default().to_owned();
            let pid = Pid::from_raw(pid).unwrap();
            found.push((role, pid, pidfd_open(pid, PidfdFlags::empty()).unwrap()));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end and gives its exit code.
    pub fn ends(&mut self) -> Option<i32> {
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).unwrap();
        assert!(ends(&handle), "it does not end:\n{}", self.told());
        self.child.wait().unwrap().code()
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        request(&self.address, &format!("GET {path} HTTP/1.1"), "")
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        request(
            &self.address,
            &format!("POST {path} HTTP/1.1"),
            &body.to_string(),
        )
    }

    /// A greedy answer to a prompt of token ids for whoever has this key.
    pub fn complete_as(&self, key: &str, prompt: &[u32], max_tokens: u32) -> (u16, Value) {
        let head = format!("POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {key}");
        let body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0});
        request(&self.address, &head, &body.to_string())
    }

    /// A greedy answer to a prompt of token ids.
    pub fn complete(&self, prompt: &[u32], max_tokens: u32) -> (u16, Value) {
        let body = json!({
            "model": self.model(), "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "logprobs": 1,
        });
        self.post("/v1/completions", &body)
    }

    /// Opens a stream of a greedy answer and gives its reader after the first event.
    pub fn stream(&self, prompt: &[u32], max_tokens: u32) -> BufReader<TcpStream> {
        let body = json!({
            "model": self.model(), "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "stream": true,
        });
        let stream = send(
            &self.address,
            "POST /v1/completions HTTP/1.1",
            &body.to_string(),
        );
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no event came");
        }
        reader
    }

    pub fn model(&self) -> String {
        let (status, models) = self.get("/v1/models");
        assert_eq!(status, 200, "{models}");
        models["data"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Epochs of the workers, by name.
    pub fn epochs(&self) -> Vec<(String, String)> {
        let (status, info) = self.get("/server_info");
        assert_eq!(status, 200, "{info}");
        let workers = info["workers"]
            .as_array()
            .unwrap_or_else(|| panic!("{info}"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        workers
            .iter()
            .map(|it| (text(&it["name"]), text(&it["epoch"])))
            .collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill(); // a failed test leaves nothing running
        let _ = self.child.wait();
    }
}

/// Waits for the end of a process that need not be our child.
pub fn ends(process: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: NEVER.as_secs() as i64,
        tv_nsec: 0,
    };
    poll(&mut wanted, Some(&limit)).unwrap() == 1
}

/// One request on a connection of its own.
fn request(address: &str, line: &str, body: &str) -> (u16, Value) {
    let mut answer = String::new();
    send(address, line, body)
        .read_to_string(&mut answer)
        .unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (
        status,
        serde_json::from_str(body).unwrap_or_else(|_| Value::from(body)),
    )
}

fn send(address: &str, line: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(NEVER)).unwrap();
    let head = format!(
        "{line}\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}
