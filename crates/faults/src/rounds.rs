//! Kill rounds: under load, one part is killed at the very moment when an attempt reaches a chosen
//! phase. Everybody hears the right answer or a clear error, and afterwards nothing is missing and
//! nothing is left over.

use super::dice::Dice;
use super::faults::Spec;
use super::holder::Phase;
use super::load::{Question, all_at_once};
use super::site::{HASTY, Plan, Site, counter, found_again};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::process::{Running, runs, send, wait_for};

/// How a series runs.
#[derive(Clone, Debug)]
pub struct Series {
    /// The executable of `cofferdam-faults`.
    pub program: PathBuf,
    /// The model.
    pub model: PathBuf,
    /// Its context, in tokens.
    pub context: usize,
    /// Rounds.
    pub rounds: u64,
    /// Requests of a round.
    pub clients: usize,
    /// The seed.
    pub seed: u64,
    /// Further words of `serve`.
    pub words: Vec<String>,
}

/// What came of a series.
#[derive(Debug, Default)]
pub struct Report {
    /// By part and phase.
    pub hits: BTreeMap<(&'static str, Phase), u64>,
    /// Rounds in which no attempt reached the phase before all had ended.
    pub missed: u64,
    /// By what clients heard.
    pub heard: BTreeMap<String, u64>,
    /// From the kill until requests are taken again and everything is whole.
    pub recovery: Vec<Duration>,
}

impl Report {
    /// Hits of a phase, whichever part it cost.
    pub fn of_phase(&self, phase: Phase) -> u64 {
        let of = self.hits.iter().filter(|((_, hit), _)| *hit == phase);
        of.map(|(_, n)| n).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for phase in Phase::ALL {
            let of = |part| self.hits.get(&(part, phase)).copied().unwrap_or_default();
            let [prefill, decode, gateway] = PARTS.map(of);
            let phase = format!("{phase:?}");
            writeln!(
                f,
                "{phase:10} prefill {prefill:3} decode {decode:3} gateway {gateway:3}"
            )?;
        }
        writeln!(f, "missed {}", self.missed)?;
        for (word, n) in &self.heard {
            writeln!(f, "{n:5} x {word}")?;
        }
        let mut recovery = self.recovery.clone();
        recovery.sort();
        let at = |part: usize| recovery.get(recovery.len() * part / 100).copied();
        let all = (at(0), at(50), at(95), recovery.last());
        if let (Some(least), Some(half), Some(most), Some(last)) = all {
            let (least, half, most) = (least.as_millis(), half.as_millis(), most.as_millis());
            let last = last.as_millis();
            write!(
                f,
                "a round, to whole pools: {least} / {half} / {most} / {last} ms (least, median, p95, most)"
            )?;
        }
        Ok(())
    }
}

/// Who is killed.
const PARTS: [&str; 3] = ["prefill", "decode", "gateway"];

/// Runs a series; panics with what was found wrong.
pub fn run(series: &Series) -> Report {
    let mut words: Vec<String> = HASTY.map(str::to_owned).to_vec();
    words.push("--request-deadline=40s".into());
    words.extend(series.words.iter().cloned());
    let reference = reference(series, &words);
    words.push(found_again());
    let site = Site::start(&Plan {
        program: series.program.clone(),
        model: series.model.clone(),
        words,
        faults: Spec::default(),
        seed: series.seed,
    });
    let alone = reference.api();
    let mut dice = Dice::new(series.seed);
    let mut report = Report::default();
    for round in 0..series.rounds {
        let phase = Phase::ALL[round as usize % Phase::ALL.len()];
        let part = PARTS[(round as usize / Phase::ALL.len()) % PARTS.len()];
        let first = round as usize * series.clients;
        let of = |n| Question::of(&mut dice, first + n, series.seed, series.context);
        let mut questions: Vec<Question> = (0..series.clients).map(of).collect();
        // Both kinds, so that every phase is reached.
        questions[0].turn(true);
        questions[1].turn(false);
        let expected: Vec<_> = questions.iter().map(|it| it.alone(&alone)).collect();

        let pid = site.running.part(part);
        let skip = dice.below(2);
        let killed = move |_: &_| send(pid, Signal::KILL);
        site.board.arm(phase, skip, killed);
        let begun = Instant::now();
        let answers = all_at_once(&site.api, &questions);
        let hit = site.board.disarm();
        for ((question, answer), alone) in questions.iter().zip(&answers).zip(&expected) {
            *report.heard.entry(answer.word()).or_default() += 1;
            if let Err(wrong) = answer.judge(alone, part == "gateway") {
                panic!("round {round}, {part} killed in {phase:?}: {question:?}: {wrong}");
            }
        }
        if hit.is_none() {
            report.missed += 1;
            continue;
        }
        *report.hits.entry((part, phase)).or_default() += 1;
        recovered(&site, part, pid);
        report.recovery.push(begun.elapsed());
        let info = site.info();
        for name in ["integrity_faults", "dropped_grants", "malformed_messages"] {
            let of = info["workers"].as_array().expect("workers").iter();
            let sum: u64 = of.map(|worker| counter(worker, name)).sum();
            assert_eq!(sum, 0, "round {round}: {name}: {info:#}");
        }
    }
    let ended = site.running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    report
}

/// The same engine in one process: what each request gets alone.
fn reference(series: &Series, words: &[String]) -> Running {
    let model = format!("--model={}", series.model.display());
    let first = ["serve", "--", "--in-process", "--port=0", "--threads=1"];
    let first = first.map(str::to_owned);
    let words: Vec<String> = first
        .into_iter()
        .chain([model])
        .chain(words.iter().cloned())
        .collect();
    Running::start(&series.program, &words)
}

/// Waits until the killed part is another process, requests are taken, and nothing is left of the
/// old one.
fn recovered(site: &Site, part: &str, killed: u32) {
    wait_for("another life of the killed part", || {
        let parts = site.running.parts();
        let new = parts
            .iter()
            .any(|(pid, word)| word == part && *pid != killed);
        (new && !runs(killed)).then_some(())
    });
    site.ready();
    site.rest(1);
    assert_eq!(site.running.parts().len(), 3);
    // Sockets of parts and of arenas: those of the killed are gone. (The relays are not shipped.)
    let base = site.running.directory().to_owned();
    let fabrics = || {
        let dirs = std::fs::read_dir(&base).into_iter().flatten().flatten();
        let entries = dirs
            .flat_map(|dir| std::fs::read_dir(dir.path()))
            .flatten()
            .flatten();
        let fabric = |name: &str| name.starts_with("fabric-");
        entries
            .filter(|it| fabric(&it.file_name().to_string_lossy()))
            .count()
    };
    assert_eq!(
        fabrics(),
        usize::from(site.shared),
        "directories of landing arenas in {}",
        base.display()
    );
}

impl Question {
    /// Streamed or not; the maximum of tokens says which.
    pub(super) fn turn(&mut self, stream: bool) {
        let most = self.body["max_tokens"].as_u64().expect("it is set") & !1;
        self.body["max_tokens"] = (most + u64::from(stream)).into();
        self.stream = stream;
    }
}
