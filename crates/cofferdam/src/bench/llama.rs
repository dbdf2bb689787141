//! llama.cpp beside us: a Python process that does what it is told, in turn with us.

use super::figures::Sample;
use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const SCRIPT: &str = include_str!("llama.py");
/// Bytes of one line of its answers.
const LINE_MAX: u64 = 64 << 10;

pub(super) struct Llama {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// What is measured, in its own words.
    pub(super) about: String,
}

#[derive(Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Order<'a> {
    Open {
        sequences: u16,
        /// Tokens that each sequence may come to.
        room: u32,
        threads: u16,
        tokens: &'a [u32],
    },
    Prefill {
        tokens: &'a [u32],
    },
    Decode {
        tokens: &'a [u32],
    },
    Close,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    missing: Option<String>,
    version: String,
    system: String,
    wall: f64,
    cpu: f64,
}

impl Llama {
    /// Starts it on these weights; the error says why there is none.
    pub(super) fn start(python: &str, weights: &Path, plain: bool) -> anyhow::Result<Self> {
        let buffers = if plain { "plain" } else { "repacked" };
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .args([weights.as_os_str(), buffers.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("--beside {python}"))?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(orders), Some(answers)) = (orders, answers) else {
            bail!("no pipes to {python}");
        };
        let mut started = Self {
            child,
            orders,
            answers: BufReader::new(answers),
            about: String::new(),
        };
        let said = started.answer()?;
        if let Some(why) = said.missing {
            bail!("{python}: {why} (pip install llama-cpp-python)");
        }
        let (version, system) = (said.version, said.system.trim().to_owned());
        started.about = format!("llama-cpp-python {version}, {buffers} buffers: {system}");
        Ok(started)
    }

    pub(super) fn open(
        &mut self,
        sequences: u16,
        room: u32,
        threads: u16,
        tokens: &[u32],
    ) -> anyhow::Result<()> {
        let order = Order::Open {
            sequences,
            room,
            threads,
            tokens,
        };
        self.ask(&order).map(drop)
    }

    pub(super) fn prefill(&mut self, tokens: &[u32]) -> anyhow::Result<Sample> {
        let said = self.ask(&Order::Prefill { tokens })?;
        Ok(said.sample(tokens.len() as u32))
    }

    pub(super) fn decode(&mut self, tokens: &[u32], sequences: u16) -> anyhow::Result<Sample> {
        let said = self.ask(&Order::Decode { tokens })?;
        Ok(said.sample(tokens.len() as u32 * u32::from(sequences)))
    }

    pub(super) fn close(&mut self) -> anyhow::Result<()> {
        self.ask(&Order::Close).map(drop)
    }

    fn ask(&mut self, order: &Order) -> anyhow::Result<Answer> {
        let line = serde_json::to_string(order)?;
        let sent = writeln!(self.orders, "{line}").and_then(|()| self.orders.flush());
        sent.map_err(|_| self.gone())?;
        self.answer()
    }

    fn answer(&mut self) -> anyhow::Result<Answer> {
        let mut line = String::new();
        let read = (&mut self.answers).take(LINE_MAX).read_line(&mut line)?;
        match read {
            0 => Err(self.gone()),
            _ => serde_json::from_str(&line).with_context(|| format!("llama.cpp says {line:?}")),
        }
    }

    fn gone(&mut self) -> anyhow::Error {
        let how = self.child.wait();
        let how = how.map_or_else(|error| error.to_string(), |status| status.to_string());
        anyhow!("llama.cpp ended: {how} (if by SIGILL or SIGSEGV: --plain-buffers)")
    }
}

impl Answer {
    fn sample(&self, tokens: u32) -> Sample {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Sample::new(tokens, time(self.wall), time(self.cpu))
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
