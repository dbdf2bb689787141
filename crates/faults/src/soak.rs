//! The soak: mixed load, all faults at random by a seed, for as long as one likes. Every answer of
//! a finished request is the one that it gets alone, memory stays flat, pools are whole at the end.

use super::dice::Dice;
use super::faults::Spec;
use super::load::{Answer, PATIENCE, Question};
use super::site::{HASTY, Plan, Site, counter};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use testkit::Api;
use testkit::crowd::{COMPLETIONS, Choice};
use testkit::process::{Running, send, wait_for};

/// What is injected beside kills and stops, in a thousand opportunities.
const FAULTS: &str = "delay-write=40,reorder=40,late=10,corrupt=10,drop=5,duplicate=20,\
                      cut-writes=3,wrong-tokens=4,wrong-tag=4,wrong-order=4,wrong-fill=4,\
                      wrong-checksum=4,page-twice=4,bad-batch=4,missing-page=4,short-count=4,\
                      first-token=4,wrong-arena=4,cut=1,slow=20,repeat=20";

/// How a soak runs.
#[derive(Clone, Debug)]
pub struct Soaking {
    /// The executable of `cofferdam-faults`.
    pub program: PathBuf,
    /// The model.
    pub model: PathBuf,
    /// Its context, in tokens.
    pub context: usize,
    /// How long there is load.
    pub time: Duration,
    /// Requests at once.
    pub clients: usize,
    /// Whether anything is injected at all.
    pub faults: bool,
    /// The seed.
    pub seed: u64,
    /// Further words of `serve`.
    pub words: Vec<String>,
}

/// What came of a soak.
#[derive(Debug, Default)]
pub struct Soaked {
    /// By what clients heard.
    pub heard: BTreeMap<String, u64>,
    /// Clients that left on purpose.
    pub left: u64,
    /// Kills and stops, by part.
    pub blows: BTreeMap<String, u64>,
    /// The gateway's counters of integrity faults, as last seen in each of its lives.
    pub integrity: u64,
    /// Resident memory of all parts in MiB: after a sixth of the time, and at the end.
    pub memory: (usize, usize),
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (word, n) in &self.heard {
            writeln!(f, "{n:6} x {word}")?;
        }
        for (word, n) in &self.blows {
            writeln!(f, "{n:6} x {word}")?;
        }
        let (left, integrity) = (self.left, self.integrity);
        let (early, late) = self.memory;
        write!(
            f,
            "{left} clients left; {integrity} integrity faults found; memory {early} MiB, then {late} MiB"
        )
    }
}

/// Runs a soak; panics with what was found wrong.
pub fn run(soaking: &Soaking) -> Soaked {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = free.expect("there is a free port").port();
    let hasty = HASTY.map(str::to_owned).into_iter();
    let mut words: Vec<String> = hasty.filter(|_| soaking.faults).collect();
    words.extend([
        "--request-deadline=40s".into(),
        "--prefill=2".into(),
        "--decode=2".into(),
    ]);
    words.extend(soaking.words.iter().cloned());
    let model = format!("--model={}", soaking.model.display());
    let first = [
        "serve",
        "--",
        "--in-process",
        "--port=0",
        "--threads=1",
        model.as_str(),
    ];
    let mut alone: Vec<String> = first.map(str::to_owned).to_vec();
    alone.extend(soaking.words.iter().cloned());
    let reference = Running::start(&soaking.program, &alone);
    words.push(format!("--port={port}"));
    let faults: Spec = if soaking.faults { FAULTS } else { "" }
        .parse()
        .expect("a list of ours");
    let site = Site::start(&Plan {
        program: soaking.program.clone(),
        model: soaking.model.clone(),
        words,
        faults,
        seed: soaking.seed,
    });
    site.rest(4);
    let soaked = Mutex::new(Soaked::default());
    let over = AtomicBool::new(false);
    let owners = AtomicUsize::new(0);
    let load = Load {
        soaking,
        api: &site.api,
        alone: reference.api(),
        over: &over,
        owners: &owners,
        soaked: &soaked,
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..soaking.clients)
            .map(|n| {
                scope.spawn({
                    let load = &load;
                    move || load.client(n as u64)
                })
            })
            .collect();
        attack(soaking, &site, &soaked);
        over.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .for_each(|client| client.join().expect("a client found it wrong"));
    });
    end(
        site,
        soaking,
        soaked.into_inner().unwrap_or_else(PoisonError::into_inner),
    )
}

/// Kills and stops at random until the time is over, and looks at memory and counters meanwhile.
fn attack(soaking: &Soaking, site: &Site, soaked: &Mutex<Soaked>) {
    let begun = Instant::now();
    let mut dice = Dice::new(soaking.seed ^ 0xA77A_C4ED);
    let mut seen = BTreeMap::new();
    let mut early = 0;
    while begun.elapsed() < soaking.time {
        std::thread::sleep(Duration::from_millis(500 + dice.below(3000)));
        if early == 0 && begun.elapsed() > soaking.time / 6 {
            early = memory(site);
        }
        if let Ok(reply) = site.api.try_get("/server_info")
            && reply.status == 200
        {
            look(&reply.json(), &mut seen);
        }
        let parts = site.running.parts();
        if !soaking.faults || parts.is_empty() {
            continue;
        }
        let (pid, part) = &parts[dice.below(parts.len() as u64) as usize];
        let stop = dice.below(3) == 0;
        let how = if stop { "stopped" } else { "killed" };
        let mut soaked_now = soaked.lock().unwrap_or_else(PoisonError::into_inner);
        *soaked_now.blows.entry(format!("{part} {how}")).or_default() += 1;
        drop(soaked_now);
        if stop {
            send(*pid, Signal::STOP);
            std::thread::sleep(Duration::from_millis(200 + dice.below(4000)));
            send(*pid, Signal::CONT);
        } else {
            send(*pid, Signal::KILL);
        }
    }
    let mut soaked = soaked.lock().unwrap_or_else(PoisonError::into_inner);
    soaked.memory.0 = early;
    soaked.integrity = seen.values().sum();
}

