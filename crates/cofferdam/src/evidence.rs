//! Evidence that what runs was tested: written by `probe`, required by `serve`.
//!
//! It is about *lives* of workers. A restart, another pool or another version is another system,
//! about which it says nothing.

#[cfg(feature = "engine")]
mod watched;

use crate::exit::Failure;
use ::probe::report::{self, ProbeReport};
use anyhow::anyhow;
use attest::Signer;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(feature = "engine")]
pub(crate) use watched::{Watched, judged, operators};

/// One life of a worker, with the pool that it has measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Life {
    role: String,
    epoch: String,
    pool_tokens: u64,
}

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
    report: &ProbeReport,
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
