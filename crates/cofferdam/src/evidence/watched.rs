//! The file that `serve --require-evidence` waits for.

use super::Tested;
use crate::args::Api;
use crate::exit::Failure;
use crate::files;
use crate::oncall::CANARIES;
use ::probe::report::ProbeVerdict;
use anyhow::{Context, anyhow, ensure};
use attest::Pinned;
use gateway::api::private::{Private, WorkerLife};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of evidence that are read.
const BYTES_MAX: u64 = 1 << 20;
/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Suites without which a run is no evidence: prompts over the limit after others have filled the
/// pages (the reproduction of the incident), and canaries under load and after disconnects.
const NEEDED: [&str; 4] = ["boundary", "flood", "load", "abort"];

/// What a statement proves to have been tested.
pub(crate) fn judged(statement: &str) -> anyhow::Result<BTreeSet<WorkerLife>> {
    let value: Value = serde_json::from_str(statement).context("the statement")?;
    let run = &value["run"];
    let verdict = run["verdict"].as_str().unwrap_or("missing");
    ensure!(
        verdict == ProbeVerdict::Clean.name(),
        "its verdict is {verdict}"
    );
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
    let life = |it: super::Life| WorkerLife {
        role: it.role,
        epoch: it.epoch,
        pool_tokens: it.pool_tokens,
    };
    Ok(tested.lives.into_iter().map(life).collect())
}

/// Who may ask while a model is private: operators, and this gateway's own canaries.
pub(crate) fn operators(api: &Api) -> impl Iterator<Item = String> {
    let canaries = api.on_call.canaries.then_some(CANARIES);
    let canaries = canaries.into_iter().flatten().map(str::to_owned);
    api.operator.iter().cloned().chain(canaries)
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
            private: Arc::new(Private::new(operators(api))),
            file: file.clone(),
            pinned: Pinned::load(key).map_err(Failure::usage)?,
        }))
    }

    /// Looks at the file again and again, until it is dropped; `proved` hears of what was tested.
    pub(crate) async fn watch<T>(self, proved: impl Fn(&BTreeSet<WorkerLife>)) -> T {
        let mut every = tokio::time::interval(LOOK_EVERY);
        let mut last = None;
        loop {
            every.tick().await;
            let read = self.read();
            if last.as_ref() != Some(&read) {
                match &read {
                    Ok(lives) => {
                        tracing::info!("evidence about {} workers", lives.len());
                        proved(lives);
                    }
                    Err(why) => tracing::warn!("the model is private: {why}"),
                }
                self.private.set(read.clone());
                last = Some(read);
            }
        }
    }

    fn read(&self) -> Result<BTreeSet<WorkerLife>, String> {
        let read = || -> anyhow::Result<BTreeSet<WorkerLife>> {
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
    use serde_json::json;

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
