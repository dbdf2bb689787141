//! What workers and gateway wrote down: who had which page before whom (`wire::trace::OwnersLog`, or a
//! guard that writes the same lines).

use crate::watch::lines;
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Files that are read.
const FILES_MAX: usize = 4096;
/// Lines of them all.
const LINES_MAX: u64 = 16 << 20;

/// One life of one worker, as far as its files say.
#[derive(Debug, Default)]
pub struct Life {
    /// `prefill`, `decode`, `unified`.
    pub role: String,
    /// From when on its files say everything.
    pub since: f64,
    /// Whether that is its beginning; otherwise older lines were written over.
    pub whole: bool,
    /// Lines that could not be written.
    pub lost: u64,
    /// What was taken, in order.
    pub takes: Vec<Take>,
    by_owner: HashMap<String, Vec<usize>>,
}

/// An owner has got pages.
#[derive(Debug)]
pub struct Take {
    /// When.
    pub time: f64,
    /// Who.
    pub owner: String,
    /// Pages, by who had them before.
    pub from: BTreeMap<String, Vec<u64>>,
}

impl Life {
    /// What this owner took.
    pub fn takes_of(&self, owner: &str) -> impl Iterator<Item = &Take> {
        let at = self.by_owner.get(owner).into_iter().flatten();
        at.map(|at| &self.takes[*at])
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Owners {
    /// By epoch.
    pub lives: BTreeMap<String, Life>,
    /// Attempts of each engine's request, and the other way round.
    attempts: HashMap<String, Vec<String>>,
    requests: HashMap<String, String>,
    /// Lines that are cut (the worker was killed) or not what they should be.
    pub bad: u64,
    lines: u64,
}

impl Owners {
    /// Reads files, and those in directories.
    ///
    /// # Errors
    /// One cannot be read, or there is none.
    pub fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            let named = || format!("--owners {}", path.display());
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            for entry in path.read_dir().with_context(named)? {
                let file = entry.with_context(named)?.path();
                let name = file
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                if name.ends_with(".owners") || name.ends_with(".owners.1") {
                    files.push(file);
                }
                ensure!(
                    files.len() <= FILES_MAX,
                    "{}: more than {FILES_MAX} files",
                    named()
                );
            }
        }
        ensure!(!files.is_empty(), "--owners: no file *.owners in {paths:?}");
        // The older half of a life first.
        files.sort_by_key(|it| (it.with_extension("1") != *it, it.clone()));
        let mut it = Self::default();
        for file in files {
            it.file(&file)
                .with_context(|| format!("--owners {}", file.display()))?;
        }
        for life in it.lives.values_mut() {
            for (at, take) in life.takes.iter().enumerate() {
                life.by_owner
                    .entry(take.owner.clone())
                    .or_default()
                    .push(at);
            }
        }
        Ok(it)
    }

    fn file(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut epoch = None;
        let mut wrong = None;
        lines::each_while(lines::unpacked(File::open(path)?)?, |line| {
            self.lines += 1;
            let line: Option<Value> = serde_json::from_slice(line).ok();
            match (line, &epoch) {
                (Some(first), None) => match self.first(&first) {
                    Some(of) => epoch = Some(of),
                    None => wrong = Some("its first line is not that of a file of owners"),
                },
                (None, None) => wrong = Some("its first line is no JSON"),
                (Some(line), Some(of)) => self.line(&line, of),
                (None, Some(_)) => self.bad += 1,
            }
            if self.lines > LINES_MAX {
                wrong = Some(
                    "too many lines of all files together: name those of the lives in question",
                );
            }
            wrong.is_none()
        })?;
        match wrong {
            Some(wrong) => bail!("{wrong}"),
            None => Ok(()),
        }
    }

    fn first(&mut self, line: &Value) -> Option<String> {
        let epoch = line["epoch"]
            .as_str()
            .filter(|_| line["owners"] == 1)?
            .to_owned();
        let since = line["since_unix_s"].as_f64()?;
        let whole = line["from_the_beginning"].as_bool()?;
        let life = self.lives.entry(epoch.clone()).or_default();
        if life.role.is_empty() {
            life.role = line["role"].as_str()?.to_owned();
            (life.since, life.whole) = (since, whole);
        }
        Some(epoch)
    }

    fn line(&mut self, line: &Value, epoch: &str) {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let life = self.lives.entry(epoch.to_owned()).or_default();
        life.lost += line["lost_lines"].as_u64().unwrap_or(0);
        let Some(from) = line.get("from") else {
            match (text("attempt"), text("request")) {
                (Some(attempt), Some(request)) => {
                    self.attempts
                        .entry(request.clone())
                        .or_default()
                        .push(attempt.clone());
                    self.requests.insert(attempt, request);
                }
                _ => self.bad += 1,
            }
            return;
        };
        let pages = |it: &Value| {
            it.as_array()
                .map(|it| it.iter().filter_map(Value::as_u64).collect())
        };
        let from = from.as_object().map(|from| {
            let each = from
                .iter()
                .filter_map(|(owner, it)| Some((owner.clone(), pages(it)?)));
            each.collect()
        });
        match (
            text("attempt").or(text("request")),
            from,
            line["time_unix_s"].as_f64(),
        ) {
            (Some(owner), Some(from), Some(time)) => life.takes.push(Take { time, owner, from }),
            _ => self.bad += 1,
        }
    }

    /// The attempts at a request of an engine.
    pub fn attempts(&self, request: &str) -> &[String] {
        self.attempts.get(request).map_or(&[], Vec::as_slice)
    }

    /// The engine's request that an owner belongs to; itself where it is one.
    pub fn request<'a>(&'a self, owner: &'a str) -> &'a str {
        self.requests.get(owner).map_or(owner, String::as_str)
    }
}
