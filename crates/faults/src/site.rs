//! A server under attack: `cofferdam-faults serve` as a process with its parts, and what it must look
//! like when nothing is going on.

use super::faults::Spec;
use super::holder::Holder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use testkit::Api;
use testkit::process::{Running, wait_for};

/// What a site is made from.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The executable of `cofferdam-faults`.
    pub program: PathBuf,
    /// The model.
    pub model: PathBuf,
    /// Further words of `serve`.
    pub words: Vec<String>,
    /// What is injected.
    pub faults: Spec,
    /// The seed of the schedule.
    pub seed: u64,
}

/// A running server.
pub struct Site {
    /// Its processes.
    pub running: Running,
    /// Its API.
    pub api: Api,
    /// Hears of every phase.
    pub board: Holder,
    /// Where its audit log and traces are.
    pub dir: tempfile::TempDir,
    /// Whether its landing arenas are shared memory, and not reached over TCP.
    pub shared: bool,
}

/// Deadlines that are short, because somebody waits for them all day.
pub const HASTY: [&str; 3] = [
    "--peer-deadline=1s",
    "--cancel-deadline=500ms",
    "--silence-deadline=5s",
];

/// `--port` with a free port: a gateway that comes back must be found where it was.
pub fn found_again() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = free.expect("there is a free port").port();
    format!("--port={port}")
}

impl Site {
    /// Starts it and waits until it is ready.
    pub fn start(plan: &Plan) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let board = Holder::new(dir.path()).expect("a socket can be bound");
        let text = |path: &Path| path.to_str().expect("a path of ours is text").to_owned();
        let mut words = vec![
            "serve".to_owned(),
            format!("--faults={}", plan.faults),
            format!("--seed={}", plan.seed),
            "--".to_owned(),
            format!("--model={}", text(&plan.model)),
            "--threads=1".to_owned(),
            format!("--audit-log={}", text(&dir.path().join("audit.log"))),
            format!("--access-log={}", text(&dir.path().join("access.log"))),
        ];
        words.extend(plan.words.iter().cloned());
        if !words.iter().any(|word| word.starts_with("--port=")) {
            words.push("--port=0".to_owned());
        }
        let (variable, path) = board.variable();
        let running = Running::start_with(&plan.program, &words, |command| {
            command.env(variable, path);
        });
        let api = running.api();
        Self {
            running,
            api,
            board,
            dir,
            shared: !plan.words.iter().any(|word| word == "--fabric=tcp"),
        }
    }

    /// Every line of the audit log.
    pub fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("audit.log"));
        let text = text.unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line of the audit log is JSON"))
            .collect()
    }

    /// What `/server_info` says.
    pub fn info(&self) -> Value {
        self.api.get("/server_info").good()
    }

    /// Waits until a request would be taken.
    pub fn ready(&self) {
        wait_for("the server takes requests", || {
            let reply = self.api.try_get("/readyz").ok()?;
            (reply.status == 200).then_some(())
        });
    }

    /// Waits until nothing is going on: every pool whole, every attempt ended, no part too many,
    /// one arena for each pair and nothing mapped twice.
    pub fn rest(&self, pairs: usize) -> Value {
        let mut last = Value::Null;
        let rested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("the server is at rest", || {
                last = self.api.try_get("/server_info").ok()?.json();
                let workers = last["workers"].as_array()?;
                let whole = workers
                    .iter()
                    .all(|worker| is_whole(worker) && has_ended(worker));
                let quiet = last["gateway"]["running"] == 0;
                (whole && quiet && self.arenas() == pairs).then(|| last.clone())
            })
        }));
        rested.unwrap_or_else(|_| {
            let (arenas, parts) = (self.arenas(), self.running.parts());
            panic!("not at rest: {arenas} arenas for {pairs} pairs; parts {parts:?}; {last:#}")
        })
    }

    /// Landing arenas that any part of it holds or maps: each has an inode of its own.
    pub fn arenas(&self) -> usize {
        let mut inodes = BTreeMap::new();
        for (pid, _) in self.running.parts() {
            for inode in mapped_arenas(pid) {
                inodes.insert(inode, ());
            }
            for (_, inode) in held_arenas(pid) {
                inodes.insert(inode, ());
            }
        }
        inodes.len()
    }
}

/// Whether every page is free or cached, and all of the pool is there (H-10).
pub fn is_whole(worker: &Value) -> bool {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let pages = |state: &str| number(&worker["pages"][state]);
    let (pool, size) = (number(&worker["pool_tokens"]), number(&worker["page_size"]));
    pool > 0 && (pages("free") + pages("cached")) * size == pool
}

/// Whether every attempt that this worker has seen has ended here.
pub fn has_ended(worker: &Value) -> bool {
    let ended = ["finished", "rejected", "refused", "cancelled", "failed"];
    let ended = ended.map(|how| counter(worker, &format!("attempts_{how}")));
    counter(worker, "attempts_seen") == ended.iter().sum::<u64>()
}

/// A counter of a worker, or of the whole.
pub fn counter(of: &Value, name: &str) -> u64 {
    let counters = of["counters"].as_array();
    let mut counters = counters.into_iter().flatten();
    let found = counters.find(|it| it["name"] == name);
    found
        .and_then(|it| it["value"].as_u64())
        .unwrap_or_default()
}

/// Inodes of the arenas that a process maps.
pub fn mapped_arenas(pid: u32) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let arenas = maps
        .lines()
        .filter(|line| line.contains("memfd:cofferdam-arena"));
    let inode = |line: &str| line.split_whitespace().nth(4)?.parse().ok();
    arenas.filter_map(inode).collect()
}

/// Descriptors of arenas that a process holds, and their inodes.
pub fn held_arenas(pid: u32) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let arena = |path: PathBuf| {
        let target = std::fs::read_link(&path).ok()?;
        let is_arena = target.to_string_lossy().contains("memfd:cofferdam-arena");
        let inode = std::fs::metadata(&path).ok().filter(|_| is_arena)?.ino();
        Some((path, inode))
    };
    entries
        .flatten()
        .filter_map(|entry| arena(entry.path()))
        .collect()
}
