//! Which format a log is of: said by a mapping, by the name of a preset, or by its first lines.

use super::lines;
use crate::exit::Failure;
use ::watch::fields::{Fields, Line};
use ::watch::preset::Preset;
use anyhow::{Context, anyhow};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Lines at the beginning of a log in which its format is looked for.
const FIRST_LINES: usize = 2000;

/// How lines are read.
pub(super) enum Format {
    /// By a mapping, or by that of our own log.
    Fields(Box<Fields>),
    /// By a preset.
    Preset(&'static Preset),
}

impl Format {
    pub(super) fn lines(&self, line: &str) -> Vec<Line> {
        match self {
            Self::Fields(fields) => vec![fields.line(line)],
            Self::Preset(preset) => preset.lines(line),
        }
    }

    pub(super) fn preset(&self) -> Option<&'static Preset> {
        match self {
            Self::Fields(_) => None,
            Self::Preset(it) => Some(it),
        }
    }

    /// What no line of it says.
    pub(super) fn lacks(&self) -> Option<String> {
        self.preset()?.lacks.clone()
    }

    /// What a flag or a file says; otherwise what the first lines of the logs say, otherwise our own.
    pub(super) fn new(
        named: Option<&str>,
        fields: Option<Fields>,
        logs: &[PathBuf],
    ) -> Result<Format, Failure> {
        match (named, fields) {
            (Some(_), Some(_)) => Err(Failure::usage(anyhow!(
                "--preset and [fields] of --config both say where the figures stand: leave out one"
            ))),
            (Some(name), None) => Preset::named(name).map(Self::Preset).ok_or_else(|| {
                let names: Vec<_> = Preset::all().iter().map(|it| it.name).collect();
                let names = names.join(", ");
                Failure::usage(anyhow!("--preset {name}: there is none; there are {names}"))
            }),
            (None, Some(fields)) => Ok(Self::Fields(Box::new(fields))),
            (None, None) => found(logs).map_err(Failure::usage),
        }
    }
}

fn found(logs: &[PathBuf]) -> anyhow::Result<Format> {
    let own = Fields::default();
    let mut names = BTreeSet::new();
    for path in logs.iter().filter(|it| it.as_path() != Path::new("-")) {
        let Ok(file) = File::open(path) else {
            continue; // whoever reads it says so
        };
        let mut at = 0;
        let done = lines::each_while(lines::unpacked(file)?, |line| {
            at += 1;
            if let Ok(line) = std::str::from_utf8(line) {
                match own.line(line) {
                    Line::Request(_) => at = FIRST_LINES,
                    _ => names.extend(Preset::of_line(line).map(|it| it.name)),
                }
            }
            at < FIRST_LINES
        });
        done.with_context(|| format!("--log {}", path.display()))?;
    }
    let mut names = names.into_iter();
    match (names.next().and_then(Preset::named), names.next()) {
        (None, _) => Ok(Format::Fields(Box::new(own))),
        (Some(it), None) => Ok(Format::Preset(it)),
        (Some(it), Some(other)) => Err(anyhow!(
            "the first {FIRST_LINES} lines of the log are of several formats, {} and {other}: say which with \
             --preset",
            it.name
        )),
    }
}
