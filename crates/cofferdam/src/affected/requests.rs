//! The gateway's access log: which request an engine's id belongs to, and whose it was.

use crate::watch::lines;
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

/// Requests that are remembered: some 500 MB.
const REQUESTS_MAX: usize = 2 << 20;

/// A request of the log.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The gateway's id.
    pub id: String,
    /// Who asked.
    pub tenant: Option<String>,
    /// When it ended.
    pub ended: f64,
    /// When it began.
    pub began: f64,
    /// Ids of the engine, one for each prompt.
    pub engine: Vec<String>,
    /// Lives of the workers that computed it.
    pub lives: Vec<String>,
}

/// Requests of access logs.
#[derive(Debug, Default)]
pub struct Requests {
    all: Vec<Request>,
    by_id: HashMap<String, usize>,
    by_engine: HashMap<String, usize>,
}

impl Requests {
    /// Reads logs.
    ///
    /// # Errors
    /// One cannot be read, or has no such requests, or too many.
    pub fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut it = Self::default();
        for path in paths {
            let name = || format!("--log {}", path.display());
            let log = File::open(path)
                .and_then(lines::unpacked)
                .with_context(name)?;
            let (mut said, mut bad) = (0_u64, 0_u64);
            let done = lines::each_while(log, |line| {
                said += u64::from(!line.trim_ascii().is_empty());
                match serde_json::from_slice(line) {
                    Ok(line) => it.line(&line),
                    Err(_) => bad += u64::from(!line.trim_ascii().is_empty()),
                }
                it.all.len() <= REQUESTS_MAX
            });
            done.with_context(name)?;
            if it.all.len() > REQUESTS_MAX {
                bail!(
                    "{}: more than {REQUESTS_MAX} requests: take a shorter time",
                    name()
                );
            }
            if bad * 100 > said {
                bail!(
                    "{}: {bad} of {said} lines are no JSON; it must be the gateway's access log",
                    name()
                );
            }
        }
        if it.all.is_empty() {
            bail!(
                "--log: no request with `request` and `engine_request` in it, as the gateway's access log has"
            );
        }
        Ok(it)
    }

    fn line(&mut self, line: &Value) {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let (Some(id), Some(engine)) = (text("request"), text("engine_request")) else {
            return; // nothing was computed of it
        };
        let ended = line["time_unix_s"].as_f64().unwrap_or(0.0);
        let request = Request {
            tenant: text("tenant"),
            ended,
            began: ended - line["duration_ms"].as_f64().unwrap_or(0.0) / 1e3,
            engine: engine.split(' ').map(str::to_owned).collect(),
            lives: ["prefill_epoch", "decode_epoch"]
                .into_iter()
                .filter_map(text)
                .filter(|it| !it.is_empty())
                .collect(),
            id,
        };
        let at = self.all.len();
        self.by_id.insert(request.id.clone(), at);
        for engine in &request.engine {
            self.by_engine.insert(engine.clone(), at);
        }
        self.all.push(request);
    }

    /// The request of this id.
    pub fn of_id(&self, id: &str) -> Option<&Request> {
        self.by_id.get(id).map(|at| &self.all[*at])
    }

    /// The request that the engine calls this.
    pub fn of_engine(&self, id: &str) -> Option<&Request> {
        self.by_engine.get(id).map(|at| &self.all[*at])
    }
}
