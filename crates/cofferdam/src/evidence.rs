//! Evidence that what runs was tested: written by `probe`, required by `serve`.
//!
//! It is about *lives* of workers. A restart, another pool or another version is another system,
//! about which it says nothing.

use crate::args::Api;
use crate::exit::Failure;
use crate::files;
use ::probe::report::{self, Report, Verdict};
use anyhow::{Context, anyhow, ensure};
use control::evidence::{Pinned, Signer};
use gateway::api::private::{Life, Private};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of evidence that are read.
const BYTES_MAX: u64 = 1 << 20;
/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Suites without which a run is no evidence: prompts over the limit after others have filled the
/// pages (the reproduction of the incident), and canaries under load and after disconnects.
const NEEDED: [&str; 4] = ["boundary", "flood", "load", "abort"];

/// What a run was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tested {
    version: String,
    lives: BTreeSet<Life>,
}

impl Tested {
    /// Of `/server_info`, or of a statement, which has the same fields.
    pub(crate) fn of(info: &Value) -> Option<Tested> {
        let life = |it: &Value| {
            Some(Life {
                role: it["role"].as_str()?.to_owned(),
                epoch: it["epoch"].as_str()?.to_owned(),
                pool_tokens: it["pool_tokens"].as_u64()?,
            })
        };
        let workers = info["workers"].as_array().filter(|it| !it.is_empty())?;
        Some(Tested {
            version: info["version"].as_str()?.to_owned(),
            lives: workers.iter().map(life).collect::<Option<_>>()?,
        })
    }
}

/// What `probe --evidence-out` writes.
pub(crate) fn signed(
    signer: &Signer,
    report: &Report,
    (before, after): (Option<Tested>, Option<Tested>),
) -> Result<String, Failure> {
    let tested = match (before, after) {
        (Some(before), Some(after)) if before == after => before,
        (Some(_), Some(_)) => {
            let why = "workers were replaced while the probe ran: no evidence about either";
            return Err(Failure::unreachable(anyhow!(why)));
        }
        _ => {
            let why = "the server does not name its workers (GET /server_info): there is nothing \
                       that evidence could be about";
            return Err(Failure::unreachable(anyhow!(why)));
        }
    };
    let lives = tested
        .lives
        .iter()
        .map(|it| json!({"role": it.role, "epoch": it.epoch, "pool_tokens": it.pool_tokens}));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut whole = report::json(report);
    // The findings of a run that convicts are in its report.
    if let Some(fields) = whole.as_object_mut() {
        fields.remove("findings");
    }
    let statement = json!({
        "at_unix_s": now.map_or(0, |it| it.as_secs()),
        "version": tested.version,
        "workers": lives.collect::<Vec<_>>(),
        "run": whole,
    });
    let signed = signer.sign(&statement.to_string());
    signed.map_err(Failure::found)
}

/// What a statement proves to have been tested.
fn judged(statement: &str) -> anyhow::Result<BTreeSet<Life>> {
    let value: Value = serde_json::from_str(statement).context("the statement")?;
    let run = &value["run"];
    let verdict = run["verdict"].as_str().unwrap_or("missing");
    ensure!(verdict == Verdict::Clean.name(), "its verdict is {verdict}");
    let suites = run["suites"].as_array().into_iter().flatten();
    let ended: BTreeSet<_> = suites.filter_map(|it| it["suite"].as_str()).collect();
    for suite in NEEDED {
        ensure!(ended.contains(suite), "suite {suite} was not run");
    }
    let tested = Tested::of(&value).context("it names no workers")?;
    let ours = env!("CARGO_PKG_VERSION");
    ensure!(
        tested.version == ours,
        "it is about version {}, this is {ours}",
        tested.version
    );
    Ok(tested.lives)
}

/// The file of `--require-evidence`, and what it keeps private.
pub(crate) struct Watched {
    pub(crate) private: Arc<Private>,
    file: PathBuf,
    pinned: Pinned,
}

impl Watched {
    /// None if no evidence is required.
    pub(crate) fn new(api: &Api) -> Result<Option<Watched>, Failure> {
        let Some(file) = &api.require_evidence else {
            return Ok(None);
        };
        let key = api.evidence_pub.as_deref();
        let key = key.ok_or_else(|| Failure::usage(anyhow!("--evidence-pub is missing")))?;
        Ok(Some(Watched {
            private: Arc::new(Private::new(api.operator.iter().cloned())),
            file: file.clone(),
            pinned: Pinned::load(key).map_err(Failure::usage)?,
        }))
    }

    /// Looks at the file again and again, until it is dropped.
    pub(crate) async fn watch<T>(self) -> T {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut last = None;
        loop {
            every.tick().await;
            let read = self.read();
            if last.as_ref() != Some(&read) {
                match &read {
                    Ok(lives) => tracing::info!("evidence about {} workers", lives.len()),
                    Err(why) => tracing::warn!("the model is private: {why}"),
                }
                self.private.set(read.clone());
                last = Some(read);
            }
        }
    }

    fn read(&self) -> Result<BTreeSet<Life>, String> {
        let read = || -> anyhow::Result<BTreeSet<Life>> {
            let text = files::read(&self.file, BYTES_MAX)?;
            judged(self.pinned.verify(&text)?)
        };
        let named = || self.file.display().to_string();
        read().with_context(named).map_err(|it| format!("{it:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement() -> Value {
        let suites = ["load", "flood", "boundary", "abort", "prefix"];
        let suites = suites.map(|it| json!({"suite": it}));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "workers": [{"role": "decode", "epoch": "aa", "pool_tokens": 640}],
            "run": {"verdict": "clean", "suites": suites},
        })
    }

    #[test]
    fn a_clean_run_of_all_that_is_needed_proves_something() {
        let lives = judged(&statement().to_string()).unwrap();
        assert_eq!(lives.len(), 1);
        assert!(
            lives
                .iter()
                .all(|it| it.epoch == "aa" && it.pool_tokens == 640)
        );
    }

    #[test]
    fn anything_less_proves_nothing() {
        let wrong = |pointer: &str, value: Value| {
            let mut statement = statement();
            *statement.pointer_mut(pointer).unwrap() = value;
            judged(&statement.to_string()).unwrap_err().to_string()
        };
        assert_eq!(
            wrong("/run/verdict", json!("found")),
            "its verdict is found"
        );
        assert_eq!(
            wrong("/run/suites/1/suite", json!("retry")),
            "suite flood was not run"
        );
        assert!(wrong("/version", json!("0.0.9")).contains("it is about version 0.0.9"));
        assert_eq!(wrong("/workers", json!([])), "it names no workers");
        assert_eq!(wrong("/workers/0/epoch", json!(7)), "it names no workers");
    }
}
