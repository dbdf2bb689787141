//! The figures as tables, in Markdown, which is readable on a terminal too.

use super::Measured;
use super::figures::{Median, Row, Times, What};
use gate::date::Date;
use model::Isa;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Whose figures these are.
#[derive(Serialize)]
pub(super) struct About {
    version: &'static str,
    date: Date,
    model: String,
    bytes: u64,
    machine: String,
    cores: usize,
    isa: String,
    pub(super) beside: String,
    /// Processes that ran or waited for a core, of the last minute, at the beginning and at the end.
    load: [f64; 2],
}

impl About {
    pub(super) fn new(weights: &Path, isa: Isa) -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpus.lines().find(|line| line.starts_with("model name"));
        let name = name.and_then(|line| line.split_once(':'));
        let name = name.map_or("unknown processor", |(_, name)| name.trim());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            date: Date::today(),
            model: weights
                .file_name()
                .map_or_else(String::new, |it| it.to_string_lossy().into_owned()),
            bytes: std::fs::metadata(weights).map_or(0, |it| it.len()),
            machine: name.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            isa: isa.to_string(),
            beside: "nothing".to_owned(),
            load: [load(), 0.0],
        }
    }

    pub(super) fn end(&mut self) {
        self.load[1] = load();
    }
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|it| it.parse().ok());
    first.unwrap_or(f64::NAN)
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = &self.about;
        writeln!(
            f,
            "cofferdam {} on {} ({}, {} cores), {}, load {:.1} to {:.1}",
            about.version,
            about.machine,
            about.isa,
            about.cores,
            about.date,
            about.load[0],
            about.load[1]
        )?;
        writeln!(
            f,
            "model: {}, {:.1} MB",
            about.model,
            about.bytes as f64 / 1e6
        )?;
        writeln!(f, "beside: {}", about.beside)?;
        if !self.limits.is_empty() {
            writeln!(
                f,
                "\n| threads | memory read, GB/s | int8 products, G/s |\n|---|---|---|"
            )?;
        }
        for it in &self.limits {
            let (bytes, products) = (scaled(it.bytes, 1e-9), scaled(it.products, 1e-9));
            writeln!(f, "| {} | {bytes} | {products} |", it.threads)?;
        }
        if !self.engine.is_empty() {
            writeln!(
                f,
                "\n| engine | threads | tokens/s | per CPU second | of the limit | to llama.cpp: wall | \
                 CPU | pages checked |\n|---|---|---|---|---|---|---|---|"
            )?;
        }
        self.engine.iter().try_for_each(|row| engine(f, row))?;
        if !self.first_token.is_empty() {
            writeln!(
                f,
                "\n| prompt | served by | first token, ms | to one process | each further, ms | to one \
                 process |\n|---|---|---|---|---|---|"
            )?;
        }
        let one = self.first_token.iter().find(|it| it.way == "one process");
        let mut one = one;
        for times in &self.first_token {
            if times.way == "one process" {
                one = Some(times);
            }
            served(f, times, one)?;
        }
        Ok(())
    }
}

fn engine(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    match (row.what, row.sequences) {
        (What::Prefill, _) => write!(f, "| prefill of {}", row.tokens)?,
        (What::Decode, 1) => write!(f, "| decode at {}", row.tokens)?,
        (What::Decode, n) => write!(f, "| decode at {}, {n} sequences", row.tokens)?,
    }
    let percent = |share: f64, digits| format!("{:.digits$} %", share * 100.0);
    let limit = row.of_limit.map_or("-".to_owned(), |it| percent(it, 0));
    let checked = match row.what {
        What::Prefill => "-".to_owned(),
        What::Decode => percent(row.verification, 3),
    };
    let figure = |it: Option<Median>| it.map_or("-".to_owned(), shown);
    writeln!(
        f,
        " | {} | {} | {} | {limit} | {} | {} | {checked} |",
        row.threads,
        figure(row.ours(|it| it.wall)),
        figure(row.ours(|it| it.cpu)),
        figure(row.ratio(|it| it.wall)),
        figure(row.ratio(|it| it.cpu)),
    )
}

fn served(f: &mut fmt::Formatter<'_>, times: &Times, one: Option<&Times>) -> fmt::Result {
    let figure = |it: Option<Median>| it.map_or("-".to_owned(), shown);
    let median = |of: &[f64]| figure(Median::of(of.iter().copied()));
    let ratio = |pick: fn(&Times) -> &Vec<f64>| {
        let rounds = one
            .into_iter()
            .flat_map(|one| pick(times).iter().zip(pick(one)));
        figure(Median::of(rounds.map(|(it, one)| it / one)))
    };
    writeln!(
        f,
        "| {} | {} | {} | {} | {} | {} |",
        times.prompt,
        times.way,
        median(&times.first_token_ms),
        ratio(|it| &it.first_token_ms),
        median(&times.each_further_ms),
        ratio(|it| &it.each_further_ms),
    )
}

fn scaled(it: Median, by: f64) -> String {
    shown(Median {
        median: it.median * by,
        low: it.low * by,
        high: it.high * by,
        ..it
    })
}

/// `12.3 (11.9 to 12.8)`, three digits.
fn shown(it: Median) -> String {
    let digits = |value: f64| match value.abs() {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let (median, low, high) = (digits(it.median), digits(it.low), digits(it.high));
    format!("{median} ({low} to {high})")
}
