//! Who received something: the lines of `watch`.

use crate::watch::lines;
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead};
use std::path::Path;

/// Requests that are looked at.
const RECEIVED_MAX: usize = 1 << 20;

/// Requests that received something, each once, in the order in which they were said.
#[derive(Debug, Default)]
pub struct Received {
    /// Their ids.
    pub requests: Vec<String>,
    /// Why `watch` could not tell, if it could not: then there may be more of them.
    pub could_not_tell: Option<String>,
    known: BTreeSet<String>,
}

impl Received {
    /// Those of a file, and those that were named.
    ///
    /// # Errors
    /// The file cannot be read, or is not what `watch` prints.
    pub fn read(path: Option<&Path>, named: &[String]) -> anyhow::Result<Self> {
        let mut it = Self::default();
        for id in named {
            it.add(id)?;
        }
        let Some(path) = path else {
            return Ok(it);
        };
        let log: Box<dyn BufRead> = match path == Path::new("-") {
            true => Box::new(io::stdin().lock()),
            false => {
                let open = || lines::unpacked(File::open(path)?);
                open().with_context(|| format!("--received {}", path.display()))?
            }
        };
        let (mut at, mut said, mut wrong) = (0_u64, 0_u64, None);
        let done = lines::each_while(log, |line| {
            at += 1;
            if line.trim_ascii().is_empty() {
                return true;
            }
            said += 1;
            wrong = it
                .line(line)
                .err()
                .map(|error| format!("line {at}: {error}"));
            wrong.is_none()
        });
        done.with_context(|| format!("--received {}", path.display()))?;
        if let Some(wrong) = wrong {
            bail!("--received {}, {wrong}", path.display());
        }
        if said == 0 {
            bail!(
                "--received {}: empty, and watch always says something",
                path.display()
            );
        }
        Ok(it)
    }

    fn line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let line: Value = serde_json::from_slice(line)
            .context("no JSON: it must be what watch --format json or watch --follow printed")?;
        if let Some(summary) = line.get("summary") {
            if summary["verdict"] == "could_not_tell" {
                self.could_not_tell = Some(format!("watch could not tell: {}", summary["why_not"]));
            }
            return Ok(());
        }
        match line["event"].as_str() {
            Some("could_not_tell") => {
                self.could_not_tell = Some(format!("watch could not tell: {}", line["says"]));
                return Ok(());
            }
            Some("cannot_be_right" | "suspected") | None => {}
            Some(_) => return Ok(()),
        }
        if line["of_test"] == true {
            return Ok(());
        }
        match line["request"].as_str() {
            Some(id) if !id.is_empty() => self.add(id),
            _ => bail!("no id of a request: name `id` in the mapping that watch read the log with"),
        }
    }

    fn add(&mut self, id: &str) -> anyhow::Result<()> {
        if self.known.insert(id.to_owned()) {
            self.requests.push(id.to_owned());
        }
        if self.requests.len() > RECEIVED_MAX {
            bail!("more than {RECEIVED_MAX} requests: take a shorter time");
        }
        Ok(())
    }
}
