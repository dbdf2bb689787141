//! A log that has ended: read once to learn, and once more to convict.

use super::args::{Format, Watch as Args};
use super::lines::{self, Read};
use super::memory::{self, Position};
use super::names::Names;
use super::{Plan, report};
use crate::exit::{Exit, Failure};
use crate::files;
use ::watch::Detector;
use ::watch::fields::Line;
use ::watch::forensics::Findings;
use ::watch::joined::Joined;
use ::watch::plot::{self, Scatter};
use ::watch::sight;
use ::watch::{Anomaly, Notice, Request};
use anyhow::{Context, anyhow};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Notices that are kept for the report.
const NOTICES_MAX: usize = 1000;

/// What two readings found.
pub(super) struct Found {
    /// The preset that the log was read with.
    pub format: Option<&'static ::watch::Preset>,
    pub watch: Detector,
    pub read: Read,
    pub findings: Findings,
    /// Why a silence of this log says nothing; empty if it does.
    pub blind: Vec<String>,
    /// What settings name and no request has.
    pub unmatched: Vec<String>,
    /// What was said about a series, at which time.
    pub notices: Vec<(f64, String, Notice)>,
    pub plots: BTreeMap<::watch::Key, Scatter>,
}

pub(super) fn run(args: &Args, plan: Plan) -> Result<Exit, Failure> {
    let logs = Logs::new(&args.log)?;
    let mut found = Found {
        format: plan.format.preset(),
        watch: memory::load(&plan, args.state.as_deref())?.1,
        read: Read::default(),
        findings: Findings::default(),
        blind: Vec::new(),
        unmatched: Vec::new(),
        notices: Vec::new(),
        plots: BTreeMap::new(),
    };
    progress("learning");
    let mut names = Names::default();
    let mut joined = Joined::default();
    found.read = logs.requests(&plan, |request| {
        names.add(&request);
        joined.learn(&request);
        let seen = found.watch.see(&request);
        let room = NOTICES_MAX - found.notices.len();
        let named = |it| {
            (
                request.time,
                format!("{} {}", request.model, request.worker),
                it,
            )
        };
        found
            .notices
            .extend(seen.notices.into_iter().map(named).take(room));
    })?;
    if let Some(why) = found.read.nothing_kept(&plan.format) {
        return Err(Failure::usage(anyhow!(why)));
    }
    found.unmatched = names.unmatched(&plan.settings);
    if let Some(path) = &args.state {
        memory::keep(path, Position::default(), &found.watch)?;
    }
    found.watch.series().for_each(|(_, it)| it.refresh());
    progress("judging");
    let tolerance = found.watch.settings().tolerance;
    logs.requests(&plan, |mut request| {
        joined.complete(&mut request);
        let judged = found.watch.judge(&request);
        let fast = |it: &Anomaly| matches!(it, Anomaly::TooFast { .. });
        let fast = judged.signals.iter().any(fast);
        let key = ::watch::Key::of(&request);
        let plot = found.plots.entry(key);
        plot.or_insert_with(|| Scatter::new(tolerance))
            .add(&request, fast);
        let test = found
            .watch
            .settings()
            .test_tenants
            .contains(&request.tenant);
        found.findings.add(&request, judged, test);
    })?;
    found.blind = sight::blind(&mut found.watch, &found.findings);
    if joined.left_out > 0 {
        let n = joined.left_out;
        found.blind.push(format!(
            "{n} lines of pairs were not compared with the other side's: read fewer days at once"
        ));
    }
    if found.findings.compared == 0 && !found.blind.is_empty() {
        found.blind.extend(plan.format.lacks());
    }
    found.plots.retain(|_, it| !it.is_empty());
    for (key, plot) in &mut found.plots {
        plot.floor_of(&mut found.watch, key);
    }
    write(args, &mut found)
}

fn write(args: &Args, found: &mut Found) -> Result<Exit, Failure> {
    let text = report::table(found);
    if let Some(path) = &args.plot {
        draw(path, found, &text)?;
    }
    match args.format {
        Format::Table => files::say(&text)?,
        Format::Json => files::say(&report::json(found))?,
    };
    Ok(exit(found))
}

/// Found something; could not tell; nothing.
pub(super) fn exit(found: &Found) -> Exit {
    match found {
        found if found.findings.certain() > 0 => Exit::Found,
        found if found.read.is_doubtful() || !found.blind.is_empty() => Exit::Unreachable,
        _ => Exit::Good,
    }
}

fn draw(path: &Path, found: &Found, text: &str) -> Result<(), Failure> {
    let title = |key: &::watch::Key| format!("{} {}", key.model, key.worker);
    let mut drawings = found.plots.iter();
    let drawn = match path.extension().and_then(|it| it.to_str()) {
        Some("svg") => drawings
            .next()
            .and_then(|(key, it)| plot::svg(it, title(key).trim())),
        Some("html") => {
            let drawings = drawings.filter_map(|(key, it)| plot::svg(it, title(key).trim()));
            let drawings: Vec<_> = drawings.collect();
            Some(plot::page("Too fast to be true?", text, &drawings))
        }
        _ => {
            let wrong = anyhow!("--plot {}: .svg or .html", path.display());
            return Err(Failure::usage(wrong));
        }
    };
    match drawn {
        Some(drawn) => files::replace(path, &drawn),
        None => Err(Failure::unreachable(anyhow!(
            "--plot: no request of the log has a time to draw"
        ))),
    }
}

/// On a terminal: what is going on.
fn progress(what: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{what}...");
    }
}

/// Logs that can be read twice: standard input is kept in a temporary file.
struct Logs<'a> {
    paths: Vec<(&'a Path, Option<NamedTempFile>)>,
}

impl Logs<'_> {
    fn new(paths: &[PathBuf]) -> Result<Logs<'_>, Failure> {
        let open = |path: &PathBuf| -> anyhow::Result<Option<NamedTempFile>> {
            if path != Path::new("-") {
                File::open(path)?;
                return Ok(None);
            }
            let mut file = NamedTempFile::new()?;
            io::copy(&mut io::stdin().lock(), &mut file)?;
            Ok(Some(file))
        };
        let logs = paths.iter().map(|path| {
            let opened = open(path).with_context(|| format!("--log {}", path.display()));
            opened
                .map(|it| (path.as_path(), it))
                .map_err(Failure::usage)
        });
        Ok(Logs {
            paths: logs.collect::<Result<_, _>>()?,
        })
    }

    fn requests(&self, plan: &Plan, mut each: impl FnMut(Request)) -> Result<Read, Failure> {
        let mut all = Read::default();
        for (path, kept) in &self.paths {
            let name = path.display().to_string();
            let mut read = Read::default();
            let file = File::open(kept.as_ref().map_or(*path, |it| it.path()));
            let done = file.and_then(|file| {
                lines::each(lines::unpacked(file)?, |line| {
                    for line in read.line(&plan.format, &name, line) {
                        if let Line::Request(request) = line {
                            each(*request);
                        }
                    }
                })
            });
            done.with_context(|| format!("--log {name}"))
                .map_err(Failure::usage)?;
            all.add(read);
        }
        Ok(all)
    }
}
