//! One life of one part: a child process, its two outputs, its end.
//!
//! Standard input of the child is the **parent pipe**: nothing is ever written to it; it closes
//! when this process ends, however it ends, and then the child ends too ([`crate::lifeline`]).

use super::report::{LINE_BYTES_MAX, Report};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::sync::mpsc;

/// What a process that has ended may still have in its pipes is read for so long; longer only
/// if a process of its own holds them open.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// What a life says.
#[derive(Debug)]
pub(super) enum Happened {
    /// A report on its standard output.
    Report(Report),
    /// Any other line, of either output.
    Line(String),
    /// It has ended and is reaped; the last that is heard.
    Exited(String),
}

/// Who says what: index of the part, its life, and what happened.
pub(super) type Message = (usize, u64, Happened);

/// A running life. Dropped, it is killed.
pub(super) struct Life {
    signals: mpsc::UnboundedSender<Signal>,
}

impl Life {
    /// Starts `command` in a process group of its own, so that Ctrl-C on the terminal reaches
    /// only the supervisor, which then ends the parts in order.
    pub(super) fn start(
        part: usize,
        life: u64,
        mut command: std::process::Command,
        messages: mpsc::Sender<Message>,
    ) -> std::io::Result<Life> {
        command
            .env_remove(crate::notify::VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let (signals, asked) = mpsc::unbounded_channel();
        tokio::spawn(live(part, life, child, asked, messages));
        Ok(Life { signals })
    }

    /// Sends a signal, unless the process is reaped already.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = self.signals.send(signal); // the other end is gone with the process
    }
}

async fn live(
    part: usize,
    life: u64,
    mut child: Child,
    mut signals: mpsc::UnboundedReceiver<Signal>,
    messages: mpsc::Sender<Message>,
) {
    // Taken out, because waiting would close it.
    let parent_pipe = child.stdin.take();
    let (out, err) = (
        child.stdout.take().expect("piped"),
        child.stderr.take().expect("piped"),
    );
    let said = messages.clone();
    let mut outputs = tokio::spawn(async move {
        let report = |line: String| match Report::parse(&line) {
            Some(report) => Happened::Report(report),
            None => Happened::Line(line),
        };
        tokio::join!(
            forward(out, part, life, report, said.clone()),
            forward(err, part, life, Happened::Line, said.clone()),
        );
    });
    let ended = loop {
        tokio::select! {
            ended = child.wait() => break ended,
            signal = signals.recv() => match signal {
                // Not reaped yet, so the number cannot name another process.
                Some(signal) => send(&child, signal),
                None => send(&child, Signal::KILL),
            },
        }
    };
    drop(parent_pipe);
    if tokio::time::timeout(LAST_WORDS_MAX, &mut outputs)
        .await
        .is_err()
    {
        outputs.abort();
    }
    let how = ended.map_or_else(|error| format!("cannot wait: {error}"), describe);
    let _ = messages.send((part, life, Happened::Exited(how))).await;
}

fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal); // fails only if it has ended: wait() says so next
    }
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

/// Sends every line of `stream` on; what is behind [`LINE_BYTES_MAX`] of a line is cut.
async fn forward(
    stream: impl AsyncRead + Unpin,
    part: usize,
    life: u64,
    kind: impl Fn(String) -> Happened,
    messages: mpsc::Sender<Message>,
) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        let Ok(bytes) = stream.fill_buf().await else {
            return;
        };
        let (used, complete) = match bytes.iter().position(|&byte| byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (bytes.len(), bytes.is_empty() && !line.is_empty()),
        };
        if bytes.is_empty() && !complete {
            return;
        }
        let room = LINE_BYTES_MAX - line.len();
        line.extend_from_slice(&bytes[..used.min(room)]);
        stream.consume(used);
        if complete {
            let text = String::from_utf8_lossy(&line)
                .trim_end_matches(['\n', '\r'])
                .to_owned();
            line.clear();
            if messages.send((part, life, kind(text))).await.is_err() {
                return;
            }
        }
    }
}
