//! Real processes of the command under test. Everything that was started ends with its owner,
//! also when a test panics.

use crate::Api;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a state. Only a broken command reaches it.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How often a state is looked at that says nothing by itself.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Looks until there is something.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    look_for(PATIENCE, look).unwrap_or_else(|| panic!("never: {what}"))
}

/// The one place where a test looks again and again: at what says nothing when it becomes so.
fn look_for<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + patience;
    loop {
        let seen = look();
        if seen.is_some() || Instant::now() >= until {
            return seen;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A running command, what it said, and a directory of its own for its run-time files.
#[derive(Debug)]
pub struct Running {
    child: Child,
    said: Arc<Said>,
    directory: tempfile::TempDir,
}

/// How a command ended that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Every line of both outputs.
    pub lines: Vec<String>,
    /// What it left in its directory for run-time files.
    pub left: Vec<PathBuf>,
}

#[derive(Debug, Default)]
struct Said {
    lines: Mutex<(Vec<String>, u8)>,
    more: Condvar,
}

impl Said {
    fn lines(&self) -> std::sync::MutexGuard<'_, (Vec<String>, u8)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>, output: impl Read + Send + 'static) {
        let said = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                said.lines().0.push(line);
                said.more.notify_all();
            }
            said.lines().1 += 1;
            said.more.notify_all();
        });
    }
}

impl Running {
    /// Starts `executable` with these words, without the variables that mean something to it.
    pub fn start(executable: impl AsRef<OsStr>, words: &[impl AsRef<OsStr>]) -> Running {
        Self::start_with(executable, words, |_| {})
    }

    /// [`Running::start`] of a command that is changed before.
    pub fn start_with(
        executable: impl AsRef<OsStr>,
        words: &[impl AsRef<OsStr>],
        change: impl FnOnce(&mut Command),
    ) -> Running {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let mut command = Command::new(executable);
        let names = std::env::vars_os().map(|(name, _)| name);
        for name in names.filter(|name| name.to_string_lossy().starts_with("COFFERDAM_")) {
            command.env_remove(name);
        }
        command.env("XDG_RUNTIME_DIR", directory.path());
        command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("the command can be started");
        let said = Arc::new(Said::default());
        said.listen(child.stdout.take().expect("piped"));
        said.listen(child.stderr.take().expect("piped"));
        Running {
            child,
            said,
            directory,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it keeps what it needs while it runs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Every line so far.
    pub fn lines(&self) -> Vec<String> {
        self.said.lines().0.clone()
    }

    /// The first line from the n-th on of which `pick` makes something.
    pub fn line_from<T>(&self, from: usize, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        let mut said = self.said.lines();
        let mut next = from;
        loop {
            while let Some(line) = said.0.get(next) {
                if let Some(picked) = pick(line) {
                    return picked;
                }
                next += 1;
            }
            let left = until.saturating_duration_since(Instant::now());
            let lines = || said.0.join("\n");
            assert!(said.1 < 2, "it ended and never said {what}:\n{}", lines());
            assert!(!left.is_zero(), "it never said {what}:\n{}", lines());
            said = self
                .said
                .more
                .wait_timeout(said, left)
                .expect("no panic with the lock")
                .0;
        }
    }

    /// The address of the API, as soon as the command says that it is ready.
    pub fn api(&self) -> Api {
        let addr = self.line_from(0, "that it is ready", |line| {
            let behind = line.strip_prefix("ready: http://");
            if let Some(addr) = behind.and_then(|rest| rest.split('/').next()) {
                return Some(addr.to_owned());
            }
            ready_report(line)
        });
        Api { addr, key: None }
    }

    /// The address in the report of a part that was started by hand.
    pub fn part_addr(&self) -> String {
        self.line_from(0, "that it is ready", ready_report)
    }

    /// Processes that it has started and that still run, with the word that says what each is.
    pub fn parts(&self) -> Vec<(u32, String)> {
        children(self.pid())
    }

    /// The only running part of this kind, waiting until it is there.
    pub fn part(&self, kind: &str) -> u32 {
        wait_for(&format!("one {kind}"), || {
            let parts = self.parts();
            let mut of = parts.iter().filter(|(_, word)| word == kind);
            of.next()
                .filter(|_| of.next().is_none())
                .map(|(pid, _)| *pid)
        })
    }

    /// Sends a signal to the command.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.end()
    }

    /// Waits for its end, and for that of everything it has started.
    pub fn end(mut self) -> Ended {
        let parts = self.parts();
        let status = wait_for("its end", || {
            self.child.try_wait().expect("ours to wait for")
        });
        wait_for("the end of its parts", || {
            parts.iter().all(|(pid, _)| !runs(*pid)).then_some(())
        });
        wait_for("the end of its outputs", || {
            (self.said.lines().1 == 2).then_some(())
        });
        let left = files(self.directory.path());
        Ended {
            status,
            lines: self.lines(),
            left,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let parts = self.parts();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for (pid, _) in parts {
            let ended = || (!runs(pid)).then_some(());
            if look_for(Duration::from_secs(10), ended).is_none() {
                send(pid, Signal::KILL);
            }
        }
    }
}

/// Sends a signal to a process that a test has started.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal); // one that has ended needs none
    }
}

/// Whether the process is there and no zombie.
pub fn runs(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, state)| state != 'Z')
}

fn children(parent: u32) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").expect("there is /proc");
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let ours =
        pids.filter(|pid| stat(*pid).is_some_and(|(of, state)| of == parent && state != 'Z'));
    let mut found: Vec<(u32, String)> = ours.filter_map(|pid| Some((pid, word(pid)?))).collect();
    found.sort();
    found
}

/// The first word behind the command's name.
fn word(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let word = line.split(|byte| *byte == 0).nth(1)?;
    Some(String::from_utf8_lossy(word).into_owned())
}

/// Parent and state of a process.
fn stat(pid: u32) -> Option<(u32, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in parentheses and may have anything in it.
    let mut behind = stat.rsplit_once(") ")?.1.split(' ');
    let state = behind.next()?.chars().next()?;
    Some((behind.next()?.parse().ok()?, state))
}

fn ready_report(line: &str) -> Option<String> {
    let report: Value = serde_json::from_str(line).ok()?;
    Some(report["ready"]["addr"].as_str()?.to_owned())
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("it is ours");
    entries.flatten().map(|entry| entry.path()).collect()
}