/// What each life of the gateway has counted so far.
fn look(info: &Value, seen: &mut BTreeMap<u64, u64>) {
    let counters = info["counters"].as_array().cloned().unwrap_or_default();
    let integrity = counters.iter().filter(|it| {
        let name = it["name"].as_str().unwrap_or_default();
        name.starts_with("integrity_")
    });
    let sum: u64 = integrity.filter_map(|it| it["value"].as_u64()).sum();
    // A life counts upwards: below the last figure it is another one.
    let lives = seen.len() as u64;
    let last = seen.values().next_back().copied();
    let life = match last {
        Some(last) if sum >= last => lives - 1,
        _ => lives,
    };
    seen.insert(life, sum);
}

/// Resident memory of all parts, MiB.
fn memory(site: &Site) -> usize {
    let parts = site.running.parts();
    let of = parts
        .iter()
        .filter_map(|(pid, _)| testkit::memory::resident(*pid));
    of.sum::<usize>() >> 20
}

struct Load<'a> {
    soaking: &'a Soaking,
    api: &'a Api,
    alone: Api,
    over: &'a AtomicBool,
    owners: &'a AtomicUsize,
    soaked: &'a Mutex<Soaked>,
}

impl Load<'_> {
    fn client(&self, n: u64) {
        let mut dice = Dice::new(self.soaking.seed << 8 ^ n);
        let mut before: Vec<(Question, Vec<Choice>)> = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            // Some prompts come again: then caches serve them.
            if before.len() > 4 && dice.below(4) == 0 {
                let (question, alone) = &before[dice.below(before.len() as u64) as usize];
                self.ask(question, alone);
                continue;
            }
            let owner = self.owners.fetch_add(1, Ordering::Relaxed);
            let seed = self.soaking.seed + owner as u64 / 4096;
            let question = Question::of(&mut dice, owner, seed, self.soaking.context);
            if dice.below(10) == 0 {
                self.leave(&question, dice.below(200));
                continue;
            }
            let alone = question.alone(&self.alone);
            self.ask(&question, &alone);
            before.push((question, alone));
            if before.len() > 32 {
                before.remove(0);
            }
        }
    }

    fn ask(&self, question: &Question, alone: &[Choice]) {
        let begun = Instant::now();
        let answer = question.ask(self.api);
        assert!(begun.elapsed() < PATIENCE, "{question:?} hung");
        let faults = self.soaking.faults;
        let judged = match (&answer, faults) {
            (Answer::Whole(_), false) => answer.judge(alone, false),
            (other, false) => Err(format!("nothing was injected: {other:?}")),
            _ => answer.judge(alone, true),
        };
        if let Err(wrong) = judged {
            panic!("seed {}: {question:?}: {wrong}", self.soaking.seed);
        }
        let mut soaked = self.soaked.lock().unwrap_or_else(PoisonError::into_inner);
        *soaked.heard.entry(answer.word()).or_default() += 1;
        drop(soaked);
        if matches!(answer, Answer::Broken(_) | Answer::Error(503, ..)) {
            std::thread::sleep(Duration::from_millis(100)); // as it was told to
        }
    }

    /// Asks and leaves a while later, whatever phase that is.
    fn leave(&self, question: &Question, after_ms: u64) {
        let pending = self.api.begin(COMPLETIONS, &question.body);
        std::thread::sleep(Duration::from_millis(after_ms));
        drop(pending);
        self.soaked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .left += 1;
    }
}

/// All parts are there, and at rest.
fn rest(site: &Site) -> Value {
    let all = || site.running.parts().len() == 5;
    wait_for("all parts are there", || all().then_some(()));
    site.ready();
    site.rest(4)
}

/// Nothing is missing and nothing left over.
fn end(site: Site, soaking: &Soaking, mut soaked: Soaked) -> Soaked {
    if soaking.faults {
        // A life that wrote wrong pages again and again is refused for good, as it must be.
        for (pid, _) in site
            .running
            .parts()
            .iter()
            .filter(|(_, part)| part == "prefill")
        {
            send(*pid, Signal::KILL);
        }
    }
    let info = rest(&site);
    soaked.memory.1 = memory(&site);
    for worker in info["workers"].as_array().expect("workers") {
        assert_eq!(counter(worker, "dropped_grants"), 0, "{worker:#}");
    }
    let (early, late) = soaked.memory;
    let grown = late.saturating_sub(early);
    assert!(
        grown < 64 + early / 4,
        "memory has grown from {early} to {late} MiB"
    );
    if !soaking.faults {
        assert_eq!(soaked.integrity, 0, "zero false alarms: {info:#}");
    }
    let ended = site.running.stop();
    assert!(
        ended.status.success() && ended.left.is_empty(),
        "{:?}",
        ended.left
    );
    soaked
}
